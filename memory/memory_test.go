package memory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/memory"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 5, 9} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			if testing.Short() && n != 1 && n != 3 {
				t.Skip("-short goes through the suite on one node and on three")
			}
			t.Parallel()
			locktest.Run(t, locktest.Harness{Bubble: true, Start: func(testing.TB) locktest.Service { return newService(n, 0) }})
		})
	}
}

// With a delay every request takes time, so that contexts end while requests are in progress.
func TestConformanceOfSlowNodes(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			if testing.Short() && n != 3 {
				t.Skip("-short goes through the suite once")
			}
			t.Parallel()
			locktest.Run(t, locktest.Harness{Bubble: true, Start: func(testing.TB) locktest.Service { return newService(n, time.Millisecond) }})
		})
	}
}

func TestConformanceInRealTime(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Start: func(testing.TB) locktest.Service { return newService(3, 0) }})
}

// A TTL that works over nodes in memory works over as many servers with their defaults. The error names
// package memory.
func TestMemoryLimitsTTLLikeServers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		nodes int
		most  time.Duration
		words string
	}{
		{1, 24 * time.Hour, "up to 24h0m0s"},
		{2, time.Minute, "memory.New(1), takes up to 24h0m0s"},
		{3, time.Minute, "memory.New(1), takes up to 24h0m0s"},
	} {
		c := openClient(t, memory.New(tt.nodes), nil)
		_, err := c.TryAcquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: tt.most + 1})
		if text := fmt.Sprint(err); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(text, tt.words) || strings.Contains(text, "maxttl") {
			t.Errorf("%d nodes, with a TTL of more than %v: %v, want ErrInvalid and %q", tt.nodes, tt.most, err, tt.words)
		}
		if _, err := c.TryAcquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: tt.most}); err != nil {
			t.Errorf("%d nodes, with a TTL of %v: %v", tt.nodes, tt.most, err)
		}
	}
}

func TestNodeChangesAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root := memory.New(3)
		root.Node(2).Stop() // before any client listens
		var got []string
		c, err := holdfast.New(root, &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e holdfast.NodeEvent) {
			got = append(got, fmt.Sprint(e.Node, " ", e.State))
			if (e.State == driver.NodeUp) != (e.Err == nil) {
				t.Errorf("%+v", e)
			}
		}}})
		if err != nil {
			t.Fatal(err)
		}
		root.Node(0).Stop()
		root.Node(0).Stop() // no change
		root.Node(0).Start()
		root.Node(1).Freeze()
		root.Node(1).Start()
		synctest.Wait()
		want := []string{"memory-3 down", "memory-1 down", "memory-1 up", "memory-2 stalled", "memory-2 up"}
		if !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		c.Close()
		root.Node(0).Stop()
		synctest.Wait()
		if len(got) > len(want) {
			t.Errorf("received %q after Close", got[len(want):])
		}
	})
}

// newService returns n nodes; each is slower than the one before by delay.
func newService(n int, delay time.Duration) locktest.Service {
	root := memory.New(n)
	each := func(fn func(*memory.Node)) {
		for i := range n {
			fn(root.Node(i))
		}
	}
	slow := func(more time.Duration) {
		for i := range n {
			root.Node(i).Delay(time.Duration(i+1)*delay + more)
		}
	}
	slow(0)
	return locktest.Service{
		Nodes:      n,
		Open:       func() (driver.Driver, error) { return root.Peer(), nil },
		Disconnect: func(driver.Driver) { each((*memory.Node).Freeze) },
		Reconnect:  func(driver.Driver) { each((*memory.Node).Start) },
		LoseReplies: func(k int) {
			each(func(node *memory.Node) { node.LoseReplies(k) })
		},
		StopNodes: func(k int) {
			for i := range k {
				root.Node(i).Stop()
			}
		},
		StartNodes: func() { each((*memory.Node).Start) },
		Delay:      slow,
		Leftovers:  func() ([]string, error) { return root.Leftovers(), nil },
	}
}

// passTime lets virtual time pass. It is only for bubbles, where no test really sleeps.
func passTime(d time.Duration) { time.Sleep(d) }

