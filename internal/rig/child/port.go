package child

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports may be reserved, from the first of 10,000 on. All lie below the ports of outgoing connections.
type Ports int

const (
	// ForMembers are the ports of etcd and ZooKeeper.
	ForMembers Ports = 10000
	// ForRedis are the ports of redis-server, which listens on the port above by 10,000 too where it is of a cluster.
	ForRedis Ports = 20000
)

// Reservation holds the UDP port of the same number as a server's TCP port for as long as the server may come back to it. A
// TCP listener would keep the server itself out.
type Reservation struct {
	Addr   string
	holder net.PacketConn
}

// Reserve finds n numbers whose TCP and UDP ports are free at 127.0.0.1. Between this and the server's bind another program can
// still take a TCP port; the caller tries again then. But nobody who calls Reserve takes it until Release, also while the server
// is down.
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

// Addrs are the addresses that are reserved.
func Addrs(all []*Reservation) (addrs []string) {
	for _, r := range all {
		addrs = append(addrs, r.Addr)
	}
	return addrs
}
