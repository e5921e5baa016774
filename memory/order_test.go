package memory_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// Waiters are served in the order of their arrival stamps, even if other waiters give up meanwhile.
func TestGrantsFollowArrivalStamps(t *testing.T) {
	t.Parallel()
	for n := 2; n <= 50; n++ {
		t.Run(fmt.Sprintf("waiters=%d", n), func(t *testing.T) {
			t.Parallel()
			for round := range 4 {
				synctest.Test(t, func(t *testing.T) { checkGrantOrder(t, n, 1+2*(round%3)) })
			}
		})
	}
}

func checkGrantOrder(t *testing.T, waiters, nodes int) {
	root := memory.New(nodes)
	for i := range nodes {
		root.Node(i).Delay(rand.N(2 * time.Millisecond))
	}
	client := func() *holdfast.Client {
		return openClient(t, root.Peer(), nil)
	}
	first, err := client().Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	stays := make([]bool, waiters)
	for i := range waiters {
		stays[i] = rand.N(4) != 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if !stays[i] { // some before the first hand-over, some during it
			time.AfterFunc(time.Second+rand.N(time.Duration(waiters)*10*time.Millisecond)-100*time.Millisecond, cancel)
		}
		c := client()
		all.Go(func() {
			l, err := c.Acquire(ctx, "k", nil)
			if err != nil {
				if stays[i] {
					t.Errorf("waiter %d: %v", i, err)
				}
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			passTime(rand.N(10 * time.Millisecond))
			if err := l.Release(context.Background()); err != nil {
				t.Errorf("release by waiter %d: %v", i, err)
			}
		})
		passTime(10 * time.Millisecond)
	}
	passTime(time.Second - time.Duration(waiters)*10*time.Millisecond)
	release(t, first)
	all.Wait()
	if !slices.IsSorted(order) {
		t.Errorf("%d nodes: granted in the order %v", nodes, order)
	}
	for i, stayed := range stays {
		if stayed && !slices.Contains(order, i) {
			t.Errorf("waiter %d was never served", i)
		}
	}
	passTime(time.Second) // the last releases
	if left := root.Leftovers(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A place in the queue does not expire, however long the holder works.
func TestLongWaitKeepsItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root := memory.New(3)
		var clients []*holdfast.Client
		for range 4 {
			clients = append(clients, openClient(t, root.Peer(), nil))
		}
		l, err := clients[0].Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan int, 3)
		for i := 1; i < 4; i++ {
			go func() {
				l, err := clients[i].Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Errorf("waiter %d: %v", i, err)
					return
				}
				served <- i
				release(t, l)
			}()
			passTime(20 * time.Minute)
		}
		for i := range 3 {
			if st, err := clients[0].Inspect(t.Context(), "k"); err != nil || st.Waiters != 3 || st.Nodes[i].Waiters != 3 {
				t.Errorf("Inspect() = %+v, %v, want 3 waiters", st, err)
			}
		}
		release(t, l)
		for want := 1; want < 4; want++ {
			if got := <-served; got != want {
				t.Errorf("waiter %d was served, want %d", got, want)
			}
		}
	})
}
