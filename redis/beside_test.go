package redis_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redis"
)

// A server is suspended, another server takes over its address, and the first one resumes. The client leaves
// the first server as soon as it has met the other, because other clients get the lock there.
func TestServerThatLostItsAddressIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 2 * time.Second
		first, second := &hostileServer{turn: 1 << 30}, &hostileServer{turn: 1 << 30, info: "run_id:other\r\n"}
		var moved atomic.Bool
		var standsUntil, askedFirst atomic.Int64
		h := &fakeNetwork{hosts: map[string]func([]string) []byte{
			"first": func(words []string) []byte {
				time.Sleep(time.Until(time.Unix(0, standsUntil.Load())))
				askedFirst.Store(time.Now().UnixNano())
				return first.answer(words)
			},
			"second": func(words []string) []byte {
				time.Sleep(20 * time.Millisecond)
				return second.answer(words)
			},
		}}
		d := newDriver(t, []redis.Node{{Addr: "server:6379"}}, &redis.Options{
			Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				if moved.Load() {
					return h.dial(ctx, network, "second:6379")
				}
				return h.dial(ctx, network, "first:6379")
			},
		})
		c := openClient(t, d, nil)
		if _, err := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: ttl}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl/3 - time.Millisecond)
		moved.Store(true)
		continues := time.Now().Add(ttl/4 + 260*time.Millisecond) // just after the client has dialed again
		standsUntil.Store(continues.UnixNano())
		time.Sleep(10 * time.Second)
		if last := time.Unix(0, askedFirst.Load()); last.After(continues.Add(2 * time.Second)) {
			t.Errorf("the first server received a request %v after it resumed", last.Sub(continues))
		}
		second.mu.Lock()
		defer second.mu.Unlock()
		if !strings.Contains(second.set, "run=other") {
			t.Errorf("the second server was never admitted: %q", second.set)
		}
	})
}
