package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// The scripts of RLock in Redisson 4; verify/interop tests the library itself.
const (
	javaLock = `
		if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
		  redis.call('hincrby', KEYS[1], ARGV[2], 1)
		  redis.call('pexpire', KEYS[1], ARGV[1])
		  return -1
		end
		return redis.call('pttl', KEYS[1])`
	javaUnlock = `
		if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return -1 end
		if redis.call('hincrby', KEYS[1], ARGV[2], -1) > 0 then
		  redis.call('pexpire', KEYS[1], ARGV[1])
		  return 0
		end
		redis.call('del', KEYS[1])
		redis.call('publish', KEYS[2], '0')
		return 1`
)

// redissonThread is a Java thread, with the name that Redisson gives it.
type redissonThread string

const (
	javaThread = redissonThread("0b7f6c52-9f0e-4a59-8e35-6f1f6a1c2d3e:42")
	javaOther  = redissonThread("0b7f6c52-9f0e-4a59-8e35-6f1f6a1c2d3e:43")
)

// lock returns -1, or the remaining time of another owner's lock.
func (j redissonThread) lock(r *rig, key string) int64 {
	r.Helper()
	return r.do(0, "EVAL", javaLock, "1", key, "40000", string(j)).(int64)
}

// unlock returns 1 if the lock is free now, 0 if the thread still holds it, and -1 if the thread did not hold
// it.
func (j redissonThread) unlock(r *rig, key string) int64 {
	r.Helper()
	return r.do(0, "EVAL", javaUnlock, "2", key, "redisson_lock__channel:{"+key+"}", "40000", string(j)).(int64)
}

var redissonOptions = &redis.Options{Format: redis.FormatRedisson}

func (r *rig) redissonClient() *holdfast.Client {
	r.Helper()
	return r.clientOf(r.openDriver(r.nodes(), redissonOptions), nil)
}

func (r *rig) heldBy(c *holdfast.Client, key string, words ...string) {
	r.Helper()
	_, err := c.TryAcquire(r.Context(), key, nil)
	if !errors.Is(err, holdfast.ErrHeld) || errors.Is(err, holdfast.ErrUnavailable) {
		r.Errorf("TryAcquire(%q) = %v, want held", key, err)
	}
	checkMentions(r, err, words...)
}

// waitError returns the error of a wait for a lock that stays held. If the wait ended before any answer, it
// repeats the wait with more time.
func (r *rig) waitError(c *holdfast.Client, key string) (err error) {
	r.Helper()
	for wait := 100 * time.Millisecond; wait < fixture.MaxWait(); wait *= 2 {
		if _, err = c.Acquire(r.Context(), key, &holdfast.AcquireOptions{Wait: wait}); !errors.Is(err, holdfast.ErrUnavailable) {
			break
		}
	}
	return err
}

func TestJavaThreadsAndClientsExcludeEachOther(t *testing.T) {
	r := startRig(t, 1)
	c := r.redissonClient()
	for _, key := range []string{"job", "a{b}c", "{job}"} {
		l := r.acquire(c, key, &holdfast.AcquireOptions{TTL: longTTL, Note: "nightly import"})
		if left := javaThread.lock(r, key); left <= 0 || left > longTTL.Milliseconds() {
			t.Errorf("%q: a Java thread waits %d ms for a held lock", key, left)
		}
		if v := r.do(0, "HGETALL", key); fmt.Sprint(v) != fmt.Sprintf("[%s 1]", l.Owner()) {
			t.Errorf("%q holds %v", key, v)
		}
		r.release(l)
		if javaThread.lock(r, key) != -1 {
			t.Fatalf("%q: a Java thread did not acquire a free lock", key)
		}
		r.heldBy(c, key, "Redisson, thread 42 of client 0b7f6c52-9f0e-4a59-8e35-6f1f6a1c2d3e")
		r.do(0, "DEL", key)
	}
}

