package locktest

import (
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast"
)

var several = []testCase{
	{"AllAreTakenOrNone", allOrNone},
	{"SetsInAnyOrderDoNotDeadlock", setsInAnyOrder},
}

func allOrNone(b *bench) {
	c, other := b.client(), b.client()
	keys := []string{"k", "another", "k2"}
	l := b.acquire(other, "k", nil)
	var err error
	b.fine(b.insist(func() error {
		if _, err = c.TryAcquireAll(b.Context(), keys, nil); b.stalled(err) {
			return err
		}
		return nil
	}))
	b.wants(err, holdfast.ErrHeld)
	b.isFree(other, "another")
	b.isFree(other, "k2")
	done := make(chan *holdfast.Leases)
	go func() { done <- b.acquireAll(c, keys) }()
	b.awaitWait(other, "k", 1)
	b.isHeld(other, "another")
	b.release(l)
	all := <-done
	if all == nil {
		return
	}
	for _, key := range keys {
		b.isHeld(other, key)
	}
	if err := all.Release(b.Context()); err != nil && !b.stalled(err) {
		b.Errorf("Release() = %v", err)
	}
	b.cleared()
}

// acquireAll returns nil where it fails.
func (b *bench) acquireAll(c *holdfast.Client, keys []string) (all *holdfast.Leases) {
	err := b.insist(func() (err error) {
		all, err = c.AcquireAll(b.within(), keys, &holdfast.AcquireOptions{TTL: b.long})
		return err
	})
	if err != nil {
		b.Errorf("AcquireAll(%q) = %v", keys, err)
	}
	return all
}

// setsInAnyOrder has clients take sets of locks that overlap, and name them in any order.
func setsInAnyOrder(b *bench) {
	const clients, names = 4, 6
	var locks [names]guarded
	for i := range locks {
		locks[i].b = b
	}
	all := b.clients(clients)
	together(clients, func(i int) {
		for range b.rounds(60, 12) {
			set := rand.Perm(names)[:1+rand.N(4)]
			var keys []string
			for _, n := range set {
				keys = append(keys, key(n))
			}
			leases := b.acquireAll(all[i], keys)
			if leases == nil {
				return
			}
			for _, n := range set {
				locks[n].enter(leases.Lease(key(n)))
			}
			time.Sleep(upTo(2 * time.Millisecond)) // or two holders would never meet
			for _, n := range set {
				locks[n].leave()
			}
			if err := leases.Release(b.Context()); err != nil && !b.stalled(err) {
				b.Errorf("Release() = %v", err)
			}
		}
	})
	b.cleared()
}
