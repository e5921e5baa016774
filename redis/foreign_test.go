package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// lockForeign acquires a lock as redsync, redislock and redis-py do.
func (r *rig) lockForeign(key, value string) bool {
	r.Helper()
	taken := 0
	for i := range r.servers {
		if r.do(i, "SET", key, value, "NX", "PX", "40000") == "OK" {
			taken++
		}
	}
	return taken > len(r.servers)/2
}

// checkVacant waits until the release of key has reached every server; the release itself needs only a quorum.
func (r *rig) checkVacant(key string) {
	r.Helper()
	for i := range r.servers {
		r.eventually("every node is free", func() bool { return r.do(i, "EXISTS", key) == int64(0) })
	}
}

func (r *rig) deleteKey(key string) {
	r.Helper()
	for i := range r.servers {
		r.do(i, "DEL", key)
	}
}

func TestBareKeysExcludeOtherLibraries(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			r := startRig(t, n)
			bare := &redis.Options{BareKeys: true}
			c := r.clientOf(r.openDriver(r.nodes(), bare), nil)
			l := r.acquire(c, "job:1", &holdfast.AcquireOptions{TTL: longTTL})
			if r.lockForeign("job:1", "theirs") {
				t.Error("another library acquired a held lock")
			}
			r.release(l)
			r.deleteKey("job:1") // the keys that a failed attempt has left on a minority

			if !r.lockForeign("job:1", "theirs") {
				t.Fatal("another library could not acquire a free lock")
			}

			_, err := c.TryAcquire(t.Context(), "job:1", nil)
			held, ok := errors.AsType[*holdfast.HeldError](err)
			if !ok || held.Owner != "theirs" {
				t.Errorf("error %v, want held by theirs", err)
			}
			checkMentions(t, err, `"theirs"`)
			st, err := c.Inspect(t.Context(), "job:1")
			if err != nil || !st.Held || st.Owner != "theirs" || !st.Since.IsZero() {
				t.Errorf("Inspect() = %+v, %v", st, err)
			}
			// Its release wakes no waiter, but the waiter finds the free lock.
			next := r.waitAndRelease(c, "job:1", &holdfast.AcquireOptions{TTL: longTTL})
			r.awaitWaiters(c, "job:1", 1)
			r.deleteKey("job:1")
			if err := <-next; err != nil {
				t.Errorf("waiting for another library's lock: %v", err)
			}
			// A leftover value that never expires.
			for i := range n {
				r.do(i, "SET", "job:1", "for ever")
			}
			if st, err := c.Inspect(t.Context(), "job:1"); err != nil || !st.Held || st.Remaining >= 0 {
				t.Errorf("Inspect() = %+v, %v, want a lock without end", st, err)
			}
		})
	}
}

func TestForceReleaseOfAnotherLibrarysLock(t *testing.T) {
	r := startRig(t, 3)
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{BareKeys: true}), nil)
	forced := func(want error) {
		t.Helper()
		late := false // a second attempt may find that the first has succeeded
		err := r.retryLate(func() error {
			err := c.ForceRelease(t.Context(), "job", 0, "")
			late = late || errors.Is(err, holdfast.ErrUnavailable)
			return err
		})
		if !errors.Is(err, want) && !(want == nil && late && errors.Is(err, holdfast.ErrLost)) {
			t.Errorf("ForceRelease(0) = %v, want %v", err, want)
		}
	}
	forced(holdfast.ErrLost) // nobody holds it
	l := r.acquire(c, "job", &holdfast.AcquireOptions{TTL: longTTL})
	forced(holdfast.ErrLost) // a lock of Holdfast has a token
	if err := r.retryLate(func() error { return l.Check(t.Context()) }); err != nil {
		t.Error(err)
	}
	r.release(l)
	r.checkVacant("job")
	r.lockForeign("job", "theirs")
	r.do(2, "SET", "job", "newer") // a newer value on one node, which must not be deleted
	forced(nil)
	if v := r.do(2, "GET", "job"); v != "newer" {
		t.Errorf("the newer value was changed to %v", v)
	}
	for i := range 2 {
		if v := r.do(i, "GET", "job"); v != nil {
			t.Errorf("%v is still on node %d", v, i)
		}
	}
	r.deleteKey("job")
	r.release(r.acquire(c, "job", nil))
}

