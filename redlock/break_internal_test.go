package redlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/redisproc/redistest"
)

// An acquire waits for its turn as the connection breaks; its caller leaves, and
// its release goes out over the next connection. Sent behind it, the acquire would
// leave a lock that nobody holds, for a TTL.
func TestABreakLetsNoRequestOvertakeItsRelease(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, nil)
	d, err := Open(t.Context(), []Node{{Addr: server.Addr()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	n := d.nodes[0]
	l := n.link.Load()
	l.mu.Lock()
	l.held = true // nothing is written any more
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: d.opts.MaxTTL})
		ended <- err
	}()
	for queued := 0; queued == 0; {
		l.mu.Lock()
		queued = len(l.queue)
		l.mu.Unlock()
	}
	l.hangUp(errors.New("broke"))
	cancel()
	<-ended
	for n.link.Load() == nil || n.link.Load() == l {
		time.Sleep(time.Millisecond)
	}
	if v, err := server.Do("EXISTS", "lock:k"); err != nil || v != int64(0) {
		t.Errorf("a lock is left: %v, %v", v, err)
	}
}

// An acquire is to be sent again, as the server did not know its script; meanwhile
// its caller leaves. Sent behind its release, it would leave a lock that nobody holds.
func TestWhatIsSentAgainGoesBeforeItsRelease(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, nil)
	d, err := Open(t.Context(), []Node{{Addr: server.Addr()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	l := d.nodes[0].link.Load()
	l.mu.Lock()
	l.held = true
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: d.opts.MaxTTL})
		ended <- err
	}()
	// take removes the first request of a kind from the queue.
	take := func(release bool) (e entry) {
		for e.req == nil {
			l.mu.Lock()
			for i := range l.queue {
				if l.queue[i].req != nil && l.queue[i].release() == release {
					e = l.queue[i]
					l.queue = slices.Delete(l.queue, i, i+1)
					break
				}
			}
			l.mu.Unlock()
		}
		return e
	}
	acquire := take(false)
	cancel()
	release := take(true)
	l.mu.Lock()
	l.again, l.queue = []entry{acquire}, append(l.queue, release)
	l.mu.Unlock()
	l.repeat()
	<-ended
	if _, err := l.do(t.Context(), []string{"PING"}); err != nil { // answered behind both
		t.Fatal(err)
	}
	if v, err := server.Do("EXISTS", "lock:k"); err != nil || v != int64(0) {
		t.Errorf("a lock is left: %v, %v", v, err)
	}
}
