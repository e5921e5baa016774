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
	addr, err := n.place.Locate(ctx)
	if err != nil {
		return nil, report{}, err
	}
	l, err := n.net.Connect(ctx, addr)
	if err != nil {
		return nil, report{}, n.place.At(addr, server.Mend(err, g.opts.TLS != nil))
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
		return nil, rep, n.place.At(addr, server.Mend(err, secure))
	}
	return l, rep, nil
}