func TestReentrantThreadFreesLockAtLastUnlock(t *testing.T) {
	r := startRig(t, 1)
	c := r.redissonClient()
	javaThread.lock(r, "job")
	javaThread.lock(r, "job")
	st, err := c.Inspect(t.Context(), "job")
	if err != nil || !st.Held || st.Owner != string(javaThread) || st.Token != 0 || !strings.Contains(st.Holder.String(), "thread 42") ||
		!strings.HasSuffix(st.Holder.String(), "2 times") {
		t.Errorf("Inspect() = %+v, %v", st, err)
	}
	javaThread.unlock(r, "job")
	r.heldBy(c, "job")
	javaThread.unlock(r, "job")
	r.release(r.acquire(c, "job", nil))
}

// With many waiters, a waiter pauses for at least 5 s between its own requests. A Java program has an
// RReadWriteLock with such a name, without gate and places.
func TestReadersAreRejectedInRedissonFormat(t *testing.T) {
	r := startRig(t, 1)
	_, err := r.redissonClient().RWLock("job", 2).AcquireRead(t.Context(), nil)
	if !errors.Is(err, holdfast.ErrUnsupported) || !strings.Contains(err.Error(), "RReadWriteLock") {
		t.Errorf("Acquire() = %v", err)
	}
}

func TestWaiterAsksWhenRedissonPublishes(t *testing.T) {
	r := startRig(t, 1)
	p, err := faultproxy.New(r.servers[0].Addr())
	r.noError(err)
	t.Cleanup(func() { p.Close() })
	var asked atomic.Int32
	p.CutAfter(func(args [][]byte) bool {
		if callsOf(wire.Redisson.Acquire)(args) {
			asked.Add(1)
		}
		return false
	}, 1<<20)
	c := r.clientOf(r.openDriver([]redis.Node{{Addr: p.Addr()}}, redissonOptions), nil)
	javaThread.lock(r, "job")
	crowd := []string{"ZADD", "holdfast:queue:{job}"}
	for i := range 2000 {
		crowd = append(crowd, zaddPlaceArgs("", fmt.Sprintf("00000000-0000-8000-8000-000000000000:%d", i), 1<<51+i)[2:]...)
	}
	r.do(0, crowd...)
	next := fixture.RunAsync(func() *holdfast.Lease { return r.acquire(c, "job", nil) })
	const channel = "redisson_lock__channel:{job}"
	listeners := func() int64 { return r.do(0, "PUBSUB", "NUMSUB", channel).([]any)[1].(int64) }
	r.eventually("the waiter listens", func() bool { return listeners() == 1 && asked.Load() > 1 })
	hears := func() {
		t.Helper()
		ctx := r.boundedContext()
		for range 8 {
			for before := asked.Load(); asked.Load() == before; time.Sleep(time.Millisecond) {
				r.do(0, "PUBLISH", channel, "0")
				if ctx.Err() != nil {
					t.Fatal("messages that the lock is free did not make the waiter ask")
				}
			}
		}
	}
	hears()
	p.Cut()
	hears() // over the next connection
	ctx := r.boundedContext()
	// A thread that waits for an RFairLock is notified on a channel of its own. The waiter receives these
	// messages too.
	r.do(0, "RPUSH", "redisson_lock_queue:{job}", string(javaOther))
	r.do(0, "PUBLISH", channel, "0")
	r.eventually("the waiter listens for threads in line", func() bool { return r.do(0, "PUBSUB", "NUMPAT") == int64(1) })
	for before := asked.Load(); asked.Load() == before; time.Sleep(time.Millisecond) {
		r.do(0, "PUBLISH", channel+":"+string(javaOther), "0")
		if ctx.Err() != nil {
			t.Fatal("a message to a queued thread did not make the waiter ask")
		}
	}
	r.do(0, "DEL", "redisson_lock_queue:{job}")
	javaThread.unlock(r, "job")
	r.release(<-next)
	r.eventually("nobody listens any more", func() bool { return listeners() == 0 && r.do(0, "PUBSUB", "NUMPAT") == int64(0) })
}

