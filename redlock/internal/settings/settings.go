// Package settings makes the arguments of redlock.Open from those of clients that a program has for the same servers.
package settings

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redlock"
)

// Server is how a client connects to one server.
type Server struct {
	Addr string
	// Dial opens a connection and, where the client uses TLS, secures it.
	Dial        func(ctx context.Context, network, addr string) (net.Conn, error)
	Credentials func(ctx context.Context, addr string) (username, password string, err error)
	DB          int
	ClientName  string
	Timeout     time.Duration // 0: that of package redlock
}

// Join makes one set of the servers, which agree on the database and the name of the client.
func Join(servers []Server) ([]redlock.Node, *redlock.Options, error) {
	if len(servers) == 0 {
		return nil, nil, fmt.Errorf("%w: no options; give those of at least one client", driver.ErrInvalid)
	}
	first := servers[0]
	opts := &redlock.Options{DB: first.DB, ClientName: first.ClientName}
	byAddr := make(map[string]Server)
	var nodes []redlock.Node
	for _, s := range servers {
		if s.DB != first.DB || s.ClientName != first.ClientName {
			return nil, nil, fmt.Errorf("%w: the clients of %s and %s have databases %d and %d and names %q and %q; give all nodes of a set the same",
				driver.ErrInvalid, first.Addr, s.Addr, first.DB, s.DB, first.ClientName, s.ClientName)
		}
		opts.Timeout = max(opts.Timeout, s.Timeout)
		byAddr[s.Addr] = s
		nodes = append(nodes, redlock.Node{Addr: s.Addr})
	}
	at := func(addr string) Server {
		if s, ok := byAddr[addr]; ok {
			return s
		}
		return first // the caller has set Cluster, and this is another node of it
	}
	opts.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return at(addr).Dial(ctx, network, addr)
	}
	opts.Credentials = func(ctx context.Context, addr string) (string, string, error) {
		return at(addr).Credentials(ctx, addr)
	}
	return nodes, opts, nil
}

// options are those of a connection, whichever server it leads to.
func (s Server) options() *redlock.Options {
	return &redlock.Options{DB: s.DB, ClientName: s.ClientName, Timeout: s.Timeout, Dial: s.Dial, Credentials: s.Credentials}
}

// Failover makes one node of the servers that f leads to. They and the Sentinels are dialled as s is; its credentials are
// for the servers alone.
func Failover(s Server, f *redlock.Failover) ([]redlock.Node, *redlock.Options, error) {
	return []redlock.Node{{Failover: f}}, s.options(), nil
}

// Cluster makes a cluster of which some nodes are at addrs, all of whose nodes are reached as s is.
func Cluster(s Server, addrs []string) (nodes []redlock.Node, opts *redlock.Options, err error) {
	for _, addr := range addrs {
		nodes = append(nodes, redlock.Node{Addr: addr})
	}
	opts = s.options()
	opts.Cluster = true
	return nodes, opts, nil
}

// Fixed are credentials that do not change.
func Fixed(username, password string) func(context.Context, string) (string, string, error) {
	return func(context.Context, string) (string, string, error) { return username, password, nil }
}

// Refuse says that a setting cannot be carried over. Error texts show no more of a server than its address.
func Refuse(addr, setting, mend string) error {
	return fmt.Errorf("%w: the options for %s: %s cannot be carried over to locks; %s",
		driver.ErrInvalid, cmp.Or(addr, "a server without an address"), setting, mend)
}
