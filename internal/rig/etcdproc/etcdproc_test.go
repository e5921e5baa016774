package etcdproc_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// The leader is cut off from the others, and later killed. If a message bypassed the mesh, the leader would
// continue to serve clients.
func TestClusterSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	c, err := etcdproc.StartMeshed(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	r := fixture.New(t)
	next := func(last *etcdproc.Member) (l *etcdproc.Member) {
		r.Eventually("another leads", func() bool { l = c.Leader(t.Context()); return l != nil && l != last })
		return l
	}
	first := next(nil)
	c.Mesh.Isolate(slices.Index(c.Members, first), true, true)
	second := next(first)
	r.Eventually("it serves no more", func() bool { return !first.Serves(t.Context()) })
	c.Mesh.Isolate(slices.Index(c.Members, first), false, false)
	r.Eventually("it serves again", func() bool { return first.Serves(t.Context()) })
	second.Kill()
	if conn, err := net.Dial("tcp", second.Addr); err == nil {
		conn.Close()
		t.Error("a killed member accepts connections")
	}
	next(second)
	if err := second.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestBadArgumentGivesServersReason(t *testing.T) {
	t.Parallel()
	c, err := etcdproc.Start(t.Context(), 1, "--no-such-flag")
	if err == nil {
		c.Stop()
		t.Fatal("accepted")
	}
	if !strings.Contains(err.Error(), "no-such-flag") || errors.Is(err, etcdproc.ErrNotInstalled) {
		t.Errorf("error %v, want the server's reason", err)
	}
}
