package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/redis"
)

// startInspected returns a lease on three servers, which keep it for 10, 20 and 30 s, and another client that
// inspects it.
func startInspected(t *testing.T) (*rig, *holdfast.Client, *holdfast.Lease) {
	r := startRig(t, 3)
	l := r.acquire(r.newClient(), "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
	c := r.newClient()
	r.eventually("all nodes have granted", func() bool {
		st, err := c.Inspect(t.Context(), "k")
		return err == nil && st.Nodes[0].Owner == l.Owner() && st.Nodes[1].Owner == l.Owner() && st.Nodes[2].Owner == l.Owner()
	})
	for i, ttl := range []string{"10000", "20000", "30000"} {
		r.do(i, "PEXPIRE", "lock:k", ttl)
	}
	return r, c, l
}

// killServers stops servers and waits until c reports them as down.
func (r *rig) killServers(c *holdfast.Client, servers ...int) {
	r.Helper()
	for _, i := range servers {
		r.servers[i].Kill()
	}
	r.eventually("they are missed", func() bool {
		st, _ := c.Inspect(r.Context(), "k")
		for _, i := range servers {
			if st.Nodes[i].Err == nil {
				return false
			}
		}
		return true
	})
}

func TestInspectReportsTimeOfQuorum(t *testing.T) {
	r, c, l := startInspected(t)
	left := func(most time.Duration) {
		t.Helper()
		st, err := c.Inspect(t.Context(), "k")
		if err != nil || !st.Held || st.Owner != l.Owner() || st.Token != l.Token() || st.Remaining > most || st.Remaining <= most-10*time.Second {
			t.Errorf("Inspect() = %+v, %v; want a little less than %v left", st, err, most)
		}
	}
	left(20 * time.Second) // two nodes keep the lock that long, and one does not
	r.killServers(c, 2)
	left(10 * time.Second)
	r.do(1, "DEL", "lock:k")
	if st, err := c.Inspect(t.Context(), "k"); err != nil || st.Held {
		t.Errorf("Inspect() = %+v, %v; want free, as one node of three has it", st, err)
	}
}

func TestInspectWithoutMajorityReportsOtherNodes(t *testing.T) {
	r, c, l := startInspected(t)
	r.do(2, zaddPlaceArgs("holdfast:queue:{lock:k}", "somebody", 1)...)
	r.killServers(c, 0, 1)
	check := func(what string, st holdfast.Status) {
		t.Helper()
		if st.Held || st.Owner != "" || len(st.Nodes) != 3 {
			t.Fatalf("%s: %+v, want nothing certain", what, st)
		}
		n := st.Nodes[2]
		if n.Err != nil || n.Owner != l.Owner() || n.Token != int64(l.Token()) || n.Remaining <= 10*time.Second || n.Waiters != 1 {
			t.Errorf("%s: the remaining node reports %+v", what, n)
		}
		for _, n := range st.Nodes[:2] {
			if n.Err == nil || n.Owner != "" {
				t.Errorf("%s: the killed node reports %+v", what, n)
			}
		}
	}
	st, err := c.Inspect(t.Context(), "k")
	if !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("Inspect() = %v, want ErrUnavailable", err)
	}
	checkMentions(t, err, "need 2 nodes", r.servers[0].Addr(), r.servers[1].Addr())
	check("Inspect", st)
	listed, last := 0, error(nil)
	for st, err := range c.List(t.Context(), "") {
		if last = err; err == nil {
			listed++
			check("List", st)
		}
	}
	if listed != 1 || !errors.Is(last, holdfast.ErrUnavailable) {
		t.Errorf("List yields %d locks and %v, want one and ErrUnavailable", listed, last)
	}
}

