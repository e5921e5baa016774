package cli

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// A waiting service requests extension more start time every extendEvery, so that one message may be late.
const (
	extension   = 30 * time.Second
	extendEvery = 10 * time.Second
)

// manager is the service manager that started this process, if it wants notifications: systemd, by the
// protocol of sd_notify(3). nil: there is none.
type manager struct {
	conn    net.Conn
	watched func() // stops the watchdog messages
	waited  func() // stops the requests for more start time
}

// newManager connects to the manager. If that fails, the command runs without it.
func newManager() *manager {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", socket)
	if err != nil {
		return nil
	}
	m := &manager{conn: conn, watched: func() {}, waited: func() {}}
	if every := watchdogInterval(); every > 0 {
		m.watched = m.sendRepeatedly("WATCHDOG=1", every/2)
	}
	return m
}

// watchdogInterval returns the interval at which systemd expects a watchdog message, or 0.
func watchdogInterval() time.Duration {
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || usec <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// sendRepeatedly sends text at once and then at each interval until stop is called. stop waits for the last
// message.
func (m *manager) sendRepeatedly(text string, every time.Duration) (stop func()) {
	over := make(chan struct{})
	var sent sync.WaitGroup
	sent.Go(func() {
		for tick := time.NewTicker(every); ; {
			m.send(text)
			select {
			case <-tick.C:
			case <-over:
				tick.Stop()
				return
			}
		}
	})
	return sync.OnceFunc(func() { close(over); sent.Wait() })
}

func (m *manager) send(text string) {
	if m != nil {
		m.conn.SetWriteDeadline(time.Now().Add(pace.ManagerTime()))
		m.conn.Write([]byte(text)) // ignore an error: the manager may be gone
	}
}

// notifyWaiting reports the lock that the service waits for, and requests more start time until the service is
// ready: the wait has its own limits.
func (m *manager) notifyWaiting(format string, args ...any) {
	m.sendStatus(format, args...)
	if m != nil {
		m.waited = m.sendRepeatedly(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extension.Microseconds()), extendEvery)
	}
}

// notifyReady reports that the service is ready, and its status.
func (m *manager) notifyReady(format string, args ...any) {
	if m != nil {
		m.waited() // a ready service must not extend its run time
	}
	m.send("READY=1\nSTATUS=" + view.Printable(fmt.Sprintf(format, args...)))
}

func (m *manager) sendStatus(format string, args ...any) {
	m.send("STATUS=" + view.Printable(fmt.Sprintf(format, args...)))
}

// notifyReloaded answers a HUP, by which the manager requests a reload under Type=notify-reload. The command
// does not report the end of its reload, so the reload ends once the command got the signal.
func (m *manager) notifyReloaded() {
	m.send(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", monotonicTime().Microseconds()))
	m.send("READY=1")
}

func (m *manager) close() {
	if m != nil {
		m.waited()
		m.send("STOPPING=1")
		m.watched()
		m.conn.Close()
	}
}
