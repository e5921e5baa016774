// Package redistest starts real redis-servers for tests and stops them when the test ends.
//
// A machine without redis-server fails the test, and the failure says how to install it: a test that skips itself proves
// nothing.
package redistest

import (
	"errors"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// Start starts a server for the length of the test. Nil options are those of redisproc.Start.
func Start(t testing.TB, opts *redisproc.Options) *redisproc.Server {
	t.Helper()
	server, err := start(t, opts)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// StartN starts n servers with default options, all at once.
func StartN(t testing.TB, n int) []*redisproc.Server {
	t.Helper()
	servers, errs := make([]*redisproc.Server, n), make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		starting.Go(func() { servers[i], errs[i] = start(t, nil) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return servers
}

func start(t testing.TB, opts *redisproc.Options) (*redisproc.Server, error) {
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
