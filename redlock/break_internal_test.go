package redlock

import (
	"context"
	"errors"
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
