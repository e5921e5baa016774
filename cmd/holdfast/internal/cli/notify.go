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

// A service that waits for its lock asks for extension more every extendEvery, so that one message may be late.
const (
	extension   = 30 * time.Second
	extendEvery = 10 * time.Second
)

// manager is the service manager that started this process, if it wants to hear of it:
// systemd, by the protocol of sd_notify(3). nil: nobody does.
type manager struct {
	conn    net.Conn
	watched func() // ends the messages to the watchdog
	waited  func() // ends the requests for more time to start
}

// newManager finds it. What cannot be told to it is no reason not to run.
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

// watchdogInterval returns the interval in which systemd expects a sign of life, or 0.
func watchdogInterval() time.Duration {
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || usec <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// sendRepeatedly sends text at once and then again and again, until stop is called. stop blocks until nothing is sent any more.
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
		m.conn.Write([]byte(text)) // it may have gone, and this process goes on
	}
}

// waiting reports to systemd what the service waits for before it is ready. Until then systemd is
// asked not to give up on it, since the wait for a lock has bounds of its own.
func (m *manager) waiting(format string, args ...any) {
	m.sendStatus(format, args...)
	if m != nil {
		m.waited = m.sendRepeatedly(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extension.Microseconds()), extendEvery)
	}
}

// ready reports to systemd that the service is ready, and what it does.
func (m *manager) ready(format string, args ...any) {
	if m != nil {
		m.waited() // or it would extend the time for which a service that stands may run
	}
	m.send("READY=1\nSTATUS=" + view.Printable(fmt.Sprintf(format, args...)))
}

func (m *manager) sendStatus(format string, args ...any) {
	m.send("STATUS=" + view.Printable(fmt.Sprintf(format, args...)))
}

// reloaded answers a HUP, by which the manager asks for a reload under Type=notify-reload. What the command does about it is
// not known, so the reload is over when the command has been told.
func (m *manager) reloaded() {
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
