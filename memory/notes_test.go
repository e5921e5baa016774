package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// A chain of adoptions leaves notes only about owners that may still send a request.
func TestAdoptionNotesExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		d := memory.New(1)
		var clients [2]*holdfast.Client
		for i, each := range []*memory.Driver{d, d.Peer()} {
			clients[i] = openClient(t, each, nil)
		}
		opts := &holdfast.AcquireOptions{TTL: ttl, Adoptable: true}
		l, err := clients[0].Acquire(t.Context(), "k", opts)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			time.Sleep(time.Second)
			if err := l.Detach(); err != nil {
				t.Fatal(err)
			}
			if l, err = clients[(i+1)%2].Adopt(t.Context(), "k", l.Owner(), l.Token(), opts); err != nil {
				t.Fatal(err)
			}
		}
		if n := d.Notes("k"); n < 1 || n > int(ttl/time.Second)+1 {
			t.Errorf("after 100 adoptions, one each second: %d owner notes", n)
		}
		release(t, l)
		time.Sleep(2 * ttl)
		d.Leftovers()
		if n := d.Notes("k"); n != 0 {
			t.Errorf("at the end: %d owner notes", n)
		}
	})
}
