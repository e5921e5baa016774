package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redis"
)

// Close during calls of Acquire and Release, finished and abandoned ones, leaves no lock behind. CLOSES sets
// the number of rounds.
func TestCloseUnderLoadReleasesEveryLock(t *testing.T) {
	closes := 60
	if n, err := strconv.Atoi(os.Getenv("CLOSES")); err == nil {
		closes = n
	}
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", nodes), func(t *testing.T) {
			r := startRig(t, nodes)
			for range closes {
				r.closeUnderLoad()
			}
			r.checkCleared()
		})
	}
}

// closeUnderLoad closes a client while four callers use it.
func (r *rig) closeUnderLoad() {
	r.Helper()
	c := r.newClient()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for {
				ctx, cancel := context.WithTimeout(r.Context(), rand.N(4*time.Millisecond))
				l, err := c.Acquire(ctx, fmt.Sprint("k", i%3), &holdfast.AcquireOptions{TTL: longTTL})
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
	time.Sleep(rand.N(10 * time.Millisecond)) // any moment
	if err := c.Close(); err != nil {
		r.Errorf("Close() = %v", err)
	}
	all.Wait()
	r.checkCleared() // a slow server may still have releases to execute
}

// A user's Dial may ignore its context.
func TestCloseStopsDialing(t *testing.T) {
	r := startRig(t, 1)
	var dialled atomic.Int32
	d := r.openDriver(r.nodes(), &redis.Options{Dial: func(_ context.Context, network, addr string) (net.Conn, error) {
		dialled.Add(1)
		return net.Dial(network, addr)
	}})
	before := dialled.Load()
	if err := d.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if n := dialled.Load() - before; n != 0 {
		t.Errorf("%d connections were made", n)
	}
}
