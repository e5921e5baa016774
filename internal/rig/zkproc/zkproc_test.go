package zkproc_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
)

// The leader is cut off from the others, and later killed. If a message bypassed the mesh, the leader would
// continue to serve clients.
func TestEnsembleSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	e, err := zkproc.StartMeshed(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop() })
	r := fixture.New(t)
	next := func(last *zkproc.Member) (l *zkproc.Member) {
		r.Eventually("another leads", func() bool { l = e.Leader(); return l != nil && l != last })
		return l
	}
	first := next(nil)
	e.Mesh.Isolate(slices.Index(e.Members, first), true, true)
	second := next(first)
	r.Eventually("it serves no more", func() bool { return !first.Serves() })
	e.Mesh.Isolate(slices.Index(e.Members, first), false, false)
	r.Eventually("it serves again", func() bool { return first.Serves() })
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
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestBadSettingGivesServersReason(t *testing.T) {
	t.Parallel()
	e, err := zkproc.Start(t.Context(), 1, "tickTime=never")
	if err == nil {
		e.Stop()
		t.Fatal("accepted")
	}
	if !strings.Contains(err.Error(), "never") || errors.Is(err, zkproc.ErrNotInstalled) {
		t.Errorf("error %v, want the server's reason", err)
	}
}
