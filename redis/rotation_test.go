package redis_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// If a server rejects a login that it accepted before, the wait continues, because its password, certificate
// or configuration may be about to be replaced. The error of a wait that ends meanwhile names the rejection,
// and Open fails at once.
func TestWaiterSurvivesCredentialRotation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command, refusal, info string
		kind                   error
	}{
		"WRONGPASS": {command: "AUTH", refusal: "-WRONGPASS invalid username-password pair or user is disabled.\r\n", kind: driver.ErrAuth},
		"NOAUTH":    {command: "HELLO", refusal: "-NOAUTH HELLO must be called with the client already authenticated\r\n", kind: driver.ErrAuth},
		"NOPERM":    {command: "SCRIPT", refusal: "-NOPERM this user has no permissions to run the 'script|load' command\r\n", kind: driver.ErrAuth},
		"eviction":  {info: "maxmemory_policy:allkeys-lru\r\n", kind: driver.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &hostileServer{turn: 1 << 30}
				var gap, free atomic.Bool
				h := &fakeNetwork{hosts: map[string]func([]string) []byte{"server": func(words []string) []byte {
					switch {
					case gap.Load() && words[0] == c.command:
						return []byte(c.refusal)
					case free.Load():
						for i, w := range words {
							words[i] = strings.ReplaceAll(w, "busy", "free")
						}
					}
					return server.answer(words)
				}}}
				begin := func(yes bool) {
					gap.Store(yes)
					server.mu.Lock()
					defer server.mu.Unlock()
					if server.info = ""; yes {
						server.info = "run_id:other\r\n" + c.info // ends its connections
					}
				}
				open := func() (*redis.Driver, error) {
					return redis.New(t.Context(), []redis.Node{{Addr: "server:6379"}}, &redis.Options{Dial: h.dial, Password: "secret"})
				}
				d, err := open()
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				type result struct {
					took time.Duration
					err  error
				}
				wait := func(most time.Duration) chan result {
					ended := make(chan result, 1)
					ctx, cancel := context.WithTimeout(t.Context(), most)
					go func() {
						defer cancel()
						at := time.Now()
						g, err := d.Acquire(ctx, driver.Request{Key: "busy", TTL: 10 * time.Second})
						if err == nil {
							d.Release(t.Context(), g, 0)
						}
						ended <- result{time.Since(at), err}
					}()
					return ended
				}
				short, patient := wait(15*time.Second), wait(5*time.Minute)
				time.Sleep(5 * time.Second)
				begin(true)
				time.Sleep(3 * time.Second)
				if _, err := d.Acquire(t.Context(), driver.Request{Key: "busy", TTL: 10 * time.Second, NoWait: true}); !errors.Is(err, c.kind) {
					t.Errorf("TryAcquire in the gap: %v, want %v", err, c.kind)
				}
				if other, err := open(); !errors.Is(err, c.kind) {
					t.Errorf("Open in the gap = %v, %v, want %v", other, err, c.kind)
				}
				if r := <-short; !errors.Is(r.err, context.DeadlineExceeded) || !errors.Is(r.err, c.kind) || r.took != 15*time.Second {
					t.Errorf("the wait that ended in the gap took %v: %v", r.took, r.err)
				}
				begin(false)
				free.Store(true)
				if r := <-patient; r.err != nil {
					t.Errorf("the wait that outlasts the gap took %v: %v", r.took, r.err)
				}
				if !slices.Contains(h.seenAddresses(), "server") {
					t.Error("no login succeeded")
				}
			})
		})
	}
}

// A login that no server has ever accepted ends the wait.
func TestWaitEndsOnRejectedCredentials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &fakeNetwork{hosts: map[string]func([]string) []byte{"server": nil}}
		d := newDriver(t, []redis.Node{{Addr: "server:6379"}}, &redis.Options{Dial: h.dial, Password: "secret", AllowDown: true})
		h.mu.Lock()
		h.hosts["server"] = func([]string) []byte {
			return []byte("-WRONGPASS invalid username-password pair or user is disabled.\r\n")
		}
		h.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second}); !errors.Is(err, driver.ErrAuth) || ctx.Err() != nil {
			t.Errorf("the wait ended with %v, want driver.ErrAuth and no timeout", err)
		}
	})
}

