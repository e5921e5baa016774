package main

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
)

var etcdLibraries = []library{
	{name: holdfastName, open: func(ctx context.Context, addrs []string, _ int) (client, error) {
		return newHoldfastClient(etcd.New(ctx, addrs, nil))
	}},
	// As in its documentation, with a session per lock, so that the loss of one lock does not end the others.
	{name: "concurrency.Mutex", open: func(_ context.Context, addrs []string, _ int) (client, error) {
		c, err := openEtcd(addrs)
		return mutexClient{c}, err
	}},
	// As in most programs, with one session for all locks of a client. If the session ends, all its locks are lost.
	{name: "Mutex, one session", open: func(_ context.Context, addrs []string, _ int) (client, error) {
		c, err := openEtcd(addrs)
		if err != nil {
			return nil, err
		}
		s, err := concurrency.NewSession(c, concurrency.WithTTL(30))
		return sharedClient{c, s}, err
	}},
}

// startEtcd starts three members with default disk writes.
func startEtcd(ctx context.Context) (*service, error) {
	cluster, err := etcdproc.Start(ctx, 3)
	if err != nil {
		return nil, err
	}
	return &service{nodes: 3, addrs: cluster.Addrs(), libraries: etcdLibraries, stop: cluster.Stop, idle: 1}, nil
}

func openEtcd(addrs []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
}

type mutexClient struct{ *clientv3.Client }

func (c mutexClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	s, err := concurrency.NewSession(c.Client, concurrency.WithTTL(30))
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, name)
	if err := m.Lock(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := m.Unlock(ctx); err != nil {
			return err
		}
		return s.Close()
	}, nil
}

func (c mutexClient) close() { c.Close() }

type sharedClient struct {
	*clientv3.Client
	session *concurrency.Session
}

func (c sharedClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	m := concurrency.NewMutex(c.session, name)
	return m.Unlock, m.Lock(ctx)
}

func (c sharedClient) close() {
	c.session.Close()
	c.Close()
}
