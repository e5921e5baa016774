package resp

import (
	"net"
	"time"
)

// Conn sends commands over a connection and waits for their replies, one batch after another.
// It is not safe for concurrent use.
type Conn struct {
	net.Conn
	*Reader
}

// NewConn takes over a connection on which nothing is under way.
func NewConn(c net.Conn) *Conn { return &Conn{Conn: c, Reader: NewReader(c)} }

// Do sends the commands at once and blocks until each has its reply. Error replies are among the values. After an error
// the connection is of no use any more.
func (c *Conn) Do(cmds ...[]string) ([]Value, error) {
	var out []byte
	for _, cmd := range cmds {
		out = AppendCommand(out, cmd...)
	}
	sent := make(chan error, 1)
	go func() { // a server may answer the first before it reads the last, and a net.Pipe keeps nothing in between
		_, err := c.Write(out)
		sent <- err
	}()
	values, err := c.replies(len(cmds))
	if err != nil {
		c.SetWriteDeadline(time.Unix(1, 0))
		<-sent
		return nil, err
	}
	return values, <-sent
}

func (c *Conn) replies(n int) ([]Value, error) {
	values := make([]Value, n)
	for i := range values {
		v, err := c.ReadValue()
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}
