package etcd

import (
	"context"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// NewDialled is New with the test's own way to dial.
func NewDialled(ctx context.Context, members []string, opts *Options, dial func(context.Context, string) (net.Conn, error)) (*Driver, error) {
	o := *opts
	o.dial = dial
	return New(ctx, members, &o)
}

// Call calls fn with one member after another.
func (d *Driver) Call(ctx context.Context, limit time.Duration, fn func(context.Context) error) error {
	return d.callAny(ctx, limit, func(ctx context.Context, _ *clientv3.Client) error { return fn(ctx) })
}
