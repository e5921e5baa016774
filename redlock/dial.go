package redlock

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// dial opens a connection to a node and checks the node over it.
func (g *gate) dial(ctx context.Context, n *node) (*resp.Conn, report, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timeout)
	defer cancel()
	addr, err := g.locate(ctx, n)
	if err != nil {
		return nil, report{}, err
	}
	l, err := g.dialer.Connect(ctx, addr)
	if err != nil {
		return nil, report{}, n.at(addr, server.Mend(err, g.opts.TLS != nil))
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
			err = fmt.Errorf("no answer before the timeout: %w", ctx.Err())
		}
		return nil, rep, n.at(addr, server.Mend(err, secure))
	}
	return l, rep, nil
}

// login logs in to a server for a node, and refuses one of another kind than the node is.
func (g *gate) login(ctx context.Context, n *node, addr string, l *resp.Conn) (hello map[string]string, err error) {
	user, pass, err := n.credentials(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err) // their source may be down for a while
	}
	hello, err = g.dialer.Login(l, user, pass)
	if hello != nil {
		if err := g.opts.strange(hello["mode"], "", nil); err != nil {
			return nil, err // it says more than the missing fields would
		}
	}
	return hello, err
}
