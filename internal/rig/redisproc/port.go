package redisproc

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

const lowestPort, portRange = 20000, 10000

// reservation holds the UDP port of the same number as a server's TCP port for as long as the server may come back to it. A
// TCP listener would keep the server itself out.
type reservation struct {
	port   int
	holder net.PacketConn
}

// reservePort finds a number whose TCP and UDP ports are free. Between this and the server's bind another program can
// still take the TCP port; the caller tries again then.
func reservePort() (*reservation, error) {
	for range portAttempts {
		port := lowestPort + rand.IntN(portRange)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		holder, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			holder.Close()
			continue
		}
		listener.Close()
		return &reservation{port: port, holder: holder}, nil
	}
	return nil, errors.New("no free port found on 127.0.0.1")
}

// release may be called on nil and more than once.
func (r *reservation) release() {
	if r != nil {
		r.holder.Close()
	}
}
