package zookeeper_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// A connection silently drops all data. The driver replaces it in time for a renewal, whenever it dies.
func TestLeaseSurvivesDeadConnection(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, 40 * time.Second} {
		t.Run(fmt.Sprint(ttl), func(t *testing.T) {
			runInBubble(t, func(t *testing.T, r *rig) {
				holder, waiter := r.Client(r.newDirectDriver()), r.Client(r.newDirectDriver())
				for phase := range time.Duration(20) {
					l := r.Acquire(holder, "k", ttl)
					next := fixture.RunAsync(func() error {
						l, err := waiter.Acquire(r.Context(), "k", &holdfast.AcquireOptions{TTL: ttl})
						if err == nil {
							err = l.Release(r.Context())
						}
						return err
					})
					time.Sleep(ttl + ttl*phase/20)
					r.fake.swallowTraffic()
					died := time.Now()
					r.AwaitRenewals(l, 1)
					if left := time.Until(died.Add(ttl)); left < ttl/10 {
						t.Errorf("phase %d: the renewal came %v before the end of the TTL", phase, left)
					}
					r.NoError(context.Cause(l.Context()))
					r.Release(l)
					r.NoError(<-next)
				}
			})
		})
	}
}

// A caller waits for two requests at most: one to each session that has a connection.
func TestDeadConnectionDoesNotDelayCallers(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDirectDriver()
		r.Acquire(r.Client(d), "k", longTTL)
		for range 10 {
			time.Sleep(4700 * time.Millisecond)
			r.fake.swallowTraffic()
			begun := time.Now()
			st, err := d.Inspect(r.WaitContext(), "k")
			if took := time.Since(begun); err != nil || !st.Held || took > 4*time.Second {
				t.Errorf("Inspect() after %v: %+v, %v", took, st, err)
			}
		}
	})
}

// The restored members reject a client that has seen a later state.
func TestRestoredEnsembleServesOldClients(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		const ttl = 10 * time.Second
		l := r.Acquire(r.Client(r.newDirectDriver()), "k", ttl)
		waiter := r.Client(r.newDirectDriver())
		next := fixture.RunAsync(func() error {
			l, err := waiter.Acquire(r.Context(), "k", &holdfast.AcquireOptions{TTL: ttl})
			if err == nil {
				err = l.Release(r.Context())
			}
			return err
		})
		time.Sleep(5 * time.Second)
		r.fake.restore()
		<-l.Context().Done()
		select {
		case err := <-next:
			r.NoError(err)
		case <-time.After(3 * ttl):
			t.Fatal("the waiter is still rejected")
		}
	})
}
