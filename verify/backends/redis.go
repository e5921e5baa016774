package main

import (
	"context"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redlock"
)

// startRedis starts so many servers, which keep nothing on disk.
func startRedis(ctx context.Context, name string, count int) (*service, error) {
	var servers []*redisproc.Server
	var nodes []redlock.Node
	s := &service{name: name, stop: func() {
		for _, server := range servers {
			server.Stop()
		}
	}}
	for range count {
		server, err := redisproc.Start(ctx, nil)
		if err != nil {
			s.stop()
			return nil, err
		}
		servers = append(servers, server)
		nodes = append(nodes, redlock.Node{Addr: server.Addr()})
	}
	s.peers = []peer{{"holdfast", func(ctx context.Context) (client, error) {
		return overDriver(redlock.New(ctx, nodes, &redlock.Options{NoQuarantine: true}))
	}}}
	s.written = func(context.Context) (int64, error) { return 0, nil }
	return s, nil
}
