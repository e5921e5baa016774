package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// A waiter does not count itself, whether it is in the queue already or not.
func TestHeldErrorCountsOtherWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		holder := b.acquire(b.client, "k", nil)
		for before := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // long enough to be queued
			_, err := b.newPeer().Acquire(ctx, "k", nil)
			cancel()
			if held, ok := errors.AsType[*holdfast.HeldError](err); !ok || held.Waiters != before {
				t.Errorf("%d waiters ahead: %v, %+v", before, err, held)
			}
			waiter := b.newPeer()
			go func() {
				if l, err := waiter.Acquire(t.Context(), "k", nil); err == nil {
					l.Release(context.Background())
				}
			}()
			time.Sleep(time.Second)
		}
		b.release(holder)
		time.Sleep(time.Second)
	})
}
