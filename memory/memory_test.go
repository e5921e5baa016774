package memory_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/memory"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 5, 9} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			t.Parallel()
			locktest.Run(t, locktest.Harness{Bubble: true, Start: func(testing.TB) locktest.Service { return service(n, 0) }})
		})
	}
}

// With a delay every request takes time, so that what ends meanwhile ends in the
// middle of things.
func TestConformanceOfSlowNodes(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			t.Parallel()
			locktest.Run(t, locktest.Harness{Bubble: true, Start: func(testing.TB) locktest.Service { return service(n, time.Millisecond) }})
		})
	}
}

func TestConformanceInRealTime(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Start: func(testing.TB) locktest.Service { return service(3, 0) }})
}

// service is n nodes, of which each is slower than the one before by delay.
func service(n int, delay time.Duration) locktest.Service {
	root := memory.New(n)
	each := func(fn func(*memory.Node)) {
		for i := range n {
			fn(root.Node(i))
		}
	}
	for i := range n {
		root.Node(i).Delay(time.Duration(i+1) * delay)
	}
	return locktest.Service{
		Nodes: n,
		Open:  func() (driver.Driver, error) { return root.Peer(), nil },
		Cut:   func(driver.Driver) { each((*memory.Node).Freeze) },
		Mend:  func(driver.Driver) { each((*memory.Node).Start) },
		LoseReplies: func(k int) {
			each(func(node *memory.Node) { node.LoseReplies(k) })
		},
		StopNodes: func(k int) {
			for i := range k {
				root.Node(i).Stop()
			}
		},
		StartNodes: func() { each((*memory.Node).Start) },
		Leftovers:  func() ([]string, error) { return root.Leftovers(), nil },
	}
}

// pass lets virtual time pass: it is for bubbles, where nobody really sleeps.
func pass(d time.Duration) { time.Sleep(d) }
