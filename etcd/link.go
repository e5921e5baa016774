package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// link tracks the connection to one member. gRPC keeps using an established connection until it breaks, and a
// firewall that drops its packets silently breaks nothing. gRPC's own keepalive waits at least 10 s before it
// pings, longer than most leases.
//
// A link wraps the credentials because gRPC passes each new connection to them, with TLS or without. A custom
// dialer would see the connections too, but would turn off gRPC's support for HTTP proxies.
type link struct {
	credentials.TransportCredentials
	fresh func() (*tls.Config, error) // TLS settings for the next connection; nil: no TLS
	last  *lastConn
}

// lastConn holds the last connection. All clones of a link share it.
type lastConn struct{ atomic.Pointer[countedConn] }

// countedConn counts reads from the member.
type countedConn struct {
	net.Conn
	reads  atomic.Int64
	silent atomic.Bool // closeIfSilent has closed it
	once   sync.Once
}

// errSilent ends the requests of a connection that was closed because nothing arrived over it.
var errSilent = errors.New("no answer in time, and nothing else comes over the connection")

func newLink(config *tls.Config, fresh func() (*tls.Config, error)) link {
	if config == nil {
		return link{insecure.NewCredentials(), nil, new(lastConn)}
	}
	return link{credentials.NewTLS(config), fresh, new(lastConn)}
}

// ClientHandshake implements credentials.TransportCredentials.
func (l link) ClientHandshake(ctx context.Context, host string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := &countedConn{Conn: raw}
	l.last.Store(conn)
	if l.fresh == nil {
		return l.TransportCredentials.ClientHandshake(ctx, host, conn)
	}
	config, err := l.fresh()
	if err != nil {
		return nil, nil, err
	}
	if config.ServerName != "" {
		host = config.ServerName // etcd's client would use the member's host instead
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, host, conn)
}

// Clone implements credentials.TransportCredentials.
func (l link) Clone() credentials.TransportCredentials {
	l.TransportCredentials = l.TransportCredentials.Clone()
	return l
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.reads.Add(1)
	}
	if err != nil && c.silent.Load() {
		err = errSilent
	}
	return n, err
}

// Close closes the connection once: gRPC also closes connections that closeIfSilent has closed.
func (c *countedConn) Close() (err error) {
	c.once.Do(func() { err = c.Conn.Close() })
	return err
}

// closeIfSilent returns a function that closes the current connection if nothing has arrived over it since. gRPC
// then opens another one at once, and repeats or fails the requests of the old one.
func (l link) closeIfSilent() (drop func()) {
	conn := l.last.Load()
	if conn == nil {
		return func() {}
	}
	before := conn.reads.Load()
	return func() {
		if conn.reads.Load() == before {
			conn.silent.Store(true)
			conn.Close()
		}
	}
}
