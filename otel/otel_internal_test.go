package otel

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// For a lease without a trace of its caller, the span of its acquisition is stored until the lease ends, in
// whatever way.
func TestStateOfOwnerEndsWithLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		telemetry, err := New(&Options{TracerProvider: sdktrace.NewTracerProvider()})
		if err != nil {
			t.Fatal(err)
		}
		defer telemetry.Close()
		client, err := holdfast.New(memory.New(1), &holdfast.Options{Hooks: telemetry.Hooks()})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		remembered := func() int {
			time.Sleep(10 * time.Millisecond) // the hooks have received the events by then
			synctest.Wait()
			telemetry.mu.Lock()
			defer telemetry.mu.Unlock()
			return len(telemetry.roots)
		}
		for name, end := range map[string]func(*holdfast.Lease){
			"released": func(l *holdfast.Lease) { l.Release(t.Context()) },
			"lost":     func(l *holdfast.Lease) { <-l.Context().Done() },
		} {
			l, err := client.Acquire(context.Background(), name, &holdfast.AcquireOptions{TTL: time.Second, NoRenew: true})
			if err != nil {
				t.Fatal(err)
			}
			if n := remembered(); n != 1 {
				t.Errorf("held lease: %d owners are remembered, want 1", n)
			}
			end(l)
			if n := remembered(); n != 0 {
				t.Errorf("lease %s: %d owners are remembered", name, n)
			}
		}
	})
}
