package resp

import "net"

// Conn sends commands over a connection and waits for their replies, one batch after another.
// It is not safe for concurrent use.
type Conn struct {
	net.Conn
	*Reader
}

// NewConn takes over a connection on which nothing is under way.
func NewConn(c net.Conn) *Conn { return &Conn{Conn: c, Reader: NewReader(c)} }

// Do sends the commands at once and blocks until each has its reply. Error replies are among the values.
func (c *Conn) Do(cmds ...[]string) ([]Value, error) {
	var out []byte
	for _, cmd := range cmds {
		out = AppendCommand(out, cmd...)
	}
	if _, err := c.Write(out); err != nil {
		return nil, err
	}
	values := make([]Value, len(cmds))
	for i := range values {
		v, err := c.ReadValue()
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}
