//go:build unix

package zkproc_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
)

func TestAnEnsembleHasALeaderAndOutlivesIt(t *testing.T) {
	t.Parallel()
	e, err := zkproc.Start(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop() })
	first := e.Leader()
	if first == nil {
		t.Fatal("no leader")
	}
	first.Kill()
	if conn, err := net.Dial("tcp", first.Addr); err == nil {
		conn.Close()
		t.Error("a killed member accepts connections")
	}
	for next := first; next == first || next == nil; {
		next = e.Leader()
	}
	if err := first.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// If a message took another way than the mesh, the member would go on serving clients, and the test would not end.
func TestALeaderThatIsCutOffIsReplaced(t *testing.T) {
	t.Parallel()
	e, err := zkproc.StartMeshed(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop() })
	first := e.Leader()
	e.Mesh.Isolate(slices.Index(e.Members, first), true, true)
	for next := first; next == first || next == nil; {
		next = e.Leader()
	}
	for first.Serves() {
		time.Sleep(10 * time.Millisecond)
	}
	e.Mesh.Isolate(slices.Index(e.Members, first), false, false)
	for !first.Serves() {
		time.Sleep(10 * time.Millisecond)
	}
}

func TestABadSettingIsRefusedWithTheServersReason(t *testing.T) {
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