func TestForceReleaseSucceedsAtMajority(t *testing.T) {
	r, c, l := startInspected(t)
	r.killServers(c, 2)
	if err := c.ForceRelease(t.Context(), "k", l.Token()+100, ""); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("ForceRelease with an unknown token = %v, want ErrLost", err)
	}
	if err := c.ForceRelease(t.Context(), "k", l.Token(), ""); err != nil {
		t.Errorf("ForceRelease on two nodes of three = %v", err)
	}
	for i := range 2 {
		if owner := r.do(i, "GET", "lock:k"); owner != nil {
			t.Errorf("node %d still has %v", i, owner)
		}
	}
	r.eventually("the old holder hears of it", func() bool {
		err := l.Extend(t.Context(), longTTL) // ErrUnavailable if the first answer decides
		if err == nil {
			t.Fatal("the forced lease was extended")
		}
		return errors.Is(err, holdfast.ErrLost)
	})
}

// The last holder's commit did not reach one node. That node gave the next holder the token that the last
// holder had elsewhere, and missed the next commit too.
func TestLastHoldersTokenSparesNextHolder(t *testing.T) {
	r, c, l := startInspected(t)
	r.do(1, "SET", "lock:k", fmt.Sprint(l.Owner(), " ", int64(l.Token())-32), "KEEPTTL")
	if st, err := c.Inspect(t.Context(), "k"); err != nil || st.Token != l.Token() {
		t.Errorf("Inspect() = token %d, %v; want %d", st.Token, err, l.Token())
	}
	if err := c.ForceRelease(t.Context(), "k", l.Token()-32, ""); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("ForceRelease of the last holder's token = %v, want ErrLost", err)
	}
	for i := range 3 {
		if text, _ := r.do(i, "GET", "lock:k").(string); !strings.HasPrefix(text, l.Owner()) {
			t.Errorf("node %d has %q, want %s's lock", i, text, l.Owner())
		}
	}
	if err := c.ForceRelease(t.Context(), "k", l.Token(), ""); err != nil {
		t.Errorf("ForceRelease of the own lock = %v", err)
	}
	for i := range 3 {
		if owner := r.do(i, "GET", "lock:k"); owner != nil {
			t.Errorf("node %d still has %v", i, owner)
		}
	}
}

func TestForceReleaseWithoutMajorityIsUnavailable(t *testing.T) {
	r, c, l := startInspected(t)
	r.killServers(c, 0, 1)
	if err := c.ForceRelease(t.Context(), "k", l.Token(), ""); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("ForceRelease on one node of three = %v, want ErrUnavailable", err)
	}
	if owner, want := r.do(2, "GET", "lock:k"), fmt.Sprint(l.Owner(), " ", l.Token()); owner != want {
		t.Errorf("the remaining node has %v, want %v", owner, want)
	}
}

func TestOtherClientsSeeHoldersName(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			r := startRig(t, n)
			me := holdfast.Holder{Host: "elsewhere", PID: 4121, Program: "billing"}
			events := make(chan holdfast.WaitingEvent, 1)
			hooks := holdfast.Hooks{Waiting: func(e holdfast.WaitingEvent) { events <- e }}
			holder := r.clientOf(r.openDriver(r.nodes(), nil), &holdfast.Options{Holder: me})
			other := r.clientOf(r.openDriver(r.nodes(), nil), &holdfast.Options{Hooks: hooks})
			l := r.acquire(holder, "k", &holdfast.AcquireOptions{TTL: longTTL})
			if n > 1 {
				r.servers[0].Kill() // the other nodes know it as well
			}
			_, err := other.TryAcquire(t.Context(), "k", nil)
			if held, ok := errors.AsType[*holdfast.HeldError](err); !ok || held.Holder != me || held.Owner != l.Owner() {
				t.Errorf("TryAcquire() = %v, want held by %v", err, me)
			}
			checkMentions(t, err, me.String())
			if st, err := other.Inspect(t.Context(), "k"); err != nil || st.Holder != me {
				t.Errorf("Inspect() = %+v, %v, want holder %v", st, err, me)
			}
			for st, err := range other.List(t.Context(), "") {
				if err != nil || st.Holder != me {
					t.Errorf("List yields %+v, %v, want holder %v", st, err, me)
				}
			}
			// A waiter and a client that asked before the lock was held get the same answer.
			err = r.waitError(other, "k")
			checkMentions(t, err, me.String())
			if e := <-events; e.Held == nil || e.Held.Holder != me {
				t.Errorf("obstacle %+v, want %v", e.Held, me)
			}
		})
	}
}