// Another library does not change the counter, so the token of the previous holder still seems to match.
func TestOldTokenSparesOtherLibrarysLock(t *testing.T) {
	r := startRig(t, 3)
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{BareKeys: true}), nil)
	l := r.acquire(c, "job", &holdfast.AcquireOptions{TTL: longTTL})
	r.release(l)
	r.checkVacant("job")
	r.lockForeign("job", "theirs")
	if st, err := c.Inspect(t.Context(), "job"); err != nil || st.Token != 0 {
		t.Errorf("Inspect() = token %d, %v, want none", st.Token, err)
	}
	if err := c.ForceRelease(t.Context(), "job", l.Token(), ""); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("ForceRelease with an old token = %v, want ErrLost", err)
	}
	for i := range 3 {
		if v := r.do(i, "GET", "job"); v != "theirs" {
			t.Errorf("their lock on node %d was changed to %v", i, v)
		}
	}
}

// doEverywhere runs a command on all servers.
func (r *rig) doEverywhere(args ...string) {
	r.Helper()
	for i := range r.servers {
		r.do(i, args...)
	}
}

// If another program stores another type of value under the key, as Redisson does, the lock counts as held,
// and not as a fault of the nodes: a program that runs without the lock while nodes are down must not run
// while another one holds it.
func TestKeyOfOtherTypeIsHeld(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			r := startRig(t, n)
			c := r.newClient()
			queue := func(name string) string { return wire.QueueKey("lock:" + name) }
			put := map[string][]string{
				"hash": {"HSET", "lock:hash", "5b1c:1", "1"},
				"list": {"RPUSH", "lock:list", "x"},
				"zset": {"ZADD", "lock:zset", "1", "x"},
			}
			said := map[string]string{"hash": "a hash (Redisson?)", "list": "type list", "zset": "type zset"}
			for name, cmd := range put {
				r.doEverywhere(cmd...)
				r.doEverywhere("PEXPIRE", "lock:"+name, "40000")
				_, err := c.TryAcquire(t.Context(), name, nil)
				held, ok := errors.AsType[*holdfast.HeldError](err)
				if !ok || errors.Is(err, holdfast.ErrUnavailable) || held.Remaining <= 0 || held.Remaining > longTTL {
					t.Errorf("%s: TryAcquire() = %v (%+v), want held with its time left", name, err, held)
				}
				checkMentions(t, err, said[name])
				err = r.waitError(c, name)
				if !errors.Is(err, holdfast.ErrHeld) || errors.Is(err, holdfast.ErrUnavailable) {
					t.Errorf("%s: Acquire() = %v, want held", name, err)
				}
				r.eventually("the place in the queue is given up", func() bool {
					left := 0
					for i := range n {
						left += int(r.do(i, "EXISTS", queue(name)).(int64))
					}
					return left == 0
				})
				st, err := c.Inspect(t.Context(), name)
				if err != nil || !st.Held || st.Token != 0 || !strings.Contains(st.Holder.String(), said[name]) {
					t.Errorf("%s: Inspect() = %+v, %v", name, st, err)
				}
				if err := c.ForceRelease(t.Context(), name, 0, ""); !errors.Is(err, holdfast.ErrInvalid) {
					t.Errorf("%s: ForceRelease(0) = %v, want driver.ErrInvalid: a newer holder cannot be told from this one", name, err)
				}
				for i := range n {
					if kind := r.do(i, "TYPE", "lock:"+name); kind != name {
						t.Errorf("%s on node %d was changed to %v", name, i, kind)
					}
				}
			}
			l := r.acquire(c, "ours", nil)
			listed := make(map[string]string)
			for st, err := range c.List(t.Context(), "") {
				r.noError(err)
				listed[st.Key] = st.Holder.String()
			}
			for name, holder := range said {
				if !strings.Contains(listed[name], holder) {
					t.Errorf("%s is listed as held by %q", name, listed[name])
				}
			}
			if _, ok := listed["ours"]; !ok {
				t.Error("a lock among keys of other types was not listed")
			}
			r.release(l)
			next := r.waitAndRelease(c, "hash", nil)
			r.awaitWaiters(c, "hash", 1)
			r.doEverywhere("DEL", "lock:hash")
			if err := <-next; err != nil {
				t.Errorf("waiting for the key: %v", err)
			}
		})
	}
}

