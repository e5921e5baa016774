//go:build unix

package etcdproc_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
)

func TestAClusterHasALeaderAndOutlivesIt(t *testing.T) {
	t.Parallel()
	c, err := etcdproc.Start(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	first := c.Leader(t.Context())
	if first == nil {
		t.Fatal("no leader")
	}
	first.Kill()
	if conn, err := net.Dial("tcp", first.Addr); err == nil {
		conn.Close()
		t.Error("a killed member accepts connections")
	}
	for next := first; next == first || next == nil; {
		next = c.Leader(t.Context())
	}
	if err := first.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// If a message took another way than the mesh, the member would go on serving clients, and the test would not end.
func TestALeaderThatIsCutOffIsReplaced(t *testing.T) {
	t.Parallel()
	c, err := etcdproc.StartMeshed(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	first := c.Leader(t.Context())
	c.Mesh.Isolate(slices.Index(c.Members, first), true, true)
	for next := first; next == first || next == nil; {
		next = c.Leader(t.Context())
	}
	for first.Serves(t.Context()) {
		time.Sleep(10 * time.Millisecond)
	}
	c.Mesh.Isolate(slices.Index(c.Members, first), false, false)
	for !first.Serves(t.Context()) {
		time.Sleep(10 * time.Millisecond)
	}
}

func TestABadArgumentIsRefusedWithTheServersReason(t *testing.T) {
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
