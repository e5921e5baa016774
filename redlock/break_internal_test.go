package redlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

// patience is how long anything may take that is certain to come.
const patience = 20 * time.Second

// heldUp is an acquire that waits for its turn on a link that writes nothing.
type heldUp struct {
	*testing.T
	server *redisproc.Server
	node   *node
	link   *link
	leave  context.CancelFunc // ends the caller's context
	ended  chan struct{}      // closed when the acquire has returned
}

func holdUp(t *testing.T) *heldUp {
	t.Helper()
	server := redistest.Start(t, nil)
	d, err := New(t.Context(), []Node{{Addr: server.Addr()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	h := &heldUp{T: t, server: server, node: d.nodes[0], link: d.nodes[0].link.Load(), ended: make(chan struct{})}
	h.link.mu.Lock()
	h.link.held = true
	h.link.mu.Unlock()
	ctx, leave := context.WithCancel(t.Context())
	h.leave = leave
	go func() {
		defer close(h.ended)
		d.Acquire(ctx, driver.Request{Key: "k", TTL: d.opts.MaxTTL})
	}()
	return h
}

// eventually waits until ok returns true.
func (h *heldUp) eventually(what string, ok func() bool) {
	h.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			h.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// free checks that nobody holds the lock.
func (h *heldUp) free() {
	h.Helper()
	if v, err := h.server.Do("EXISTS", "lock:k"); err != nil || v != int64(0) {
		h.Errorf("a lock is left: %v, %v", v, err)
	}
}

// An acquire waits for its turn as the connection breaks; its caller leaves, and
// its release goes out over the next connection. Sent behind it, the acquire would
// leave a lock that nobody holds, for a TTL.
func TestABreakLetsNoRequestOvertakeItsRelease(t *testing.T) {
	t.Parallel()
	h := holdUp(t)
	h.eventually("the acquire waits", func() bool {
		h.link.mu.Lock()
		defer h.link.mu.Unlock()
		return len(h.link.queue) > 0
	})
	h.link.hangUp(errors.New("broke"))
	h.leave()
	<-h.ended
	h.eventually("the next connection", func() bool {
		next := h.node.link.Load()
		return next != nil && next != h.link
	})
	h.free()
}

// An acquire is to be sent again, as the server did not know its script; meanwhile
// its caller leaves. Sent behind its release, it would leave a lock that nobody holds.
func TestWhatIsSentAgainGoesBeforeItsRelease(t *testing.T) {
	t.Parallel()
	h := holdUp(t)
	l := h.link
	// take removes the first request of a kind from the queue.
	take := func(release bool) (e entry) {
		h.eventually("the request is queued", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			i := slices.IndexFunc(l.queue, func(e entry) bool { return e.req != nil && e.release() == release })
			if i < 0 {
				return false
			}
			e = l.queue[i]
			l.queue = slices.Delete(l.queue, i, i+1)
			return true
		})
		return e
	}
	acquire := take(false)
	h.leave()
	release := take(true)
	l.mu.Lock()
	l.again, l.queue = []entry{acquire}, append(l.queue, release)
	l.mu.Unlock()
	l.repeat()
	<-h.ended
	if _, err := l.do(t.Context(), []string{"PING"}); err != nil { // answered behind both
		t.Fatal(err)
	}
	h.free()
}