// A note belongs to one lease. A client that adopts the lease gets the note.
func TestOthersSeeNoteOfLease(t *testing.T) {
	t.Parallel()
	ctx, root := t.Context(), memory.New(3)
	a, b := root.Peer(), root.Peer()
	req := driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true, Adoptable: true, Holder: driver.Holder{Host: "web-3", Note: "import, 50 %"}}
	g, err := a.Acquire(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true})
	if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Holder != req.Holder {
		t.Errorf("Acquire() = %v, want held by %v", err, req.Holder)
	}
	a.Detach(g)
	if g, err = b.Adopt(ctx, g); err != nil {
		t.Fatal(err)
	}
	if st, err := a.Inspect(ctx, "k"); err != nil || st.Owner != g.Owner || st.Holder.Note != req.Holder.Note {
		t.Errorf("Inspect() = %+v, %v, want note %q", st, err, req.Holder.Note)
	}
	req.Key, req.Holder.Note = "other", ""
	if _, err = a.Acquire(ctx, req); err != nil {
		t.Fatal(err)
	}
	if st, err := b.Inspect(ctx, "other"); err != nil || st.Holder != req.Holder {
		t.Errorf("Inspect() = %+v, %v, want %v", st, err, req.Holder)
	}
}

// A counter per name would have to expire, or be kept forever.
func TestLocksOfNodeShareCounter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root := memory.New(1)
		var clients []*holdfast.Client
		for range 2 {
			clients = append(clients, openClient(t, root.Peer(), nil))
		}
		var last holdfast.Token
		for i, key := range []string{"x", "y", "x", "z", "z", "y", "x"} {
			l, err := clients[i%2].TryAcquire(t.Context(), key, nil)
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 && l.Token() != last+driverkit.Block {
				t.Errorf("grant %d, of %s: token %d after %d, want a block more", i, key, l.Token(), last)
			}
			last = l.Token()
			release(t, l)
			if left := root.Leftovers(); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
			time.Sleep(24 * time.Hour) // the counter does not expire, and no clock changes it
		}
	})
}

// The nodes' counters differ after locks that are not on all nodes.
func TestTokensRiseAcrossOtherNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root := memory.New(3)
		c := openClient(t, root, nil)
		last := make(map[string]holdfast.Token)
		for i := range 60 {
			away := root.Node(i * i % 3)
			away.Stop()
			key := fmt.Sprint("k", i%5)
			l, err := c.TryAcquire(t.Context(), key, nil)
			if err != nil {
				t.Fatal(err)
			}
			if l.Token() <= last[key] {
				t.Errorf("grant %d, of %s: token %d after %d", i, key, l.Token(), last[key])
			}
			last[key] = l.Token()
			away.Start()
			release(t, l)
			time.Sleep(time.Second)
		}
	})
}

// No other node can have the lock: the lease is lost, and no renewal restores it.
func TestLeaseForgottenByOnlyNodeIsLost(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			root := memory.New(n)
			c := openClient(t, root, nil)
			l := acquire(t, c, "k", nil)
			root.Node(0).DropLock("k")
			time.Sleep(5 * time.Second) // the next renewal is sent
			if lost := errors.Is(context.Cause(l.Context()), holdfast.ErrLost); lost != (n == 1) {
				t.Errorf("one of %d nodes lost the lock: %v", n, context.Cause(l.Context()))
			}
			if st, err := c.Inspect(t.Context(), "k"); err != nil || st.Held != (n > 1) || n > 1 && st.Nodes[0].Owner != l.Owner() {
				t.Errorf("one of %d nodes lost the lock: %+v, %v", n, st, err)
			}
		})
	}
}

// openClient opens a client over drv, and closes it at the end of the test.
func openClient(t testing.TB, drv driver.Driver, opts *holdfast.Options) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(drv, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func acquire(t testing.TB, c *holdfast.Client, key string, opts *holdfast.AcquireOptions) *holdfast.Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), key, opts)
	if err != nil {
		t.Fatalf("Acquire(%q) = %v", key, err)
	}
	return l
}

func release(t testing.TB, l interface{ Release(context.Context) error }) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release() = %v", err)
	}
}
