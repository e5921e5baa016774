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

var zooKeeperLibraries = []library{
	{name: holdfastName, open: func(ctx context.Context, addrs []string, _ int) (client, error) {
		return newHoldfastClient(zookeeper.New(ctx, addrs, nil))
	}},
	// As in its documentation: all locks of a client share its session.
	{name: "zk.Lock", open: func(_ context.Context, addrs []string, _ int) (client, error) {
		c, _, err := zk.Connect(addrs, 10*time.Second, zk.WithLogger(silentLogger{}))
		return zkClient{c}, err
	}},
}

// startZooKeeper starts three members that do not sync to disk.
func startZooKeeper(ctx context.Context) (*service, error) {
	ensemble, err := zkproc.Start(ctx, 3)
	if err != nil {
		return nil, err
	}
	return &service{nodes: 3, addrs: ensemble.Addrs(), libraries: zooKeeperLibraries, stop: ensemble.Stop, idle: 1}, nil
}

type silentLogger struct{}

func (silentLogger) Printf(string, ...any) {}

type zkClient struct{ *zk.Conn }

// lock ignores its context while it waits, because zk.Lock takes none. A lock that is granted too late is
// released again.
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
