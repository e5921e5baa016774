package resp

import (
	"fmt"
	"net"
	"time"
)

// Conn sends commands over a connection and waits for their replies, one batch after another. It is not safe
// for concurrent use.
type Conn struct {
	net.Conn
	*Reader
	// Answered, if not nil, is called after each reply.
	Answered func()
}

// NewConn returns a Conn over a connection without pending commands.
func NewConn(c net.Conn) *Conn { return &Conn{Conn: c, Reader: NewReader(c)} }

// ReplyMemory returns how much memory the replies to the commands may take together.
func ReplyMemory(cmds [][]string) int {
	scripts := 0
	for _, cmd := range cmds {
		switch cmd[0] {
		case "SCAN", "HSCAN", "ZRANGEBYSCORE", "ZSCORE", "CLUSTER", "SLOWLOG":
			return ListingRoom
		case "EVALSHA":
			if scripts++; scripts > 1 { // each reads one lock of a list
				return ListingRoom
			}
		}
	}
	return ReplyRoom
}

// Do sends the commands at once and blocks until each has its reply. Error replies are among the values. After
// an error the connection is unusable. If the server closed the connection after an error reply, the error
// contains that reply.
func (c *Conn) Do(cmds ...[]string) ([]Value, error) {
	left := ReplyMemory(cmds)
	c.Room = func() int { return left }
	defer func() { c.Room = nil }()
	var out []byte
	for _, cmd := range cmds {
		out = AppendCommand(out, cmd...)
	}
	sent := make(chan error, 1)
	go func() { // a server may answer the first command before it reads the last, and a net.Pipe buffers nothing
		_, err := c.Write(out)
		sent <- err
	}()
	values, err := c.readReplies(len(cmds), &left)
	if err != nil {
		err = &UnansweredError{Command: cmds[len(values)][0], Err: err}
		c.SetWriteDeadline(time.Unix(1, 0))
		<-sent
	} else {
		err = <-sent
	}
	if err != nil {
		return nil, errorAfter(values, err)
	}
	return values, nil
}

// UnansweredError is the error of a command whose connection ended before the reply.
type UnansweredError struct {
	Command string
	Err     error
}

func (e *UnansweredError) Error() string { return e.Command + ": " + e.Err.Error() }

// Unwrap returns the reason why the connection ended.
func (e *UnansweredError) Unwrap() error { return e.Err }

// errorAfter returns err, which ended a connection, joined with the last reply if that is an error.
func errorAfter(values []Value, err error) error {
	if n := len(values); n > 0 && values[n-1].IsError() {
		return fmt.Errorf("%v, and then: %w", values[n-1].Err(), err)
	}
	return err
}

// readReplies reads n replies and subtracts their memory from left.
func (c *Conn) readReplies(n int, left *int) (values []Value, err error) {
	values = make([]Value, 0, n)
	for range n {
		v, err := c.ReadValue()
		if err != nil {
			return values, err
		}
		values = append(values, v)
		*left -= c.Took()
		if c.Answered != nil {
			c.Answered()
		}
	}
	return values, nil
}
