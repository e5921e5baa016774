package child

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports is a range of 10,000 ports to reserve from, named by its first port. All ranges are below the ports of
// outgoing connections.
type Ports int

const (
	// MemberPorts are for etcd and ZooKeeper.
	MemberPorts Ports = 10000
	// RedisPorts are for redis-server. A cluster node also listens on port+10000.
	RedisPorts Ports = 20000
)

// Reservation keeps a server's TCP port for the server by holding the UDP port of the same number. A TCP
// listener would block the server itself.
type Reservation struct {
	Addr   string
	holder net.PacketConn
}

// Reserve reserves n numbers whose TCP and UDP ports are free on 127.0.0.1. Before the server binds its TCP
// port, another program can still take it; the caller then tries again. But no other caller of Reserve gets
// the number before Release, even while the server is down.
func (p Ports) Reserve(n int) (all []*Reservation, err error) {
	for range 100 * n {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p)+rand.IntN(10000)))
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
		if all = append(all, &Reservation{Addr: addr, holder: holder}); len(all) == n {
			return all, nil
		}
	}
	Release(all)
	return nil, errors.New("no free ports on 127.0.0.1")
}

// Release ends reservations. It may be called more than once.
func Release(all []*Reservation) {
	for _, r := range all {
		r.holder.Close()
	}
}

// Addrs returns the reserved addresses.
func Addrs(all []*Reservation) (addrs []string) {
	for _, r := range all {
		addrs = append(addrs, r.Addr)
	}
	return addrs
}
