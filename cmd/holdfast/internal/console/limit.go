package console

import (
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// limitListener bounds the open connections, and the kernel's buffers for each. If the limit is reached, a new
// connection replaces the one that has made no progress for longest, so that idle clients do not lock out
// others. A connection is replaced only after patience: in a burst, an honest client would otherwise be cut off
// before its request arrives or is read.
type limitListener struct {
	net.Listener
	places   int
	patience time.Duration
	freed    chan struct{} // receives when a connection has closed
	over     chan struct{} // closed when the listener closes
	end      func()        // closes over

	mu   sync.Mutex // guards open
	open map[*limitedConn]struct{}
}

func newLimitListener(l net.Listener, places int, patience time.Duration) *limitListener {
	over := make(chan struct{})
	return &limitListener{
		Listener: l, places: places, patience: patience, freed: make(chan struct{}, 1), over: over, end: sync.OnceFunc(func() { close(over) }),
		open: make(map[*limitedConn]struct{}),
	}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		tcp.SetWriteBuffer(writeBuffer) // the kernel would buffer MBs of unread answers
	}
	c := &limitedConn{Conn: conn, listener: l}
	c.progress.Store(progressBeforeRead)
	for {
		rest := l.addConn(c)
		if rest <= 0 {
			return c, nil
		}
		select {
		case <-time.After(rest):
		case <-l.freed:
		case <-l.over:
			conn.Close()
			return nil, net.ErrClosed
		}
	}
}

// Close implements net.Listener.
func (l *limitListener) Close() error {
	l.end()
	return l.Listener.Close()
}

// addConn accepts c, and closes the connection that it replaces. If none can be replaced yet, it does not
// accept c and returns the time after which to try again.
func (l *limitListener) addConn(c *limitedConn) (rest time.Duration) {
	l.mu.Lock()
	var idle *limitedConn
	if len(l.open) >= l.places {
		least := int64(math.MaxInt64)
		for o := range l.open {
			if p := o.progress.Load(); p < least {
				idle, least = o, p
			}
		}
		if rest = min(time.Duration(least-time.Now().UnixNano())+l.patience, l.patience); rest > 0 {
			l.mu.Unlock()
			return rest
		}
		delete(l.open, idle)
	}
	l.open[c] = struct{}{}
	l.mu.Unlock()
	if idle != nil {
		idle.Close()
	}
	return 0
}

// progressBeforeRead is the progress of a connection that the console has not begun to read. Its client is not at fault.
const progressBeforeRead = math.MaxInt64 - int64(time.Hour)

// limitedConn is a connection of a limitListener.
type limitedConn struct {
	net.Conn
	listener *limitListener
	progress atomic.Int64 // time of the first read or the last byte, in Unix ns
}

// Read implements net.Conn.
func (c *limitedConn) Read(b []byte) (int, error) {
	c.progress.CompareAndSwap(progressBeforeRead, time.Now().UnixNano())
	n, err := c.Conn.Read(b)
	c.noteProgress(n)
	return n, err
}

// Write implements net.Conn.
func (c *limitedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.noteProgress(n)
	return n, err
}

func (c *limitedConn) noteProgress(n int) {
	if n > 0 {
		c.progress.Store(time.Now().UnixNano())
	}
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.open, c)
	c.listener.mu.Unlock()
	select {
	case c.listener.freed <- struct{}{}:
	default:
	}
	return c.Conn.Close()
}
