package holdfast_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// slow is how long the hooks of these tests take.
const slow = 200 * time.Millisecond

func TestAHookHoldsUpNoOtherLoss(t *testing.T) {
	hooks := holdfast.Hooks{Lost: func(holdfast.LostEvent) { pass(slow) }}
	inWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		var leases []*holdfast.Lease
		for i := range 10 {
			leases = append(leases, b.acquire(b.client, fmt.Sprint(i), &holdfast.AcquireOptions{TTL: time.Second, NoRenew: true}))
		}
		for _, l := range leases {
			<-l.Context().Done()
			if late := time.Since(l.Deadline()); late > 0 {
				t.Errorf("context of %q ended %v after the deadline", l.Key(), late)
			}
		}
	})
}

func TestAHookHoldsUpNoRenewal(t *testing.T) {
	hooks := holdfast.Hooks{Renewed: func(holdfast.RenewedEvent) { pass(slow) }}
	inWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		var leases []*holdfast.Lease
		for i := range 10 {
			leases = append(leases, b.acquire(b.client, fmt.Sprint(i), &holdfast.AcquireOptions{TTL: time.Second}))
		}
		pass(10 * time.Second)
		for _, l := range leases {
			if err := l.Context().Err(); err != nil {
				t.Errorf("lease on %q ended: %v", l.Key(), err)
			}
			b.release(l)
		}
	})
}