func TestInspectNeedsOneNode(t *testing.T) {
	r, c, l := startInspected(t)
	r.killServers(c, 0, 1)
	if d, err := r.open(r.nodes(), nil); !errors.Is(err, holdfast.ErrUnavailable) {
		if err == nil {
			d.Close()
		}
		t.Errorf("Open with one node of three = %v, want ErrUnavailable", err)
	}
	looker := r.clientOf(r.openDriver(r.nodes(), &redis.Options{ReadOnly: true}), nil)
	st, err := looker.Inspect(t.Context(), "k")
	if !errors.Is(err, holdfast.ErrUnavailable) || st.Held || len(st.Nodes) != 3 || st.Nodes[2].Owner != l.Owner() {
		t.Errorf("Inspect() = %+v, %v, want ErrUnavailable and what one node knows", st, err)
	}
	r.killServers(c, 2)
	if d, err := r.open(r.nodes(), &redis.Options{ReadOnly: true}); !errors.Is(err, holdfast.ErrUnavailable) {
		if err == nil {
			d.Close()
		}
		t.Errorf("Open with no node = %v, want ErrUnavailable", err)
	}
}

// A name that no node has returned is asked for again: the cache must not keep a failed lookup.
func TestHolderIsNamedAfterFailedLookup(t *testing.T) {
	r := startRig(t, 1)
	way := newRoute(t, r.servers)
	l := r.acquire(r.newClient(), "k", &holdfast.AcquireOptions{TTL: longTTL})
	other := r.clientOf(r.openDriver(way.nodes(), nil), nil)
	cut := way[0].CutAfter(faultproxy.Command("GET"), 1)
	r.eventually("a look at the holder fails", func() bool {
		other.TryAcquire(t.Context(), "k", nil)
		select {
		case <-cut:
			return true
		default:
			return false
		}
	})
	r.eventually("the holder is named", func() bool {
		_, err := other.TryAcquire(t.Context(), "k", nil)
		held, ok := errors.AsType[*holdfast.HeldError](err)
		return ok && held.Holder.PID == os.Getpid()
	})
	r.release(l)
}

// The queue is shown in the order of service, and by a majority of the nodes or not at all.
func TestQueueNamesWaitersInOrder(t *testing.T) {
	r := startRig(t, 3)
	held := r.acquire(r.newClient(), "k", nil)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	queue := func() []driver.Waiter {
		waiters, err := r.newClient().Queue(t.Context(), "k", 2)
		if err != nil {
			t.Error(err)
		}
		return waiters
	}
	for i := range 3 {
		c := r.newClient()
		all.Go(func() { c.Acquire(ctx, "k", &holdfast.AcquireOptions{Note: fmt.Sprint("waiter ", i)}) })
		r.eventually("it waits", func() bool {
			st, err := r.newClient().Inspect(t.Context(), "k")
			return err == nil && st.Waiters == i+1
		})
	}
	r.servers[0].Kill()
	got := queue()
	if len(got) != 2 || got[0].Holder.Note != "waiter 0" || got[1].Holder.Note != "waiter 1" || got[0].Holder.PID == 0 || got[0].Since.IsZero() {
		t.Errorf("the queue is %+v", got)
	}
	looker := r.newClient()
	r.servers[1].Kill()
	if got, err := looker.Queue(t.Context(), "k", 2); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("without a majority: %+v, %v", got, err)
	}
	cancel()
	all.Wait()
	held.Release(t.Context())
}
