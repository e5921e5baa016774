package memory_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// One node after the other is down for longer than the TTL, while a rival waits and acquires the lock where it
// is free.
func TestLeaseSurvivesOutagesInTurn(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		for _, wipes := range []bool{false, true} {
			for _, rivals := range []int{1, 8} {
				t.Run(fmt.Sprintf("nodes=%d/forget=%v/rivals=%d", n, wipes, rivals), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { runOutagesInTurn(t, n, rivals, wipes) })
				})
			}
		}
	}
}

// Each node that comes back empty gets the lock again, with the token of the lease.
func TestForceEndsLeaseThatSurvivedOutages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root := memory.New(3)
		c := openClient(t, root, nil)
		lease := acquire(t, c, "k", nil)
		for i := range 3 {
			root.Node(i).Stop()
			root.Node(i).Wipe()
			time.Sleep(12 * time.Second)
			root.Node(i).Start()
			time.Sleep(20 * time.Second)
		}
		st, err := c.Inspect(t.Context(), "k")
		if err != nil || st.Owner != lease.Owner() {
			t.Fatalf("%+v, %v", st, err)
		}
		if err := c.ForceRelease(t.Context(), "k", st.Token, ""); err != nil {
			t.Errorf("force by token %d: %v; nodes %+v", st.Token, err, st.Nodes)
		}
		time.Sleep(10 * time.Second)
		if lease.Context().Err() == nil {
			t.Error("the lease is still held")
		}
	})
}

func runOutagesInTurn(t *testing.T, n, rivals int, wipes bool) {
	root := memory.New(n)
	client := func() *holdfast.Client {
		return openClient(t, root.Peer(), nil)
	}
	for i := range n {
		root.Node(i).Delay(time.Duration(1+i) * 300 * time.Microsecond)
	}
	lease, err := client().Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range rivals {
		c := client()
		go c.Acquire(t.Context(), "k", nil)
	}
	for range 2 {
		for i := range n {
			node := root.Node(i)
			node.Stop()
			time.Sleep(12 * time.Second)
			if wipes {
				node.Wipe()
			}
			node.Start()
			time.Sleep(20 * time.Second)
			if err := lease.Check(t.Context()); err != nil {
				t.Fatalf("after the outage of node %d: %v", i, err)
			}
		}
	}
}
