package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// dial opens a connection to a node and checks the node over it.
func (g *gate) dial(ctx context.Context, n *node) (*resp.Conn, report, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout)
	defer cancel()
	addr, err := n.place.Locate(ctx)
	if err != nil {
		return nil, report{}, err
	}
	l, err := n.net.Connect(ctx, addr)
	if err != nil {
		return nil, report{}, n.place.At(addr, n.mend(addr, err, g.opts.TLS != nil))
	}
	unblock := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
	rep, err := g.check(ctx, n, addr, l)
	if !unblock() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_, secure := l.Conn.(*tls.Conn) // Dial may have made it so
		l.Close()
		g.leave(n.addr)
		if ctx.Err() != nil {
			err = server.Late(ctx)
		}
		return nil, rep, n.place.At(addr, n.mend(addr, err, secure))
	}
	return l, rep, nil
}

// mend is server.Mend for a connection to addr. A server that has answered speaks what this client does: that it resets a
// connection later has another reason.
func (n *node) mend(addr string, err error, secure bool) error {
	n.mu.Lock()
	known := n.server == addr
	n.mu.Unlock()
	if known && !secure && errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return server.Mend(err, secure)
}
