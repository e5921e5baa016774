package locktest

import (
	"github.com/holdfast-go/holdfast"
)

var nestingCases = []testCase{
	{"NestingNeedsReentrant", nestingNeedsReentrant},
	{"LastNestedReleaseFreesLock", lastNestedReleaseFrees},
}

func nestingNeedsReentrant(b *bench) {
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", nil)
	_, err := c.Acquire(l.Context(), "k", nil)
	b.checkError(err, holdfast.ErrNested)
	_, err = c.TryAcquire(l.Context(), "k", nil)
	b.checkError(err, holdfast.ErrNested)
	// A lease on another key or of another client is not nested.
	inner, err := c.Acquire(l.Context(), "other", nil)
	if err != nil {
		b.Fatal(err)
	}
	_, err = other.TryAcquire(l.Context(), "k", &holdfast.AcquireOptions{Reentrant: true})
	b.checkError(err, holdfast.ErrHeld)
	_, err = c.Acquire(inner.Context(), "k", nil)
	b.checkError(err, holdfast.ErrNested)
	b.release(inner, l)
	b.checkCleared()
}

func lastNestedReleaseFrees(b *bench) {
	c, other := b.newClient(), b.newClient()
	again := &holdfast.AcquireOptions{Reentrant: true}
	outer := b.acquire(c, "k", again)
	inner, err := c.Acquire(outer.Context(), "k", again)
	if err != nil {
		b.Fatal(err)
	}
	if inner.Token() != outer.Token() || inner.Owner() != outer.Owner() {
		b.Errorf("nested hold has %d %q, want %d %q", inner.Token(), inner.Owner(), outer.Token(), outer.Owner())
	}
	b.release(outer)
	if outer.Context().Err() == nil || inner.Context().Err() != nil {
		b.Error("the released hold's context is alive, or the other hold's has ended")
	}
	b.checkHeld(other, "k")
	b.release(inner)
	b.checkFree(other, "k")
	b.checkCleared()
}
