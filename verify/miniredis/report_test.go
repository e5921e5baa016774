package miniredis_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/redis"
)

// writeReport is a job of a program that one process at a time runs.
func writeReport(ctx context.Context, locks *holdfast.Client, work func(context.Context) error) error {
	return locks.Do(ctx, "report", nil, func(ctx context.Context, _ *holdfast.Lease) error { return work(ctx) })
}

// The same test twice, as in docs/your-redis.md.

func TestSecondReportWaitsForFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time is virtual: ten minutes take one second
		server := miniredis.NewMiniRedis()
		defer server.Close()
		server.ClockTTL(true) // keys expire by the test's clock
		open := func() *holdfast.Client {
			drv, err := redis.New(t.Context(), []redis.Node{{Addr: "miniredis:6379"}}, &redis.Options{
				Dial: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
			})
			if err != nil {
				t.Fatal(err)
			}
			locks, err := holdfast.New(drv, nil)
			if err != nil {
				t.Fatal(err)
			}
			return locks
		}
		secondWaits(t, open(), open())
	})
}

func TestSecondReportWaitsInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := memory.New(3)
		first, _ := holdfast.New(nodes, nil)
		second, _ := holdfast.New(nodes.Peer(), nil)
		secondWaits(t, first, second)
	})
}

func secondWaits(t *testing.T, first, second *holdfast.Client) {
	defer first.Close()
	defer second.Close()
	begun := make(chan bool)
	go writeReport(t.Context(), first, func(context.Context) error {
		close(begun)
		time.Sleep(10 * time.Minute) // of virtual time
		return nil
	})
	<-begun
	if _, err := second.TryAcquire(t.Context(), "report", nil); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("the lock is not held: %v", err)
	}
	start := time.Now()
	err := writeReport(t.Context(), second, func(context.Context) error { return nil })
	if waited := time.Since(start); err != nil || waited < 9*time.Minute || waited > 11*time.Minute {
		t.Errorf("waited for %v, %v", waited, err)
	}
}

// TestWorkStopsWhenLeaseIsLost uses package memory: nodes that stop, freeze, or lose their data or
// their replies, while the others continue.
func TestWorkStopsWhenLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := memory.New(3)
		locks, _ := holdfast.New(nodes, nil)
		defer locks.Close()
		err := writeReport(t.Context(), locks, func(ctx context.Context) error {
			nodes.Node(0).Stop()
			time.Sleep(time.Hour) // two of three are left: the lease continues
			if ctx.Err() != nil {
				t.Errorf("lost with one node: %v", context.Cause(ctx))
			}
			nodes.Node(1).Freeze()
			<-ctx.Done() // no majority
			return ctx.Err()
		})
		if !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Do() = %v, want ErrLost", err)
		}
	})
}
