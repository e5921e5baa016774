// Package socket provides connections in memory that behave like network connections: a write does not wait
// until the other end reads.
package socket

import "net"

// Room is the number of bytes that a socket buffers before its other end reads.
const Room = 4096

// socket is a net.Pipe with a buffer.
type socket struct {
	net.Conn
	bytes chan byte
	done  chan struct{}
}

// New adds a buffer to inner. Close closes both.
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

// LocalAddr returns a TCP address, so that package link treats the connection as buffered.
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
