//go:build unix

package etcdproc_test

import (
	"errors"
	"net"
	"strings"
	"testing"

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
