package redis_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redis"
)

// The client checks the server each second. A change that the gate would reject ends the connection, with an
// error that names the change.
func TestClientDisconnectsFromUnfitServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ info, want string }{
		"evicts":          {"maxmemory_policy:volatile-ttl\r\n", "maxmemory-policy is volatile-ttl"},
		"evicts all":      {"maxmemory_policy:allkeys-lru\r\n", "maxmemory-policy is allkeys-lru"},
		"demoted":         {"role:slave\r\nmaster_host:other\r\nmaster_port:6379\r\n", "replica"},
		"another process": {"run_id:other\r\n", "another process"},
		"a Sentinel":      {"redis_mode:sentinel\r\n", "it is a Sentinel"},
		"nothing":         {"used_memory:1\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &hostileServer{turn: 1 << 30}
				d := newDriver(t, []redis.Node{{Addr: "server:6379"}}, &redis.Options{Dial: s.dial})
				time.Sleep(10 * time.Second)
				if e := d.Nodes()[0]; e.State != driver.NodeUp {
					t.Errorf("before the change the node is %v: %v", e.State, e.Err)
				}
				s.mu.Lock()
				s.info = c.info
				s.mu.Unlock()
				var errs []error
				d.Notify(func(e driver.NodeEvent) { errs = append(errs, e.Err) })
				time.Sleep(1300 * time.Millisecond)
				synctest.Wait()
				if (len(errs) > 0) != (c.want != "") || len(errs) > 0 && !strings.Contains(errs[0].Error(), c.want) {
					t.Errorf("the client disconnected with %v, want %q", errs, c.want)
				}
			})
		})
	}
}

// If a check is due while the server does not answer, the check follows as soon as the server answers.
func TestStalledServerIsCheckedSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &hostileServer{turn: 1 << 30}
		var busyUntil atomic.Int64
		h := &fakeNetwork{hosts: map[string]func([]string) []byte{"server": func(words []string) []byte {
			time.Sleep(time.Until(time.Unix(0, busyUntil.Load())))
			return server.answer(words)
		}}}
		d := newDriver(t, []redis.Node{{Addr: "server:6379"}}, &redis.Options{Dial: h.dial})
		left := make(chan time.Time, 100)
		d.Notify(func(e driver.NodeEvent) {
			if e.State == driver.NodeDown {
				left <- time.Now()
			}
		})
		time.Sleep(10*time.Second + 600*time.Millisecond)
		server.mu.Lock()
		server.info = "maxmemory_policy:volatile-ttl\r\n"
		server.mu.Unlock()
		answers := time.Now().Add(450 * time.Millisecond) // the look is due in 400 ms
		busyUntil.Store(answers.UnixNano())
		d.Inspect(t.Context(), "k")
		if late := (<-left).Sub(answers); late > 300*time.Millisecond { // in virtual time
			t.Errorf("the client left the node %v after its answer", late)
		}
	})
}

// Defects that do not make a node unfit appear and disappear with their cause.
func TestDefectsFollowServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &hostileServer{turn: 1 << 30}
		d := newDriver(t, []redis.Node{{Addr: "server:6379"}}, &redis.Options{Dial: s.dial, AllowEviction: true})
		for _, c := range []struct{ info, says string }{
			{"connected_slaves:1\r\n", "1 connected replicas"},
			{"", "<nil>"},
			{"maxmemory_policy:volatile-ttl\r\n", "maxmemory-policy"},
		} {
			s.mu.Lock()
			s.info = c.info
			s.mu.Unlock()
			time.Sleep(2 * time.Second)
			if e := d.Nodes()[0]; !strings.Contains(errorText(e.Err), c.says) || (e.State == driver.NodeDegraded) != (c.info != "") {
				t.Errorf("with %q the node is %v: %v", c.info, e.State, e.Err)
			}
		}
	})
}

func errorText(err error) string {
	if err == nil {
		return "<nil>"
	}
	return err.Error()
}

// On a real server, a connected client gets no lock while the policy evicts. Its lease survives if the policy
// is corrected in time.
func TestServerThatStartsEvictingIsRejected(t *testing.T) {
	r := startRig(t, 1)
	holder, other := r.newClient(), r.newClient()
	l := r.acquire(holder, "k", &holdfast.AcquireOptions{TTL: longTTL})
	r.do(0, "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	var err error
	r.eventually("no client gets a lock", func() bool {
		var free *holdfast.Lease
		if free, err = other.TryAcquire(t.Context(), "free", nil); err == nil {
			r.release(free)
		}
		return err != nil && errors.Is(err, holdfast.ErrConfig)
	})
	checkMentions(t, err, "maxmemory-policy is volatile-ttl", "noeviction")
	r.do(0, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	r.eventually("the lease is extended again", func() bool { return l.Extend(t.Context(), longTTL) == nil })
	r.release(l, r.acquire(other, "free", nil))
}
