package locktest

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

var exclusionCases = []testCase{
	{"OneHolderAtATime", oneHolderAtATime},
	{"OneHolderUnderContention", oneHolderAmongMany},
	{"TokensRiseAcrossClients", tokensRise},
	{"TokenBlocksDoNotOverlap", tokenBlocksDoNotOverlap},
	{"TryNamesHolder", tryNamesHolder},
	{"AtMostOneTryWins", atMostOneTryWins},
	{"KeysAreIndependent", keysAreIndependent},
	{"ReleaseByOtherOwnerIsIgnored", otherOwnerReleases},
	{"ReleaseIsIdempotent", releaseIsIdempotent},
}

func oneHolderAtATime(b *bench) {
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", nil)
	if l.Key() != "k" || l.Owner() == "" {
		b.Errorf("lease has key %q and id %q", l.Key(), l.Owner())
	}
	b.checkHeld(other, "k")
	b.checkHeld(c, "k")
	b.release(l)
	b.checkFree(other, "k")
	b.checkCleared()
}

func oneHolderAmongMany(b *bench) {
	const clients, goroutines, rounds = 3, 3, 8
	g := &guardedSection{b: b}
	all := b.newClients(clients)
	runTogether(clients*goroutines, func(i int) {
		for range rounds {
			var l *holdfast.Lease
			err := b.retryLate(func() (err error) {
				l, err = all[i%clients].Acquire(b.boundedContext(), "k", &holdfast.AcquireOptions{TTL: b.long})
				return err
			})
			if err != nil {
				b.Errorf("Acquire() = %v", err)
				return
			}
			g.enter(l)
			time.Sleep(randomUpTo(500 * time.Microsecond)) // otherwise two holders would never meet
			g.leave(l)
			if err := l.Release(b.Context()); err != nil && !b.isStall(err) {
				b.Errorf("Release() = %v", err)
			}
		}
	})
	if n := g.count.Load(); n != clients*goroutines*rounds {
		b.Errorf("%d grants, want %d", n, clients*goroutines*rounds)
	}
	b.checkCleared()
}

func tokensRise(b *bench) {
	b.skipWithout(b.limits.Token, "Limits.Token")
	all := b.newClients(3)
	var last holdfast.Token
	ids := make(map[string]bool)
	for i := range 30 {
		l := b.acquire(all[i%3], "k", nil)
		if l.Token() <= last {
			b.Fatalf("token %d after %d", l.Token(), last)
		}
		if ids[l.Owner()] {
			b.Fatalf("id %q was used before", l.Owner())
		}
		last = l.Token()
		ids[l.Owner()] = true
		b.release(l)
	}
}

// The client gives one token of the block to each of its callers that uses the grant, so the next grant must
// begin after the block.
func tokenBlocksDoNotOverlap(b *bench) {
	drivers := []driver.Driver{b.openDriver(), b.openDriver()}
	defer drivers[0].Close()
	defer drivers[1].Close()
	var after int64
	for i := range 6 {
		g := b.takeGrant(drivers[i%2], "k", b.long)
		if !b.limits.Token && g.Token != 0 || b.limits.Token && g.Token <= 0 {
			b.Errorf("token %d, Limits.Token %v", g.Token, b.limits.Token)
		}
		if b.limits.Token && g.Token < after {
			b.Errorf("token %d after a block that ends before %d", g.Token, after)
		}
		after = g.Token + int64(max(g.Block, 1))
		b.checkNoError(b.retryLate(func() error { return drivers[i%2].Release(b.boundedContext(), g, 0) }))
	}
}

