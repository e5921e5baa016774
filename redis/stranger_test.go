package redis_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis"
)

// fakeNetwork is a network of servers, by host. A host without an answer closes the connection. Each host
// records logins.
type fakeNetwork struct {
	mu     sync.Mutex                             // guards the fields below
	hosts  map[string]func(words []string) []byte // nil: no answer; missing: the connection is rejected
	logins []string
}

func (h *fakeNetwork) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(addr)
	h.mu.Lock()
	answer, there := h.hosts[host]
	h.mu.Unlock()
	switch {
	case !there:
		return nil, syscall.ECONNREFUSED
	case answer == nil:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		for in := resp.NewReader(far); ; {
			args, _, err := in.ReadCommand()
			if err != nil {
				return
			}
			words := make([]string, len(args))
			for i, a := range args {
				words[i] = string(a)
			}
			if words[0] == "AUTH" {
				h.mu.Lock()
				h.logins = append(h.logins, host)
				h.mu.Unlock()
			}
			out := answer(words)
			if _, err := far.Write(out); err != nil || out == nil {
				return
			}
		}
	}()
	return near, nil
}

// seenAddresses returns the hosts that got a login, in order.
func (h *fakeNetwork) seenAddresses() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.logins)
}

// While other Sentinels are late, or as many name another server, a wrong or hostile Sentinel cannot direct the
// password to its own server.
func TestPasswordNeedsMajorityOfSentinels(t *testing.T) {
	t.Parallel()
	const good, evil, late, refuses = "good", "evil", "late", "refuses"
	for _, c := range []struct {
		sentinels []string
		opens     bool
	}{
		{[]string{good, good, evil}, true},
		{[]string{good, refuses, refuses}, true},
		{[]string{good, good, evil, refuses, refuses}, true},
		{[]string{good, refuses, evil}, false},
		{[]string{refuses, evil, good}, false},
		{[]string{good, late, evil}, false},
		{[]string{late, late, evil}, false},
		{[]string{late, late, good}, false}, // the case above looks the same
		{[]string{late, good, good, evil, late}, false},
		{[]string{evil, late}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := &hostileServer{turn: 1 << 30}
			h := &fakeNetwork{hosts: map[string]func([]string) []byte{good: server.answer, evil: server.answer}}
			f := &redis.Failover{Master: "m"}
			for i, says := range c.sentinels {
				host := string(rune('a' + i))
				f.Sentinels = append(f.Sentinels, host+":26379")
				switch says {
				case late:
					h.hosts[host] = nil
				case good, evil:
					h.hosts[host] = func([]string) []byte { return resp.AppendCommand(nil, says, "6379") }
				}
			}
			opts := &redis.Options{Dial: h.dial, Password: "of the servers", NoQuarantine: true}
			d, err := redis.New(t.Context(), []redis.Node{{Failover: f}}, opts)
			if (err == nil) != c.opens {
				t.Errorf("%v: Open = %v", c.sentinels, err)
			}
			if err == nil {
				d.Close()
			}
			if seen := h.seenAddresses(); slices.Contains(seen, evil) || slices.Contains(seen, good) != c.opens {
				t.Errorf("%v: logins at %v", c.sentinels, seen)
			}
		})
	}
}

// A client reconnects to its known server while most Sentinels are silent.
func TestSentinelMinorityMayNameKnownServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &hostileServer{turn: 1 << 30}
		says := func([]string) []byte { return resp.AppendCommand(nil, "good", "6379") }
		h := &fakeNetwork{hosts: map[string]func([]string) []byte{"good": server.answer, "a": says, "b": says, "c": nil}}
		f := &redis.Failover{Master: "m", Sentinels: []string{"a:26379", "b:26379", "c:26379"}}
		opts := &redis.Options{Dial: h.dial, Password: "of the servers", NoQuarantine: true}
		newDriver(t, []redis.Node{{Failover: f}}, opts)
		h.mu.Lock()
		h.hosts["b"] = nil
		h.mu.Unlock()
		server.mu.Lock()
		server.info = "run_id:other\r\n" // ends its connection
		server.mu.Unlock()
		time.Sleep(5 * time.Second)
		if seen := h.seenAddresses(); len(seen) < 2 {
			t.Errorf("logins at %v, want a second one", seen)
		}
	})
}
