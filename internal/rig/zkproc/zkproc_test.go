//go:build unix

package zkproc_test

import (
	"errors"
	"net"
	"strings"
	"testing"

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