// channelListener receives the messages of a channel, as a Java waiter does.
type channelListener struct{ *resp.Conn }

func (r *rig) subscribeTo(pattern string) channelListener {
	r.Helper()
	conn, err := net.Dial("tcp", r.servers[0].Addr())
	r.noError(err)
	r.Cleanup(func() { conn.Close() })
	e := channelListener{resp.NewConn(conn)}
	if _, err := e.Do([]string{"PSUBSCRIBE", pattern, "end"}); err != nil {
		r.Fatal(err)
	}
	if _, err := e.ReadValue(); err != nil { // of "end"
		r.Fatal(err)
	}
	return e
}

// takeMessages returns the messages since the last call: channel and text.
func (e channelListener) takeMessages(r *rig) (all []string) {
	r.Helper()
	r.do(0, "PUBLISH", "end", "")
	for {
		v, err := e.ReadValue()
		r.noError(err)
		if channel := string(v.Elems[2].Text); channel != "end" {
			all = append(all, strings.TrimPrefix(channel, "redisson_lock__channel:")+" "+string(v.Elems[3].Text))
			continue
		}
		return all
	}
}

func TestReleaseWakesJavaWaiters(t *testing.T) {
	r := startRig(t, 1)
	c, other := r.redissonClient(), r.redissonClient()
	e := r.subscribeTo("redisson_lock__channel:*")
	said := func(what string, want ...string) {
		t.Helper()
		if got := e.takeMessages(r); !slices.Equal(got, want) {
			t.Errorf("%s: messages %q, want %q", what, got, want)
		}
	}
	e.takeMessages(r) // the messages of the connection checks
	l := r.acquire(c, "job", &holdfast.AcquireOptions{TTL: longTTL})
	said("a lock that is taken")
	r.release(l)
	said("a lock that is freed", "{job} 0")
	r.release(r.acquire(c, "a{b", nil))
	said("a name with a brace", "a{b 0")

	l = r.acquire(c, "job", &holdfast.AcquireOptions{TTL: longTTL})
	now, _ := strconv.ParseInt(fmt.Sprint(r.do(0, "TIME").([]any)[0]), 10, 64)
	r.do(0, "RPUSH", "redisson_lock_queue:{job}", "dead:1", string(javaOther), string(javaThread))
	r.do(0, "ZADD", "redisson_lock_timeout:{job}", strconv.FormatInt(now*1000-1, 10), "dead:1",
		strconv.FormatInt(now*1000+600_000, 10), string(javaOther), strconv.FormatInt(now*1000+900_000, 10), string(javaThread))
	r.release(l)
	said("threads in line", "{job} 0", "{job}:"+string(javaOther)+" 0")
	if v := fmt.Sprint(r.do(0, "LRANGE", "redisson_lock_queue:{job}", "0", "-1"), r.do(0, "ZCARD", "redisson_lock_timeout:{job}")); v !=
		fmt.Sprintf("[%s %s] 2", javaOther, javaThread) {
		t.Errorf("queued threads = %v, want the living ones", v)
	}
	r.do(0, "DEL", "redisson_lock_queue:{job}", "redisson_lock_timeout:{job}")

	r.do(0, "EVAL", javaLock, "1", "job", "40000", string(javaThread))
	if err := other.ForceRelease(t.Context(), "job", 0, "it hangs"); err != nil {
		t.Errorf("ForceRelease of a Java thread's lock = %v", err)
	}
	said("a lock that is forced", "{job} 0")
	r.release(r.acquire(c, "job", nil))
}

