package redlock

import (
	"context"
	"errors"
	"testing"

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
	n := d.nodes[0]
	for _, s := range n.senders {
		s.finish(t.Context()) // from here on the test sends
	}
	t.Cleanup(func() {
		d.engine.Close()
		n.client.Close()
		d.stop()
		d.work.Wait()
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: d.opts.MaxTTL})
		ended <- err
	}()
	for queued := 0; queued == 0; {
		for _, s := range n.senders {
			s.mu.Lock()
			queued += len(s.queue)
			s.mu.Unlock()
		}
	}
	n.mu.Lock()
	n.probing = true // by the test
	n.mu.Unlock()
	n.broken(errors.New("broke"))
	cancel()
	<-ended
	n.up()
	for _, s := range n.senders {
		for s.take() {
			s.run()
		}
	}
	if v, err := server.Do("EXISTS", "lock:k"); err != nil || v != int64(0) {
		t.Errorf("a lock is left: %v, %v", v, err)
	}
}
