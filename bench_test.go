package holdfast_test

import (
	"context"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// benchClient returns a client of one node in this process.
func benchClient(b *testing.B) *holdfast.Client {
	b.Helper()
	c := openClient(b, memory.New(1), nil)
	b.ReportAllocs()
	return c
}

func BenchmarkAcquireRelease(b *testing.B) {
	c := benchClient(b)
	for b.Loop() {
		l, err := c.Acquire(b.Context(), "k", nil)
		if err == nil {
			err = l.Release(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAcquireReleaseSlot(b *testing.B) {
	c := benchClient(b)
	for b.Loop() {
		l, err := c.Semaphore("k", 4).Acquire(b.Context(), nil)
		if err == nil {
			err = l.Release(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkThousandWaiters measures one round: a thousand callers in this process wait for the lock, and each
// gets it once.
func BenchmarkThousandWaiters(b *testing.B) {
	c := benchClient(b)
	for b.Loop() {
		first, err := c.Acquire(b.Context(), "k", nil)
		if err != nil {
			b.Fatal(err)
		}
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				if err := c.Do(b.Context(), "k", nil, doNoWork); err != nil {
					b.Error(err)
				}
			})
		}
		for waiters := 0; waiters < 1000; {
			st, err := c.Inspect(b.Context(), "k")
			if err != nil {
				b.Fatal(err)
			}
			waiters = st.Waiters
		}
		first.Release(b.Context())
		all.Wait()
	}
}

func doNoWork(context.Context, *holdfast.Lease) error { return nil }
