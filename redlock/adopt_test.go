package redlock_test

import (
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// A server that comes back with older data has counters that go on below what it has promised since.
func TestAnAdoptionOutlivesAServerThatComesBackMeanwhile(t *testing.T) {
	r := start(t, 1)
	restart := func() {
		r.do(0, "SAVE")
		r.servers[0].Kill()
		if err := r.servers[0].Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	giver := r.client()
	l := r.acquire(giver, "k", &holdfast.AcquireOptions{TTL: long, Adoptable: true})
	if err := l.Detach(); err != nil {
		t.Fatal(err)
	}
	restart()
	way := newRoute(t, r.servers)
	c := r.clientOf(r.driver(way.nodes(), nil), nil)
	held := way[0].HoldRequest(calls(wire.Adopt), 1)
	adopted := make(chan *holdfast.Lease)
	go func() {
		defer close(adopted)
		m, err := c.Adopt(r.within(), "k", l.Owner(), l.Token(), &holdfast.AcquireOptions{TTL: long})
		if err != nil {
			t.Error(err)
			return
		}
		adopted <- m
	}()
	<-held.Caught()
	way.down(0, true)
	restart()
	way.down(0, false)
	if m := <-adopted; m != nil {
		if m.Token() <= l.Token() {
			t.Errorf("token %d after %d", m.Token(), l.Token())
		}
		r.release(m)
		r.cleared()
	}
}
