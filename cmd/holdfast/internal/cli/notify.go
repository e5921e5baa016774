package cli

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// manager is the service manager that started this process, if it wants to hear of it:
// systemd, by the protocol of sd_notify(3). nil: nobody does.
type manager struct {
	conn  net.Conn
	alive sync.WaitGroup
	over  chan struct{} // closed when the watchdog is to be told no more
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
	m := &manager{conn: conn, over: make(chan struct{})}
	if every := watchdog(); every > 0 {
		m.alive.Go(func() { m.live(every / 2) })
	}
	return m
}

// watchdog is how often the manager wants to hear that this process lives, or 0.
func watchdog() time.Duration {
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || usec <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

func (m *manager) live(every time.Duration) {
	for tick := time.NewTicker(every); ; {
		m.tell("WATCHDOG=1")
		select {
		case <-tick.C:
		case <-m.over:
			tick.Stop()
			return
		}
	}
}

func (m *manager) tell(text string) {
	if m != nil {
		m.conn.SetWriteDeadline(time.Now().Add(time.Second))
		m.conn.Write([]byte(text)) // it may have gone, and this process goes on
	}
}

// ready says that the service stands, and what it does.
func (m *manager) ready(format string, args ...any) {
	m.tell("READY=1\nSTATUS=" + view.Printable(fmt.Sprintf(format, args...)))
}

func (m *manager) status(format string, args ...any) {
	m.tell("STATUS=" + view.Printable(fmt.Sprintf(format, args...)))
}

func (m *manager) close() {
	if m != nil {
		m.tell("STOPPING=1")
		close(m.over)
		m.alive.Wait()
		m.conn.Close()
	}
}
