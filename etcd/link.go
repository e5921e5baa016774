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

// link follows the connection to one member. gRPC sends a request over an established connection for as long as that has not
// broken, and a firewall that forgets a connection, or a router that drops its packets, breaks nothing. gRPC's own keepalive
// waits for 10 s at least before it pings, and most leases are over by then.
//
// A link wraps the credentials because gRPC passes each new connection to them, with TLS or without. A dialer of our own
// would see the connections too, but would take away gRPC's support for HTTP proxies.
type link struct {
	credentials.TransportCredentials
	fresh func() (*tls.Config, error) // of the next connection; nil: without TLS
	last  *lastConn
}

// lastConn is shared by all clones of a link.
type lastConn struct{ atomic.Pointer[countedConn] }

// countedConn counts what comes from the member.
type countedConn struct {
	net.Conn
	reads  atomic.Int64
	silent atomic.Bool // dropSilent has closed it
	once   sync.Once
}

// errSilent ends the requests of a connection that was closed because nothing came over it.
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
		host = config.ServerName // in whose place etcd's package would take the member's host
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

// Close closes the connection once: gRPC closes again what dropSilent has closed.
func (c *countedConn) Close() (err error) {
	c.once.Do(func() { err = c.Conn.Close() })
	return err
}

// dropSilent returns a function that closes the present connection if nothing has come over it since. gRPC then makes
// another one at once, and repeats or fails what was sent over the old one.
func (l link) dropSilent() (drop func()) {
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
