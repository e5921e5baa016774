package etcd

import (
	"context"
	"net"
)

// NewDialled is New over connections of the test's own.
func NewDialled(ctx context.Context, members []string, opts *Options, dial func(context.Context, string) (net.Conn, error)) (*Driver, error) {
	o := *opts
	o.dial = dial
	return New(ctx, members, &o)
}
