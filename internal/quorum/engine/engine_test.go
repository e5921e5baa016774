package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// manualNode is a node whose requests wait until the test answers them.
type manualNode struct {
	name string
	in   chan *Request
	door chan struct{} // Send blocks while it is empty
}

func (d *manualNode) Name() string { return d.name }
func (d *manualNode) Subscribe()   {}

func (d *manualNode) Send(r *Request) {
	d.in <- r
	<-d.door
	d.door <- struct{}{}
}

// nextRequest returns the node's next request, which must be of that kind.
func (d *manualNode) nextRequest(t *testing.T, kind quorum.AskKind) *Request {
	t.Helper()
	r := <-d.in
	if r.Kind != kind {
		t.Fatalf("node %s received a request of kind %d, want %d", d.name, r.Kind, kind)
	}
	return r
}

// nextAcquire returns the node's next acquire. Before it, it answers requests that free the lock.
func (d *manualNode) nextAcquire(t *testing.T) *Request {
	t.Helper()
	for r := range d.in {
		switch r.Kind {
		case quorum.AskAcquire:
			return r
		case quorum.AskRelease, quorum.AskGiveBack:
			r.Freed()
		default:
			t.Fatalf("node %s received a request of kind %d", d.name, r.Kind)
		}
	}
	return nil
}

// runWithManualNodes runs fn with an engine over three manual nodes, in virtual time.
func runWithManualNodes(t *testing.T, fn func(t *testing.T, e *Engine, manual []*manualNode)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var manual []*manualNode
		var nodes []Node
		for _, name := range []string{"a", "b", "c"} {
			d := &manualNode{name: name, in: make(chan *Request, 100), door: make(chan struct{}, 1)}
			d.door <- struct{}{}
			manual, nodes = append(manual, d), append(nodes, d)
		}
		fn(t, New(Config{Nodes: nodes}), manual)
	})
}

// acquireAll acquires k from all three nodes.
func acquireAll(t *testing.T, e *Engine, manual []*manualNode) driver.Grant {
	t.Helper()
	go func() {
		for _, d := range manual {
			(<-d.in).Granted(100)
		}
	}()
	g, err := e.Acquire(t.Context(), driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return g
}

// startRenewal starts a renewal and returns a channel for its result.
func startRenewal(t *testing.T, e *Engine, g driver.Grant) <-chan error {
	out := make(chan error, 1)
	go func() { out <- e.Renew(t.Context(), []driver.Grant{g})[0].Err }()
	synctest.Wait()
	return out
}

// receiveSoon returns the next value from c, and fails the test if none comes in time.
func receiveSoon(t *testing.T, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(time.Minute):
		panic("no answer within a minute") // otherwise the bubble would wait for the hanging goroutine
	}
}

// loseUnreported acquires k and loses it while no call waits for an outcome.
func loseUnreported(t *testing.T, e *Engine, manual []*manualNode) driver.Grant {
	t.Helper()
	g := acquireAll(t, e, manual)
	out := startRenewal(t, e, g)
	var late []*Request
	for _, d := range manual {
		late = append(late, d.nextRequest(t, quorum.AskRenew))
	}
	if err := receiveSoon(t, out); !errors.Is(err, driver.ErrUnavailable) {
		t.Fatalf("Renew without answers = %v, want ErrUnavailable", err)
	}
	time.Sleep(10 * time.Second)
	late[0].Kept(0) // after the end of trust
	for _, d := range manual {
		d.nextRequest(t, quorum.AskRelease).Freed()
	}
	return g
}

// A renewal without an outcome would block the renewal of every other lease of its
// batch.
func TestRenewalReportsUnreportedLoss(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		g := loseUnreported(t, e, manual)
		if err := receiveSoon(t, startRenewal(t, e, g)); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Renew = %v, want ErrLost", err)
		}
	})
}

func TestReleaseOfUnreportedLossSucceeds(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		g := loseUnreported(t, e, manual)
		if err := e.Release(t.Context(), g, 0); err != nil {
			t.Errorf("Release = %v", err)
		}
	})
}

func TestRenewalDuringReleaseEnds(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		g := acquireAll(t, e, manual)
		released := make(chan error, 1)
		go func() { released <- e.Release(t.Context(), g, 0) }()
		synctest.Wait()
		if err := receiveSoon(t, startRenewal(t, e, g)); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Renew = %v, want ErrLost", err)
		}
		for _, d := range manual {
			d.nextRequest(t, quorum.AskRelease).Freed()
		}
		if err := receiveSoon(t, released); err != nil {
			t.Errorf("Release = %v", err)
		}
	})
}

