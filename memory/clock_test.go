package memory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// clockedNodes is a set of three nodes whose clocks the test sets.
type clockedNodes struct {
	*testing.T
	root *memory.Driver
}

func withClocks(t *testing.T, fn func(clockedNodes)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { fn(clockedNodes{t, memory.New(3)}) })
}

func (c clockedNodes) newClient() *holdfast.Client {
	return openClient(c, c.root.Peer(), nil)
}

// jumpClocks shifts the clocks of a majority.
func (c clockedNodes) jumpClocks(by time.Duration) {
	c.root.Node(0).ShiftClock(by)
	c.root.Node(2).ShiftClock(by)
}

func TestMajorityClockJumpNeverLowersToken(t *testing.T) {
	withClocks(t, func(c clockedNodes) {
		client, last := c.newClient(), holdfast.Token(0)
		for i := range 20 {
			c.jumpClocks([]time.Duration{0, time.Hour, 0, -time.Hour}[i%4])
			lease, err := client.TryAcquire(c.Context(), "k", nil)
			if err == nil {
				if lease.Token() <= last {
					c.Errorf("token %d after %d", lease.Token(), last)
				}
				last = lease.Token()
				err = lease.Release(c.Context())
			}
			if err != nil {
				c.Error(err)
			}
			passTime(100 * time.Millisecond)
		}
	})
}

func TestRejectionNamesWrongClockAndOffset(t *testing.T) {
	withClocks(t, func(c clockedNodes) {
		c.jumpClocks(-time.Hour)
		client := c.newClient()
		_, atOnce := client.TryAcquire(c.Context(), "k", nil)
		_, waiting := client.Acquire(c.Context(), "k", &holdfast.AcquireOptions{Wait: time.Second})
		for _, err := range []error{atOnce, waiting} {
			if !errors.Is(err, holdfast.ErrUnavailable) {
				c.Fatalf("%v, want ErrUnavailable", err)
			}
			for _, words := range []string{
				"nodes memory-1, memory-3: CLOCK", "3600 s behind the client's", "synchronise the clocks",
			} {
				if !strings.Contains(err.Error(), words) {
					c.Errorf("%q does not mention %q", err, words)
				}
			}
		}
		if left := c.root.Leftovers(); len(left) > 0 {
			c.Errorf("left behind: %q", left)
		}
		c.jumpClocks(5 * time.Second) // seconds are tolerated
		lease, err := client.TryAcquire(c.Context(), "k", nil)
		if err != nil {
			c.Fatal(err)
		}
		lease.Release(c.Context())
	})
}

// A waiter survives a clock jump together with a loss of the counters, like any other outage. The error of a
// caller that leaves meanwhile names the clocks, not the previous holder.
func TestWaitersSurviveClockJump(t *testing.T) {
	withClocks(t, func(c clockedNodes) {
		holder, err := c.newClient().Acquire(c.Context(), "k", &holdfast.AcquireOptions{TTL: 2 * time.Second})
		if err != nil {
			c.Fatal(err)
		}
		short, cancel := context.WithTimeout(c.Context(), 5*time.Second)
		defer cancel()
		gaveUp, served := make(chan error), make(chan error)
		go func() {
			_, err := c.newClient().Acquire(short, "k", nil)
			gaveUp <- err
		}()
		go func() {
			lease, err := c.newClient().Acquire(c.Context(), "k", nil)
			if err == nil && lease.Token() <= holder.Token() {
				c.Errorf("token %d after %d", lease.Token(), holder.Token())
			}
			served <- err
		}()
		passTime(time.Second)
		c.root.Node(0).Wipe()
		c.root.Node(2).Wipe()
		c.jumpClocks(time.Hour)
		if err := <-gaveUp; !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, holdfast.ErrUnavailable) || !strings.Contains(err.Error(), "3600 s ahead") {
			c.Errorf("the cancelled waiter: %v", err)
		}
		c.jumpClocks(0)
		start := time.Now()
		if err := <-served; err != nil {
			c.Error(err)
		}
		if took := time.Since(start); took > 3*time.Second {
			c.Errorf("the order after the jump was %v", took)
		}
	})
}