func TestOtherTypeIsHeldWithoutTypePermission(t *testing.T) {
	r, c, _, _ := startLockers(t, permissions...)
	r.do(0, "HSET", "lock:k", "5b1c:1", "1")
	_, err := c.TryAcquire(t.Context(), "k", nil)
	if !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("TryAcquire() = %v, want held", err)
	}
	checkMentions(t, err, "a key of another type")
}

// If a program replaces the value of the key, the lease is lost, not only unconfirmed.
func TestLeaseUnderKeyOfOtherTypeIsLost(t *testing.T) {
	r := startRig(t, 1)
	c := r.newClient()
	l := r.acquire(c, "a", &holdfast.AcquireOptions{TTL: longTTL})
	r.doEverywhere("DEL", "lock:a")
	r.doEverywhere("HSET", "lock:a", "5b1c:1", "1")
	if err := l.Extend(t.Context(), longTTL); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("Extend() = %v, want lost", err)
	}
	if kind := r.do(0, "TYPE", "lock:a"); kind != "hash" {
		t.Errorf("the other key was changed to %v", kind)
	}
}

func TestEmptyValueIsHeld(t *testing.T) {
	r := startRig(t, 1)
	c := r.newClient()
	r.do(0, "SET", "lock:a", "", "PX", "40000")
	_, err := c.TryAcquire(t.Context(), "a", nil)
	if !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("TryAcquire() = %v, want held", err)
	}
	checkMentions(t, err, "an empty value")
	st, err := c.Inspect(t.Context(), "a")
	if err != nil || !st.Held || st.Remaining <= 0 || st.Holder.String() != "an empty value" {
		t.Errorf("Inspect() = %+v, %v, want held", st, err)
	}
	listed := 0
	for st, err := range c.List(t.Context(), "") {
		if err != nil || !st.Held {
			t.Errorf("List yields %+v, %v", st, err)
		}
		listed++
	}
	if listed != 1 {
		t.Errorf("%d locks listed, want 1", listed)
	}
	if err := c.ForceRelease(t.Context(), "a", 0, ""); err != nil {
		t.Errorf("ForceRelease(0) = %v", err)
	}
	r.release(r.acquire(c, "a", nil))
}

// Two clients with and without a prefix report that they do not exclude each other.
func TestBareAndPrefixedClientsReportEachOther(t *testing.T) {
	r := startRig(t, 1)
	said := func(opts redis.Options) string {
		t.Helper()
		var log bytes.Buffer
		opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
		r.clientOf(r.openDriver(r.nodes(), &opts), nil)
		return log.String()
	}
	for _, c := range []struct {
		opts redis.Options
		want string
	}{
		{redis.Options{}, ""},
		{redis.Options{}, ""},
		{redis.Options{Prefix: "other:"}, ""},
		{redis.Options{BareKeys: true}, "clients without bare=true use this server too"},
		{redis.Options{}, "clients with bare=true use this server too"},
		{redis.Options{ReadOnly: true}, "level=WARN"},
		{redis.Options{Prefix: "other:"}, ""},
	} {
		if log := said(c.opts); !strings.Contains(log, c.want) || c.want == "" && log != "" {
			t.Errorf("prefix %q, bare %v: log = %q, want %q", c.opts.Prefix, c.opts.BareKeys, log, c.want)
		}
	}
}

