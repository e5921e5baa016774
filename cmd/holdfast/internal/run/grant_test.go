//go:build unix

package run

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// --hold-at-least does not apply, because no command was run.
func TestSignalDuringGrantReleasesLease(t *testing.T) {
	t.Parallel()
	drv := memory.New(1)
	other, err := holdfast.New(drv.Peer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	signals := make(chan os.Signal)
	s := &session{
		plan: &Plan{Names: []string{"job"}, TTL: 30 * time.Second, HoldAtLeast: 20 * time.Second, OnLost: Term},
		runner: &Runner{
			Take: Take,
			Open: func(context.Context, func(holdfast.RenewedEvent)) (*holdfast.Client, error) {
				return holdfast.New(drv, nil)
			},
			Waits: func(*holdfast.Client) func() { return func() { signals <- unix.SIGTERM } }, // once the lease is granted
		},
		log: slog.New(slog.DiscardHandler), signals: signals,
	}
	err = s.acquireLeases()
	defer s.client.Close()
	if !isInterrupted(err) || s.leases != nil {
		t.Errorf("acquire() = %v, with a lease: %v; want the interruption alone", err, s.leases != nil)
	}
	l, err := other.TryAcquire(t.Context(), "job", nil)
	if err != nil {
		t.Fatalf("another machine: %v, want the lock", err)
	}
	l.Release(t.Context())
}
