package console

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// limitListener bounds the open connections. One more does not wait: it takes the place of the connection that has been without
// progress for the longest, so that clients that connect and neither read nor write keep nobody out.
type limitListener struct {
	net.Listener
	most int

	mu   sync.Mutex // guards open
	open map[*limitedConn]struct{}
}

func newLimitListener(l net.Listener, most int) *limitListener {
	return &limitListener{Listener: l, most: most, open: make(map[*limitedConn]struct{})}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &limitedConn{Conn: conn, listener: l}
	c.progress.Store(time.Now().UnixNano())
	if idle := l.add(c); idle != nil {
		idle.Close()
	}
	return c, nil
}

// add counts c, and returns the connection that has to make room for it, if any.
func (l *limitListener) add(c *limitedConn) (idle *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most {
		for o := range l.open {
			if idle == nil || o.progress.Load() < idle.progress.Load() {
				idle = o
			}
		}
		delete(l.open, idle)
	}
	l.open[c] = struct{}{}
	return idle
}

// limitedConn is a connection of a limitListener.
type limitedConn struct {
	net.Conn
	listener *limitListener
	progress atomic.Int64 // when it last read or wrote a byte, in Unix ns
}

// Read implements net.Conn.
func (c *limitedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.moved(n)
	return n, err
}

// Write implements net.Conn.
func (c *limitedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.moved(n)
	return n, err
}

func (c *limitedConn) moved(n int) {
	if n > 0 {
		c.progress.Store(time.Now().UnixNano())
	}
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.open, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
