package redis_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// A server that comes back with older data has counters below the tokens that it has promised since.
func TestAdoptionSurvivesRestartFromSnapshot(t *testing.T) {
	r := startRig(t, 1)
	restart := func() {
		r.do(0, "SAVE")
		r.servers[0].Kill()
		r.noError(r.servers[0].Restart(t.Context()))
	}
	giver := r.newClient()
	l := r.acquire(giver, "k", &holdfast.AcquireOptions{TTL: longTTL, Adoptable: true})
	r.noError(l.Detach())
	restart()
	way := newRoute(t, r.servers)
	c := r.clientOf(r.openDriver(way.nodes(), nil), nil)
	held := way[0].HoldRequest(callsOf(wire.Adopt), 1)
	adopted := make(chan *holdfast.Lease)
	go func() {
		defer close(adopted)
		m, err := c.Adopt(r.boundedContext(), "k", l.Owner(), l.Token(), &holdfast.AcquireOptions{TTL: longTTL})
		if err != nil {
			t.Error(err)
			return
		}
		adopted <- m
	}()
	<-held.Caught()
	way.downNode(0, true)
	restart()
	way.downNode(0, false)
	if m := <-adopted; m != nil {
		if m.Token() <= l.Token() {
			t.Errorf("token %d after %d", m.Token(), l.Token())
		}
		r.release(m)
		r.checkCleared()
	}
}

// Another node may have renewed the lease later than this one. The holder then trusts it after this node's
// lock has expired. A single server needs the note only as long as its lock would last.
func TestNoteOfTakeoverOutlastsTrust(t *testing.T) {
	for n, least := range map[int]time.Duration{1: 0, 3: 2 * longTTL} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			r := startRig(t, n)
			c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{MaxTTL: longTTL}), nil)
			for what, take := range map[string]func(l *holdfast.Lease) error{
				"force": func(l *holdfast.Lease) error { return c.ForceRelease(r.boundedContext(), l.Key(), l.Token(), "") },
				"adopt": func(l *holdfast.Lease) error {
					if err := l.Detach(); err != nil {
						return err
					}
					m, err := c.Adopt(r.boundedContext(), l.Key(), l.Owner(), l.Token(), nil)
					if err != nil {
						return err
					}
					return m.Release(r.boundedContext())
				},
			} {
				l := r.acquire(c, what, &holdfast.AcquireOptions{TTL: longTTL, Adoptable: true})
				before := time.Now()
				r.noError(take(l))
				for i := range n {
					var score any
					// a force is done when the remaining nodes are no quorum; the other nodes may execute it
					// later
					r.eventually(fmt.Sprintf("a note of %s on node %d", what, i), func() bool {
						score = r.do(i, "ZSCORE", wire.QueueKey("lock:"+what), "~"+l.Owner())
						return score != nil
					})
					until, err := strconv.ParseFloat(fmt.Sprint(score), 64)
					r.noError(err)
					end := time.UnixMilli(int64(-until - 1e14))
					if end.Sub(before) <= least || n == 1 && time.Until(end) > longTTL {
						t.Errorf("%s: node %d keeps the owner note for %v", what, i, end.Sub(before))
					}
				}
			}
		})
	}
}