// With bare keys the names themselves are keys, and do not collide with Holdfast's other keys. While programs
// change from redsync to Holdfast, both may hold the lock if one uses a prefix.
func TestUnprefixedKeyIsLogged(t *testing.T) {
	r, log := startRig(t, 3), new(logRecorder)
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{Logger: slog.New(log)}), nil)
	for i := range r.servers {
		r.do(i, "SET", "job", "value", "NX", "PX", "40000") // as redsync does
		r.do(i, "SET", "page", "1")                         // no lock: it does not expire
	}
	warned := func(name string) (times int) {
		for _, line := range log.lines() {
			if strings.Contains(line, fmt.Sprintf("%q", name)) && strings.Contains(line, "bare=true") {
				times++
			}
		}
		return times
	}
	r.eventually("the log has it", func() bool {
		r.release(r.acquire(c, "job", nil))
		return warned("job") > 0
	})
	for _, name := range []string{"page", "free", "job"} {
		time.Sleep(1500 * time.Millisecond) // until the next look
		r.release(r.acquire(c, name, nil))
	}
	if warned("job") != 1 || warned("page") != 0 || warned("free") != 0 {
		t.Errorf("log = %q", log.lines())
	}
}

func TestUnusualBareKeysWork(t *testing.T) {
	r := startRig(t, 1)
	drv := r.openDriver(r.nodes(), &redis.Options{BareKeys: true})
	c, other := r.clientOf(drv, nil), r.clientOf(r.openDriver(r.nodes(), &redis.Options{BareKeys: true}), nil)
	names := []string{"x", "{x}", ":{x}", ":x", "{{x}", "{x}}", "a{b}c", "{}", "}", "{", "a b", "*", "lock:x", "ключ"}
	var leases []*holdfast.Lease
	for _, name := range names {
		leases = append(leases, r.acquire(c, name, &holdfast.AcquireOptions{TTL: longTTL}))
	}
	listed := 0
	for st, err := range other.List(t.Context(), "") {
		r.noError(err)
		listed++
		if st.Owner == "" {
			t.Errorf("List yields %+v", st)
		}
	}
	if listed != len(names) {
		t.Errorf("%d locks listed, want %d", listed, len(names))
	}
	for i, name := range names {
		if _, err := other.TryAcquire(t.Context(), name, nil); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("%q while another client holds it: %v", name, err)
		}
		st, err := other.Inspect(t.Context(), name)
		if err != nil || st.Token != leases[i].Token() {
			t.Errorf("Inspect(%q) = %+v, %v", name, st, err)
		}
		if ttl := r.do(0, "PTTL", name).(int64); time.Duration(ttl)*time.Millisecond > longTTL || ttl <= 0 {
			t.Errorf("PTTL %q = %d", name, ttl)
		}
	}
	r.release(leases...)
}

// Bare keys look like other data, but a key that clients of Holdfast wait for is a lock.
func TestListShowsOtherLibrarysAwaitedLock(t *testing.T) {
	r := startRig(t, 3)
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{BareKeys: true}), nil)
	r.lockForeign("theirs", "value")
	r.lockForeign("data", "value")
	held := r.acquire(c, "ours", &holdfast.AcquireOptions{TTL: longTTL})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, "theirs", nil)
		ended <- err
	}()
	r.eventually("the waiter has its place", func() bool { return r.do(0, "EXISTS", "holdfast:queue:{theirs}") == int64(1) })
	var names []string
	for st, err := range c.List(t.Context(), "") {
		if err != nil || !st.Held {
			t.Errorf("List yields %+v, %v", st, err)
		}
		names = append(names, st.Key)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"ours", "theirs"}) {
		t.Errorf("listed %q, want ours and theirs", names)
	}
	stop()
	<-ended
	r.release(held)
}