func TestTokensShareOrderWithFencedLocks(t *testing.T) {
	r := startRig(t, 1)
	c := r.redissonClient()
	const counter = "redisson_lock_token:{job}"
	r.do(0, "SET", counter, "57") // a Java fenced lock was used first
	for range 3 {
		before := fmt.Sprint(r.do(0, "GET", counter))
		l := r.acquire(c, "job", nil)
		if n, _ := strconv.ParseInt(before, 10, 64); int64(l.Token()) != n+1 {
			t.Errorf("token %d after %s in Java", l.Token(), before)
		}
		r.release(l)
		if java := r.do(0, "INCR", counter).(int64); java < int64(l.Token())+32 {
			t.Errorf("the next token in Java is %d, and our block ends at %d", java, l.Token()+31)
		}
	}
	if ttl := r.do(0, "PTTL", counter); ttl != int64(-1) {
		t.Errorf("the counter expires in %v ms: a fenced lock would then begin at 1", ttl)
	}
	l := r.acquire(c, "new", nil)
	now := strings.Fields(strings.Trim(fmt.Sprint(r.do(0, "TIME")), "[]"))
	if second, err := strconv.ParseInt(now[0], 10, 64); err != nil || int64(l.Token()) > (second+1)*1e6 || int64(l.Token()) < (second-600)*1e6 {
		t.Errorf("a new counter begins at %d", l.Token())
	}
	if ttl := r.do(0, "PTTL", "redisson_lock_token:{new}"); ttl != int64(-1) {
		t.Errorf("a new counter expires in %v ms", ttl)
	}
	r.release(l)
}

// Redisson force-unlocks a lock without a record, and a thread without a token may have held it since.
func TestLockForcedInJavaIsLost(t *testing.T) {
	r := startRig(t, 1)
	c := r.redissonClient()
	l := r.acquire(c, "job", &holdfast.AcquireOptions{TTL: longTTL})
	r.do(0, "DEL", "job")
	javaThread.lock(r, "job")
	javaThread.unlock(r, "job")
	if err := l.Extend(t.Context(), longTTL); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("Extend() = %v, want lost", err)
	}
	if r.do(0, "EXISTS", "job") != int64(0) {
		t.Error("the lost lease got the lock again")
	}
}

func TestForeignValueCountsAsHeld(t *testing.T) {
	r := startRig(t, 1)
	c := r.redissonClient()
	for key, cmd := range map[string][]string{
		"string": {"SET", "string", "value"}, "list": {"RPUSH", "list", "x"},
		"hash of data": {"HSET", "hash of data", "name", "x"}, "read-write": {"HSET", "read-write", "mode", "read", string(javaThread), "1"},
	} {
		r.do(0, cmd...)
		before := r.do(0, "DUMP", key)
		r.heldBy(c, key)
		err := r.waitError(c, key)
		if !errors.Is(err, holdfast.ErrHeld) || errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("%s: Acquire() = %v, want held", key, err)
		}
		if err := c.ForceRelease(t.Context(), key, 0, ""); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: ForceRelease(0) = %v, want driver.ErrInvalid", key, err)
		}
		if after := r.do(0, "DUMP", key); after != before {
			t.Errorf("%s has changed", key)
		}
	}
	// A lock in the plain format is foreign to Redisson clients.
	r.release(r.acquire(c, "ours", nil))
	l := r.acquire(c, "ours", &holdfast.AcquireOptions{TTL: longTTL})
	r.heldBy(r.clientOf(r.openDriver(r.nodes(), &redis.Options{BareKeys: true}), nil), "ours", "Redisson")
	r.release(l)
}