func tryNamesHolder(b *bench) {
	me := holdfast.Holder{Host: "elsewhere", PID: 4121, Program: "billing"}
	holder, other := b.clientOf(b.openDriver(), &holdfast.Options{Holder: me}), b.newClient()
	l := b.acquire(holder, "k", &holdfast.AcquireOptions{TTL: b.long, Note: "import, 50 %"})
	me.Note = "import, 50 %"
	var held *holdfast.HeldError
	b.eventually("the error names the holder", func() bool {
		_, err := b.tryAcquire(other, "k", nil)
		b.checkError(err, holdfast.ErrHeld)
		return errors.As(err, &held) && held.Holder == me
	})
	if held.Remaining <= 0 || held.Remaining > b.long {
		b.Errorf("HeldError.Remaining = %v, want up to %v", held.Remaining, b.long)
	}
	if age := time.Since(held.Since); held.Since.IsZero() || age < -time.Second || age > b.patience {
		b.Errorf("HeldError.Since = %v, want a moment ago", held.Since)
	}
	b.release(l)
}

// If several clients try at once, all may fail, but no two may win.
func atMostOneTryWins(b *bench) {
	all := b.newClients(4)
	for range 10 {
		leases := make([]*holdfast.Lease, len(all))
		runTogether(len(all), func(i int) {
			l, err := all[i].TryAcquire(b.Context(), "k", nil)
			if err == nil {
				leases[i] = l
			} else if !errors.Is(err, holdfast.ErrHeld) && !b.isStall(err) {
				b.Errorf("TryAcquire() = %v, want a lease or ErrHeld", err)
			}
		})
		won := 0
		for _, l := range leases {
			if l != nil {
				won++
				b.release(l)
			}
		}
		if won > 1 {
			b.Errorf("%d tries won", won)
		}
	}
	b.checkCleared()
}

func keysAreIndependent(b *bench) {
	all := b.newClients(2)
	var leases []*holdfast.Lease
	for i := range 40 {
		leases = append(leases, b.acquire(all[i%2], keyOf(i), nil))
	}
	for i := range leases {
		b.checkHeld(all[(i+1)%2], keyOf(i))
	}
	b.release(leases...)
	b.checkCleared()
}

func otherOwnerReleases(b *bench) {
	owner, thief := b.openDriver(), b.openDriver()
	defer owner.Close()
	defer thief.Close()
	g, other := b.takeGrant(owner, "k", b.long), b.takeGrant(thief, "other", b.long)
	// Neither the thief's own grant nor a forged one may affect the owner's lock.
	made := other
	made.Key = "k"
	for _, forged := range []driver.Grant{made, {Key: "k", Owner: "nobody.1", Token: g.Token, TTL: b.long}} {
		thief.Release(b.Context(), forged, 0) // the result does not matter
		err := b.retryLate(func() error {
			_, err := thief.Acquire(b.Context(), driver.Request{Key: "k", TTL: b.long, NoWait: true})
			return err
		})
		if !errors.Is(err, driver.ErrHeld) {
			b.Fatalf("after another owner's release: %v, want ErrHeld", err)
		}
	}
	if err := b.renewGrant(owner, g); err != nil {
		b.Errorf("the owner's renewal after another owner's release: %v", err)
	}
	if err := owner.Release(b.Context(), g, 0); err != nil && !b.isStall(err) {
		b.Errorf("Release() = %v", err)
	}
	// Calls with an old grant do not affect the next holder.
	next := b.takeGrant(thief, "k", b.long)
	owner.Release(b.Context(), g, 0)
	if r := owner.Renew(b.Context(), []driver.Grant{g}); r[0].Err == nil {
		b.Error("a released grant was renewed")
	}
	if err := b.renewGrant(thief, next); err != nil {
		b.Errorf("the next holder's renewal: %v", err)
	}
	if err := thief.Release(b.Context(), next, 0); err != nil && !b.isStall(err) {
		b.Errorf("Release() = %v", err)
	}
}

func releaseIsIdempotent(b *bench) {
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", nil)
	b.release(l)
	next := b.acquire(other, "k", nil)
	b.release(l) // nil again, and the next holder keeps its lock
	b.checkHeld(c, "k")
	b.release(next)
	b.checkCleared()
}
