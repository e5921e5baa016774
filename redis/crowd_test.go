package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redis"
)

const (
	crowdSize = 2500
	// crowdBytes is the number of bytes of replies that the slow connection carries in a second: enough for
	// some 750 locks, so that all callers together take several times as long as a request may.
	crowdBytes = 15_000
	crowdPart  = 64
)

// slowConn is a connection whose replies arrive at crowdBytes a second, even if a busy machine lets it sleep
// for too long.
type slowConn struct {
	net.Conn
	free time.Time // time at which the bytes read so far have arrived
}

func (c *slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), crowdPart)])
	if idle := time.Now().Add(-100 * time.Millisecond); c.free.Before(idle) {
		c.free = idle
	}
	c.free = c.free.Add(time.Duration(n) * time.Second / crowdBytes)
	time.Sleep(time.Until(c.free))
	return n, err
}

func dialSlowly(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &slowConn{Conn: conn}, err
}

// lockStorm starts many callers of c at once. Each keeps its lock until release is called.
type lockStorm struct {
	wait    func()
	release func()
	failed  atomic.Int64
}

func (r *rig) startStorm(c *holdfast.Client, n int) *lockStorm {
	var asking, all sync.WaitGroup
	asking.Add(n)
	free := make(chan struct{})
	out := &lockStorm{wait: asking.Wait, release: func() { close(free); all.Wait() }}
	for i := range n {
		all.Go(func() {
			l, err := c.Acquire(r.Context(), fmt.Sprint("crowd/", i), &holdfast.AcquireOptions{TTL: time.Minute, NoRenew: true})
			asking.Done()
			if err != nil {
				if out.failed.Add(1) == 1 {
					r.Errorf("Acquire beside many waiters: %v", err)
				}
				return
			}
			<-free
			switch err := l.Release(r.Context()); {
			case err == nil, errors.Is(err, holdfast.ErrLost), errors.Is(err, holdfast.ErrUnavailable): // checkCleared shows whether it was executed
			case out.failed.Add(1) == 1:
				r.Errorf("Release beside many waiters: %v", err)
			}
		})
	}
	return out
}

// watchEvents watches the clock until steady is called. steady reports whether this process got its processor
// time meanwhile: without it, answers of healthy nodes come too late.
func (r *rig) watchEvents() (steady func() bool) {
	const most = 200 * time.Millisecond
	var stood atomic.Int64
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for last := time.Now(); ; {
			select {
			case <-quit:
				return
			case <-time.After(10 * time.Millisecond):
			}
			now := time.Now()
			stood.Store(max(stood.Load(), int64(now.Sub(last))))
			last = now
		}
	}()
	return func() bool {
		close(quit)
		<-done
		if d := time.Duration(stood.Load()); d > most {
			r.Logf("this process was suspended for %v", d)
			return false
		}
		return true
	}
}

// scriptsRun returns the number of script calls that the server got.
func (r *rig) scriptsRun(i int) (n int) {
	r.Helper()
	for line := range strings.Lines(fmt.Sprint(r.do(i, "INFO", "commandstats"))) {
		fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &n)
	}
	return n
}

// Each caller needs one request, a lease of the same client is renewed meanwhile, and no node is blamed unless
// this process was suspended.
func TestSlowServerServesManyWaiters(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
			r := startRig(t, n)
			var down atomic.Int64
			c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{Dial: dialSlowly}), &holdfast.Options{Hooks: holdfast.Hooks{
				Node: func(e holdfast.NodeEvent) {
					if e.State == driver.NodeDown {
						down.Add(1)
						t.Logf("%s is down: %v", e.Node, e.Err)
					}
				},
			}})
			held := r.acquire(c, "held", nil)
			before := r.scriptsRun(0)
			steady := r.watchEvents()
			crowd := r.startStorm(c, crowdSize)
			crowd.wait()
			judge := steady()
			if err := context.Cause(held.Context()); judge && err != nil {
				t.Errorf("the lease beside many waiters: %v", err)
			}
			if sent := r.scriptsRun(0) - before; judge && sent > crowdSize+crowdSize/10 {
				t.Errorf("%d waiters sent a node %d requests", crowdSize, sent)
			}
			if judge && down.Load() > 0 {
				t.Errorf("nodes were marked down %d times", down.Load())
			}
			crowd.release()
			if held.Context().Err() == nil {
				r.release(held)
			}
			r.checkCleared()
		})
	}
}

func TestManyWaitersSurviveServerRestart(t *testing.T) {
	r := startRig(t, 1)
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{Dial: dialSlowly}), nil)
	crowd := r.startStorm(c, crowdSize)
	r.eventually("the first of them", func() bool { return r.scriptsRun(0) > 100 })
	r.servers[0].Kill()
	r.noError(r.servers[0].Restart(r.Context()))
	crowd.wait()
	crowd.release()
	r.checkCleared()
}

func TestCloseEndsManyWaits(t *testing.T) {
	r := startRig(t, 1)
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{Dial: dialSlowly}), nil)
	var all sync.WaitGroup
	var got atomic.Int64
	for i := range crowdSize {
		all.Go(func() {
			switch _, err := c.Acquire(r.Context(), fmt.Sprint("crowd/", i), &holdfast.AcquireOptions{TTL: time.Minute}); {
			case err == nil:
				got.Add(1)
			case !errors.Is(err, holdfast.ErrClosed):
				t.Errorf("Acquire: %v", err)
			}
		})
	}
	r.eventually("the first of them", func() bool { return r.scriptsRun(0) > 100 })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
	if n := r.scriptsRun(0) - 2*int(got.Load()); n > crowdSize { // two for each caller that got its lock and released it
		t.Errorf("the server ran %d scripts for callers that got no lock", n)
	}
	r.checkCleared()
}
