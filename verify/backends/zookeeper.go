package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// startZooKeeper starts three members, which do not wait for the disk.
func startZooKeeper(ctx context.Context, name string) (*service, error) {
	ensemble, err := zkproc.Start(ctx, 3)
	if err != nil {
		return nil, err
	}
	return &service{
		name: name,
		peers: []peer{
			{"holdfast", func(ctx context.Context) (client, error) {
				return overDriver(zookeeper.New(ctx, ensemble.Addrs(), nil))
			}},
			// As its documentation has it: all locks of a client share its session.
			{"zk.Lock", func(context.Context) (client, error) {
				c, _, err := zk.Connect(ensemble.Addrs(), 10*time.Second, zk.WithLogger(silent{}))
				return zkClient{c}, err
			}},
		},
		written: func(context.Context) (int64, error) { return 0, nil },
		stop:    func() { ensemble.Stop() },
	}, nil
}

type silent struct{}

func (silent) Printf(string, ...any) {}

type zkClient struct{ *zk.Conn }

// lock cannot give up: zk.Lock takes no context. So one that comes too late is freed again.
func (c zkClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	l := zk.NewLock(c.Conn, "/zk/"+strings.ReplaceAll(name, "/", "-"), zk.WorldACL(zk.PermAll))
	if err := l.Lock(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errors.Join(ctx.Err(), l.Unlock())
	}
	return func(context.Context) error { return l.Unlock() }, nil
}

func (c zkClient) close() { c.Conn.Close() }
