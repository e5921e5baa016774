// Package redistest starts real redis-servers for tests and stops them when the test ends.
//
// On a machine without redis-server the test fails, with the way to install it: a skipped test proves nothing.
package redistest

import (
	"errors"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// Start starts a server that runs until the end of the test. nil options mean the defaults of redisproc.Start.
// With -short every function of this package skips the test.
func Start(t testing.TB, opts *redisproc.Options) *redisproc.Server {
	t.Helper()
	rig.NeedsServer(t)
	server, err := startServer(t, opts)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// StartN starts n servers with default options, concurrently.
func StartN(t testing.TB, n int) []*redisproc.Server {
	t.Helper()
	rig.NeedsServer(t)
	servers, errs := make([]*redisproc.Server, n), make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		starting.Go(func() { servers[i], errs[i] = startServer(t, nil) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return servers
}

// StartGroup starts a master, replicas and Sentinels that run until the end of the test. nil options mean the
// defaults of redisproc.StartGroup.
func StartGroup(t testing.TB, opts *redisproc.GroupOptions) *redisproc.Group {
	t.Helper()
	rig.NeedsServer(t)
	group, err := redisproc.StartGroup(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Stop(); err != nil {
			t.Error(err)
		}
	})
	return group
}

func startServer(t testing.TB, opts *redisproc.Options) (*redisproc.Server, error) {
	server, err := redisproc.Start(t.Context(), opts)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server, nil
}

// NewerServers names the servers that tools/servers fetches, in addition to the machine's own: Redis 8 and Valkey 8.
var NewerServers = []string{"redis8", "valkey8"}

// Program returns the program of a newer server, for redisproc.Options. If it was not fetched, the test is
// skipped, because not every system can fetch it, or fails if HOLDFAST_SERVERS_REQUIRED is set.
func Program(t testing.TB, name string) string {
	t.Helper()
	program, err := child.Fetched(name)
	switch {
	case errors.Is(err, child.ErrNotFetched) && !child.Required():
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return program
}

// Cluster starts a cluster that runs until the end of the test.
func Cluster(t testing.TB, opts *redisproc.ClusterOptions) *redisproc.Cluster {
	t.Helper()
	rig.NeedsServer(t)
	c, err := redisproc.StartCluster(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}