// The error names the command after which a proxy, or a server that only looks like Redis, stops answering.
func TestErrorNamesImitationsOfRedis(t *testing.T) {
	t.Parallel()
	usual := &hostileServer{turn: 1 << 30}
	unless := func(command string, other []byte) func([]string) []byte {
		return func(words []string) []byte {
			if words[0] == command {
				return other
			}
			return usual.answer(words)
		}
	}
	for name, c := range map[string]struct {
		answer func([]string) []byte
		db     int
		kind   error
		words  []string
	}{
		"closes at HELLO":    {unless("HELLO", nil), 0, driver.ErrUnavailable, []string{"HELLO: EOF", "a proxy does that does not know HELLO"}},
		"is silent at HELLO": {unless("HELLO", []byte{}), 0, driver.ErrUnavailable, []string{"no answer to HELLO before the timeout"}},
		"other words": {
			unless("EVALSHA", []byte("-Error command EVALSHA not supported\r\n")), 0, driver.ErrConfig, []string{"EVALSHA", "a proxy does not know it"},
		},
		"a cluster without db": {
			unless("SELECT", []byte("-ERR SELECT is not allowed in cluster mode\r\n")), 3, driver.ErrConfig, []string{"database 0 alone", "cluster-databases"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &fakeNetwork{hosts: map[string]func([]string) []byte{"server": c.answer}}
				d, err := redis.New(t.Context(), []redis.Node{{Addr: "server:6379"}}, &redis.Options{Dial: h.dial, DB: c.db})
				if err == nil {
					d.Close()
				}
				if !errors.Is(err, c.kind) {
					t.Errorf("Open = %v, want %v", err, c.kind)
				}
				checkMentions(t, err, c.words...)
			})
		})
	}
}

// A server is busy for longer than a renewal may take, while no new connection can be opened: the login
// changes, or connections are slow. The old connection still works, and the lease continues over it.
func TestBusyServerInRotationKeepsLease(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	for name, dial := range map[string]func(context.Context) error{
		"refused": func(context.Context) error { return syscall.ECONNREFUSED },
		"silent": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &hostileServer{turn: 1 << 30}
				var busyUntil atomic.Int64
				h := &fakeNetwork{hosts: map[string]func([]string) []byte{"server": func(words []string) []byte {
					time.Sleep(time.Until(time.Unix(0, busyUntil.Load())))
					return server.answer(words)
				}}}
				var gap atomic.Bool
				d := newDriver(t, []redis.Node{{Addr: "server:6379"}}, &redis.Options{
					Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
						if gap.Load() {
							return nil, dial(ctx)
						}
						return h.dial(ctx, network, addr)
					},
				})
				c := openClient(t, d, nil)
				l := acquire(t, c, "k", &holdfast.AcquireOptions{TTL: ttl})
				gap.Store(true)
				time.Sleep(ttl/3 - time.Millisecond)
				busyUntil.Store(time.Now().Add(ttl/2 - 50*time.Millisecond).UnixNano())
				time.Sleep(5 * time.Second)
				if err := context.Cause(l.Context()); err != nil {
					t.Errorf("the lease ended: %v", err)
				}
				gap.Store(false)
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release() = %v", err)
				}
			})
		})
	}
}

// closeNotice is a connection that records that it was closed.
type closeNotice struct {
	net.Conn
	closed *atomic.Bool
}

func (c closeNotice) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

// A connection that has died without a word is replaced in time to renew the lease. Never do two connections
// carry requests.
func TestDeadConnectionIsReplacedInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 2 * time.Second
		server := &hostileServer{turn: 1 << 30}
		var dead, closed atomic.Bool
		var dials, renewed atomic.Int32
		h := &fakeNetwork{hosts: map[string]func([]string) []byte{
			"old": func(words []string) []byte {
				if dead.Load() {
					return []byte{}
				}
				return server.answer(words)
			},
			"new": func(words []string) []byte {
				if words[0] == "EVALSHA" && words[1] == wire.Plain.Renew.SHA {
					renewed.Add(1)
					if !closed.Load() {
						t.Error("a renewal used the old connection")
					}
				}
				return server.answer(words)
			},
		}}
		d := newDriver(t, []redis.Node{{Addr: "server:6379"}}, &redis.Options{
			Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				if dead.Load() {
					return h.dial(ctx, network, "new:6379")
				}
				conn, err := h.dial(ctx, network, "old:6379")
				if err == nil && dials.Add(1) == 1 { // the others only check the server
					conn = closeNotice{conn, &closed}
				}
				return conn, err
			},
		})
		c := openClient(t, d, nil)
		l := acquire(t, c, "k", &holdfast.AcquireOptions{TTL: ttl})
		dead.Store(true)
		time.Sleep(5 * time.Second)
		if err := context.Cause(l.Context()); err != nil || renewed.Load() == 0 {
			t.Errorf("the lease was renewed %d times over the new connection, and ended: %v", renewed.Load(), err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release() = %v", err)
		}
	})
}
