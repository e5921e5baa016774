package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// lateClient is a client whose requests the test holds back: they reach the servers after their connection has
// ended, and after later requests of the client.
type lateClient struct {
	*rig
	way    route
	client *holdfast.Client
	giver  *holdfast.Client // its requests are not held back
	format *wire.Format
}

// runLateClients runs test with one server, with three, and with one in the format of Redisson.
func runLateClients(t *testing.T, test func(l *lateClient)) {
	t.Parallel()
	for name, tt := range map[string]struct {
		nodes  int
		format *wire.Format
		opts   *redis.Options
	}{
		"one": {1, wire.Plain, nil}, "three": {3, wire.Plain, nil}, "redisson": {1, wire.Redisson, redissonOptions},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t, tt.nodes)
			way := newRoute(t, r.servers)
			test(&lateClient{r, way, r.clientOf(r.openDriver(way.nodes(), tt.opts), nil), r.clientOf(r.openDriver(r.nodes(), tt.opts), nil), tt.format})
		})
	}
}

// holdScript calls call, whose first request for the script is held back on its way to every server. When all
// servers have one, the connections break. pass lets them through, and returns when they have been executed.
func (l *lateClient) holdScript(s *wire.Script, call func()) (pass func()) {
	l.Helper()
	var holds []*faultproxy.Hold
	for _, p := range l.way {
		holds = append(holds, p.HoldRequest(callsOf(s), 1))
	}
	go call()
	for _, h := range holds {
		<-h.Caught()
	}
	for _, p := range l.way {
		p.Cut()
	}
	return func() {
		l.Helper()
		for i, h := range holds {
			before := l.executedCalls(i)
			h.Release()
			l.eventually("the late request has been executed", func() bool { return l.executedCalls(i) > before })
		}
	}
}

// executedCalls returns the number of script calls that a server has executed.
func (l *lateClient) executedCalls(i int) (calls int) {
	for line := range strings.Lines(fmt.Sprint(l.do(i, "INFO", "commandstats"))) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			fmt.Sscanf(rest, "%d", &calls)
		}
	}
	return calls
}

// checkStands checks that a majority keeps the lock as long as the lease is trusted, and releases it.
func (l *lateClient) checkStands(lease *holdfast.Lease) {
	l.Helper()
	key := "lock:k"
	if l.format == wire.Redisson {
		key = "k"
	}
	keep := 0
	for i := range l.servers {
		trusted := time.Until(lease.Deadline())
		if ttl, _ := l.do(i, "PTTL", key).(int64); time.Duration(ttl)*time.Millisecond >= trusted {
			keep++
		}
	}
	if keep <= len(l.servers)/2 {
		l.Errorf("%d of %d servers keep the lock as long as its holder trusts it", keep, len(l.servers))
	}
	if err := lease.Context().Err(); err != nil {
		l.Error(context.Cause(lease.Context()))
	}
	l.release(lease)
	l.checkCleared()
}

// extendLease renews the lease over working connections.
func (l *lateClient) extendLease(lease *holdfast.Lease, ttl time.Duration) {
	l.Helper()
	if err := l.retryLate(func() error { return lease.Extend(l.boundedContext(), ttl) }); err != nil {
		l.Fatal(err)
	}
}

func TestLateFailedExtendDoesNotShortenLease(t *testing.T) {
	runLateClients(t, func(l *lateClient) {
		lease := l.acquire(l.client, "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
		failed := make(chan error, 1)
		pass := l.holdScript(l.format.Renew, func() { failed <- lease.Extend(l.boundedContext(), 6*time.Second) })
		if err := <-failed; !errors.Is(err, holdfast.ErrUnavailable) {
			l.Fatalf("Extend() = %v, want ErrUnavailable", err)
		}
		l.extendLease(lease, longTTL)
		pass()
		l.checkStands(lease)
	})
}

func TestStuckRenewalDoesNotShortenLaterOne(t *testing.T) {
	runLateClients(t, func(l *lateClient) {
		lease := l.acquire(l.client, "k", &holdfast.AcquireOptions{TTL: 8 * time.Second, NoRenew: true})
		pass := l.holdScript(l.format.Renew, func() { lease.Extend(l.boundedContext(), 8*time.Second) })
		l.extendLease(lease, longTTL)
		pass()
		l.checkStands(lease)
	})
}

func TestLateAcquireDoesNotShortenLease(t *testing.T) {
	runLateClients(t, func(l *lateClient) {
		taken := make(chan *holdfast.Lease, 1)
		pass := l.holdScript(l.format.Acquire, func() {
			taken <- l.acquire(l.client, "k", &holdfast.AcquireOptions{TTL: 8 * time.Second, NoRenew: true})
		})
		lease := <-taken
		l.extendLease(lease, longTTL)
		pass()
		l.checkStands(lease)
	})
}

func TestLateAdoptionDoesNotShortenLease(t *testing.T) {
	runLateClients(t, func(l *lateClient) {
		old := l.acquire(l.giver, "k", &holdfast.AcquireOptions{TTL: longTTL, Adoptable: true})
		if err := old.Detach(); err != nil {
			l.Fatal(err)
		}
		taken := make(chan *holdfast.Lease, 1)
		pass := l.holdScript(l.format.Adopt, func() {
			lease, err := l.client.Adopt(l.boundedContext(), "k", old.Owner(), old.Token(), &holdfast.AcquireOptions{TTL: 6 * time.Second, NoRenew: true})
			if err != nil {
				l.Error(err)
			}
			taken <- lease
		})
		lease := <-taken
		if lease == nil {
			return
		}
		l.extendLease(lease, longTTL)
		pass()
		l.checkStands(lease)
	})
}
