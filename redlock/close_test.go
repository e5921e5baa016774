package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// Close during Acquire and Release, which are under way or have been given up,
// leaves no lock behind for its TTL. CLOSES is how often that is tried.
func TestCloseUnderLoadLeavesNoLock(t *testing.T) {
	closes := 60
	if n, err := strconv.Atoi(os.Getenv("CLOSES")); err == nil {
		closes = n
	}
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", nodes), func(t *testing.T) {
			r := start(t, nodes)
			for range closes {
				r.closeUnderLoad()
			}
			r.cleared()
		})
	}
}

// closeUnderLoad closes a client while four callers use it.
func (r *rig) closeUnderLoad() {
	r.Helper()
	c := r.client()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for {
				ctx, cancel := context.WithTimeout(r.Context(), rand.N(4*time.Millisecond))
				l, err := c.Acquire(ctx, fmt.Sprint("k", i%3), &holdfast.AcquireOptions{TTL: long})
				if err == nil {
					l.Release(ctx)
				}
				cancel()
				if errors.Is(err, holdfast.ErrClosed) {
					return
				}
			}
		})
	}
	time.Sleep(rand.N(10 * time.Millisecond)) // any moment will do
	if err := c.Close(); err != nil {
		r.Errorf("Close() = %v", err)
	}
	all.Wait()
	r.cleared() // a server that is behind may still have releases before it
}