// Events that arrive while the caller leaves may give the claim a new id. A caller that gives up leaves
// nothing behind, and returns only when its release has been sent to each node, because Close may cut the
// connections next.
func TestCancelledClaimIsForgotten(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := e.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second})
			ended <- err
		}()
		for _, d := range manual {
			d.nextRequest(t, quorum.AskAcquire).Denied(int64(time.Second), "x", 0)
		}
		<-manual[2].door // a caller that asks again stops here
		var again []*Request
		for _, d := range manual {
			again = append(again, d.nextRequest(t, quorum.AskAcquire))
		}
		again[0].Granted(100)
		again[1].Denied(int64(time.Second), "x", 0)
		again[2].Denied(int64(time.Second), "x", 0) // no quorum: the claim continues under a new id
		cancel()
		synctest.Wait()
		if len(ended) > 0 {
			t.Error("Acquire returned before its release was sent to the nodes")
		}
		manual[2].door <- struct{}{}
		if err := receiveSoon(t, ended); !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrHeld) {
			t.Errorf("Acquire = %v, want context.Canceled and ErrHeld", err)
		}
		if n := len(e.allClaims()); n != 0 {
			t.Errorf("%d claims are left", n)
		}
	})
}

// The wake-up was written before the claim took a new id, and was read after that.
func TestWakeUpForOldIDIsIgnored(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		for i := range manual {
			e.SetSubscribed(i, true)
		}
		won := make(chan driver.Grant, 1)
		go func() {
			g, err := e.Acquire(t.Context(), driver.Request{Key: "k", TTL: 10 * time.Second, WillRenew: true})
			if err != nil {
				t.Error(err)
			}
			won <- g
		}()
		// deny denies the lock on all nodes, and returns the id that asked.
		deny := func() (owner string) {
			for _, d := range manual {
				r := d.nextRequest(t, quorum.AskAcquire)
				owner = r.Owner
				r.Denied(int64(time.Minute), "x", 0)
			}
			synctest.Wait()
			return owner
		}
		old := deny()
		c := e.findClaim(old)
		c.post(eventAnswer(quorum.Event{Kind: quorum.Failed, Of: quorum.AskGiveBack})) // ends the id
		for _, d := range manual {
			d.nextRequest(t, quorum.AskRelease)
		}
		fresh := deny()
		for i := range manual {
			c.post(answer{Reply: quorum.Reply{Event: quorum.Event{Kind: quorum.Woken, Node: i, Token: 100, TTL: int64(time.Second)}}, woken: old})
		}
		if fresh == old || len(won) > 0 {
			t.Fatalf("a wake-up for %s was used for %s", old, fresh)
		}
		for i := range manual[:2] {
			e.Wake(i, quorum.Wake{Owner: fresh, Base: 132, Left: 1000})
		}
		if g := <-won; g.Token != 132 || g.Owner != fresh {
			t.Errorf("%s holds with token %d", g.Owner, g.Token)
		}
	})
}

// The timer of a claim ends its round in the lane, while the lock may already be held and in its first
// renewal.
func TestClaimTimerDoesNotEndRenewal(t *testing.T) {
	t.Parallel()
	for name, grants := range map[string]int{"all have granted": 3, "a quorum has granted": 2} {
		t.Run(name, func(t *testing.T) {
			runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
				begun := time.Now()
				won := make(chan driver.Grant, 1)
				go func() {
					g, err := e.Acquire(t.Context(), driver.Request{Key: "k", TTL: 10 * time.Second})
					if err != nil {
						t.Error(err)
					}
					won <- g
				}()
				for i, d := range manual {
					if r := d.nextRequest(t, quorum.AskAcquire); i < grants {
						r.Granted(100)
					}
				}
				g := <-won
				for _, rings := range []int64{int64(pace.OverdueTime()), quorum.RequestTimeout(int64(g.TTL))} {
					time.Sleep(time.Until(begun.Add(time.Duration(rings) - time.Millisecond)))
					out := startRenewal(t, e, g)
					time.Sleep(2 * time.Millisecond)
					for i, d := range manual {
						if r := d.nextRequest(t, quorum.AskRenew); i < 2 {
							r.Kept(0)
						}
					}
					if err := receiveSoon(t, out); err != nil {
						t.Errorf("Renew = %v, %v after the claim began", err, time.Duration(rings))
					}
				}
			})
		})
	}
}

// A detached lease expires, and another client may adopt it before.
func TestDetachedLeaseIsNotRenewed(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		g := acquireAll(t, e, manual)
		out := startRenewal(t, e, g)
		manual[2].nextRequest(t, quorum.AskRenew).NotOwner()
		manual[0].nextRequest(t, quorum.AskRenew).Kept(0)
		manual[1].nextRequest(t, quorum.AskRenew).Kept(0)
		if err := receiveSoon(t, out); err != nil {
			t.Fatal(err)
		}
		anew := manual[2].nextRequest(t, quorum.AskRenew)
		if !anew.Restore || anew.Token != g.Token {
			t.Errorf("regained %v, with token %d of %d", anew.Restore, anew.Token, g.Token)
		}
		e.Detach(g)
		anew.NotOwner()
		synctest.Wait()
		for _, d := range manual {
			if n := len(d.in); n > 0 {
				t.Errorf("node %s received a request of kind %d", d.name, (<-d.in).Kind)
			}
		}
	})
}
