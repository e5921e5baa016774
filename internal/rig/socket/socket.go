// Package socket is a connection in memory that behaves like one over a network: a write does not wait until the other end reads.
package socket

import "net"

// Room returns the number of bytes that a socket takes before its other end reads.
const Room = 4096

// socket is a net.Pipe with room for what was written and not read yet.
type socket struct {
	net.Conn
	bytes chan byte
	done  chan struct{}
}

// New gives inner room. Close ends both.
func New(inner net.Conn) net.Conn {
	s := &socket{Conn: inner, bytes: make(chan byte, Room), done: make(chan struct{})}
	go func() {
		for {
			select {
			case b := <-s.bytes:
				if _, err := inner.Write([]byte{b}); err != nil {
					return
				}
			case <-s.done:
				return
			}
		}
	}()
	return s
}

// LocalAddr is no end of a pipe.
func (s *socket) LocalAddr() net.Addr { return &net.TCPAddr{} }

func (s *socket) Write(b []byte) (int, error) {
	for i, c := range b {
		select {
		case s.bytes <- c:
		case <-s.done:
			return i, net.ErrClosed
		}
	}
	return len(b), nil
}

func (s *socket) Close() error {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	return s.Conn.Close()
}
