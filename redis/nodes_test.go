package redis_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redis"
)

// failNode opens two clients of five nodes, breaks one of the nodes during a lease, and checks that the
// clients continue without it.
func (r *rig) failNode(hurt, mend func(s *redisproc.Server), states ...driver.NodeState) {
	events := make(chan driver.NodeEvent, 100)
	hooks := &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) { events <- e }}}
	c, other := r.clientOf(r.openDriver(r.nodes(), nil), hooks), r.newClient()
	l := r.acquire(c, "long", &holdfast.AcquireOptions{TTL: 6 * time.Second})
	hurt(r.servers[1])
	for range 20 {
		r.release(r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL}))
		r.release(r.acquire(other, "k", &holdfast.AcquireOptions{TTL: longTTL}))
	}
	if _, err := other.TryAcquire(r.Context(), "long", nil); !errors.Is(err, holdfast.ErrHeld) {
		r.Errorf("%v, want ErrHeld", err)
	}
	deadline := l.Deadline()
	r.eventually("a renewal", func() bool { return l.Deadline().After(deadline) })
	r.awaitState(events, r.servers[1].Addr(), states[0])
	mend(r.servers[1])
	for _, want := range states[1:] {
		r.awaitState(events, r.servers[1].Addr(), want)
	}
	deadline = l.Deadline()
	r.eventually("a renewal", func() bool { return l.Deadline().After(deadline) })
	if err := l.Check(r.Context()); err != nil {
		r.Errorf("Check() = %v", err)
	}
	r.release(l)
	r.checkCleared()
}

func (r *rig) awaitState(events <-chan driver.NodeEvent, node string, want driver.NodeState) {
	r.Helper()
	for timeout := time.After(patience()); ; {
		select {
		case e := <-events:
			if e.Node == node && e.State == want {
				return
			}
		case <-timeout:
			r.Fatalf("no event %q of %s", want, node)
		}
	}
}

func TestLocksSurviveKilledNode(t *testing.T) {
	r := startRig(t, 5)
	r.failNode(func(s *redisproc.Server) { s.Kill() }, func(s *redisproc.Server) {
		if err := s.Restart(t.Context()); err != nil {
			t.Error(err)
		}
	}, driver.NodeDown, driver.NodeUp)
}

func TestLocksSurviveHungNode(t *testing.T) {
	r := startRig(t, 5)
	r.failNode(func(s *redisproc.Server) {
		if err := s.Pause(); err != nil {
			t.Error(err)
		}
	}, func(s *redisproc.Server) {
		if err := s.Resume(); err != nil {
			t.Error(err)
		}
	}, driver.NodeStalled, driver.NodeUp)
}

// The Redlock page, "Performance, crash recovery and fsync": a node that has forgotten its locks does not vote
// until they have expired.
func TestRestartedNodeSitsOutQuarantine(t *testing.T) {
	r := startRig(t, 3)
	opts := &redis.Options{MaxTTL: 2 * time.Second, Timeout: busyTimeout()}
	var d *redis.Driver
	_, err := redis.New(t.Context(), r.nodes(), opts) // a first start and a restart look the same
	if !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%v does not match ErrUnavailable", err)
	}
	checkMentions(t, err, r.servers[0].Addr(), "quarantine", "votes in", "quarantine=off")
	r.eventually("the first quarantine is over", func() bool {
		d, err = redis.New(t.Context(), r.nodes(), opts)
		return err == nil
	})
	c := r.clientOf(d, nil)
	r.release(r.acquire(c, "k", nil))

	r.noError(r.servers[0].Wipe(t.Context()))
	restarted := time.Now()
	r.eventually("the node says why it does not vote", func() bool {
		st, err := c.Inspect(t.Context(), "k")
		return err == nil && st.Nodes[0].Err != nil && strings.Contains(st.Nodes[0].Err.Error(), "votes in")
	})
	r.release(r.acquire(c, "k", nil)) // on two of three
	r.servers[1].Kill()
	_, err = c.TryAcquire(t.Context(), "k", nil)
	if !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("with one of three voters: %v, want ErrUnavailable", err)
	}
	checkMentions(t, err, r.servers[0].Addr(), "quarantine", r.servers[1].Addr(), "need 2 nodes")
	r.eventually("it votes again", func() bool {
		l, err := c.TryAcquire(t.Context(), "k", nil)
		if err != nil {
			return false
		}
		r.release(l)
		return true
	})
	if out := time.Since(restarted); out < opts.MaxTTL {
		t.Errorf("the node voted %v after its restart, want %v at least", out, opts.MaxTTL)
	}
}

// A server that writes every answer to disk before it sends it forgets nothing.
func TestDurableNodeSkipsQuarantine(t *testing.T) {
	t.Parallel()
	r := &rig{T: t}
	for range 3 {
		r.servers = append(r.servers, redistest.Start(t, &redisproc.Options{AppendOnly: "always"}))
	}
	r.openDriver(r.nodes(), nil).Close() // without quarantine, because the set is new
	d := newDriver(t, r.nodes(), &redis.Options{Timeout: busyTimeout()})
	c := r.clientOf(d, nil)
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL})
	for _, s := range r.servers {
		s.Kill()
		r.noError(s.Restart(t.Context()))
	}
	r.eventually("all vote again", func() bool { return l.Check(t.Context()) == nil })
	r.release(l)
}

// A single Redis votes at once: a quarantine would only prolong the outage.
func TestSingleNodeSkipsQuarantine(t *testing.T) {
	r := startRig(t, 1)
	d := newDriver(t, r.nodes(), &redis.Options{Timeout: busyTimeout()})
	c := r.clientOf(d, nil)
	r.release(r.acquire(c, "k", nil))
}

// blockedLog is a log handler that blocks on each line until it is unblocked.
type blockedLog struct{ unblocked chan struct{} }

func (h blockedLog) Enabled(context.Context, slog.Level) bool  { return true }
func (h blockedLog) Handle(context.Context, slog.Record) error { <-h.unblocked; return nil }
func (h blockedLog) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h blockedLog) WithGroup(string) slog.Handler             { return h }

// A node with a defect comes back even if the defect cannot be logged.
func TestHangingLoggerDoesNotDelayNodes(t *testing.T) {
	r := startRig(t, 1)
	log := blockedLog{make(chan struct{})}
	defer close(log.unblocked)
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{AllowEviction: true, Logger: slog.New(log)}), &holdfast.Options{Logger: slog.New(log)})
	r.release(r.acquire(c, "k", nil))
	r.do(0, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	r.do(0, "CLIENT", "KILL", "TYPE", "normal")
	r.do(0, "CLIENT", "KILL", "TYPE", "pubsub")
	time.Sleep(50 * time.Millisecond) // until the break has been noticed
	l, err := c.Acquire(r.boundedContext(), "k", nil)
	r.noError(err)
	r.release(l)
}