func TestListShowsOnlyRedissonLocks(t *testing.T) {
	r := startRig(t, 1)
	c := r.redissonClient()
	javaThread.lock(r, "theirs")
	r.do(0, "HSET", "data", "name", "x")
	r.do(0, "HSET", "more data", "a", "x", "b", "y")
	l := r.acquire(c, "ours", &holdfast.AcquireOptions{TTL: longTTL})
	listed := make(map[string]string)
	for st, err := range c.List(t.Context(), "") {
		if err != nil || !st.Held {
			t.Errorf("List yields %+v, %v", st, err)
		}
		listed[st.Key] = st.Holder.String()
	}
	if len(listed) != 2 || !strings.Contains(listed["theirs"], "Redisson, thread 42") || strings.Contains(listed["ours"], "Redisson") {
		t.Errorf("listed are %q", listed)
	}
	d := r.openDriver(r.nodes(), redissonOptions)
	t.Cleanup(func() { d.Close() })
	r.do(0, "PERSIST", "theirs")
	if found := r.leaksOf(d); len(found) != 1 || found["theirs"].Owner != string(javaThread) || found["theirs"].Fixable {
		t.Errorf("leaks = %+v, want the lock without a TTL", found)
	}
	r.release(l)
}

func TestFormatRedissonIsForOneServer(t *testing.T) {
	t.Parallel()
	for url, words := range map[string][]string{
		"redlock://a,b,c?format=redisson":                   {"one server", "3"},
		"redis+sentinel://a:26379/mymaster?format=redisson": {"no other replaces", "address of the server"},
		"redis+cluster://a:6379?format=redisson":            {"Redis Cluster"},
		"redis://a?format=jedis":                            {`"jedis"`, "redisson"},
		"redis://a?format=redisson&bare=true&prefix=app:":   {"bare"},
	} {
		_, err := redis.Open(t.Context(), url, &redis.Options{NoCheck: true})
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, want driver.ErrInvalid", url, err)
		}
		checkMentions(t, err, words...)
	}
	for _, url := range []string{"redis://a?format=redisson", "redis://a?format=redisson&bare=true", "redis://a?format=redisson&prefix=app:"} {
		d, err := redis.Open(t.Context(), url, &redis.Options{NoCheck: true})
		if err != nil || !d.Limits().Token {
			t.Fatalf("%s: %v, without tokens", url, err)
		}
		d.Close()
	}
}

// The permissions that the doctor names also suffice for waiting and for wake-ups.
func TestRedissonPermissionsAreEnough(t *testing.T) {
	r := startWith(t, &redisproc.Options{})
	user := &redis.Options{Format: redis.FormatRedisson, Username: "locks", Password: "secret"}
	r.do(0, "ACL", "SETUSER", "locks", "on", ">secret", "+auth", "+hello", "+client|setname", "+ping", "+info", "+time", "+evalsha", "+script|load")
	var line string
	for _, f := range r.runDoctor(user) {
		if f.Check == "rights" {
			line = f.Fix
		}
	}
	if !strings.Contains(line, "~PATTERN-OF-THE-NAMES") {
		t.Fatalf("fix = %q", line)
	}
	r.do(0, strings.Fields(strings.Replace(line, "~PATTERN-OF-THE-NAMES", "~job*", 1))...)
	for _, f := range r.runDoctor(user) {
		if f.Bad() && f.Check != "persistence" && f.Check != "tls" {
			t.Errorf("%+v", f)
		}
	}
	d := r.openDriver(r.nodes(), user)
	c := r.clientOf(d, nil)
	javaThread.lock(r, "job")
	next := fixture.RunAsync(func() *holdfast.Lease { return r.acquire(c, "job", nil) })
	r.eventually("the waiter listens", func() bool { return r.do(0, "PUBSUB", "NUMSUB", "redisson_lock__channel:{job}").([]any)[1] == int64(1) })
	javaThread.unlock(r, "job")
	r.release(<-next)
	for _, e := range d.Nodes() {
		if e.State != driver.NodeUp && e.State != driver.NodeStalled {
			t.Errorf("the node is %s: %v", e.State, e.Err)
		}
	}
}

func (r *rig) runDoctor(opts *redis.Options) []driver.Finding {
	r.Helper()
	found, err := runDoctor(context.Background(), "redis://"+r.servers[0].Addr(), 0, opts)
	r.noError(err)
	return found
}
