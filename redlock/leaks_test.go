package redlock_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redlock"
)

// leaks are what d finds, by key and owner.
func (r *rig) leaks(d *redlock.Driver) map[string]redlock.Leak {
	r.Helper()
	all := make(map[string]redlock.Leak)
	for l, err := range d.Leaks(r.within(), nil) {
		if err != nil {
			r.Fatal(err)
		}
		all[l.Key+" "+l.Owner] = l
	}
	return all
}

// gone is a waiter whose client has died.
const gone = "AAAAAAAAAAAAAAAAAAAAAAAAAA.1"

// plant puts leaks on the first server: ours is a lock that has lost its TTL.
func (r *rig) plant(ours string) {
	r.Helper()
	for _, cmd := range [][]string{
		{"SET", "lock:theirs", "value"},
		{"SET", "lock:empty", ""},
		{"HSET", "lock:hash", "id:1", "1"},
		{"SET", "lock:ours", ours},
		{"SET", "holdfast:fence:{lock:old}", "7"},
		{"SET", "holdfast:client:" + gone[:26], "{}"},
		{"ZADD", "holdfast:queue:{lock:old}", "1", gone},
		{"SET", "holdfast:other", "x"},
	} {
		r.do(0, cmd...)
	}
}

var planted = map[string]redlock.LeakKind{
	"lock:theirs value": redlock.LeakLock, "lock:empty ": redlock.LeakLock, "lock:hash (hash)": redlock.LeakLock,
	"holdfast:fence:{lock:old} ": redlock.LeakCompanion, "holdfast:client:" + gone[:26] + " ": redlock.LeakCompanion,
	"holdfast:queue:{lock:old} ": redlock.LeakCompanion, "holdfast:queue:{lock:old} " + gone: redlock.LeakWaiter,
	"holdfast:other ": redlock.LeakUnknown,
}

// TestEachLeakIsFoundAndNothingElse among locks that are held, waited for and idle.
func TestEachLeakIsFoundAndNothingElse(t *testing.T) {
	r := start(t, 1)
	c, waiter := r.client(), r.client()
	held := r.acquire(c, "held", &holdfast.AcquireOptions{TTL: long})
	r.release(r.acquire(c, "idle", nil))
	waits := make(chan *holdfast.Lease, 1)
	go func() { waits <- r.acquire(waiter, "held", nil) }()
	r.awaitWaiters(c, "held", 1)
	d := r.driver(r.nodes(), &redlock.Options{ReadOnly: true})
	t.Cleanup(func() { d.Close() })
	if found := r.leaks(d); len(found) > 0 {
		t.Errorf("without a leak: %+v", found)
	}
	ours := "BBBBBBBBBBBBBBBBBBBBBBBBBB.1"
	r.plant(ours)
	want := maps.Clone(planted)
	want["lock:ours "+ours] = redlock.LeakLock
	found := r.leaks(d)
	for what, kind := range want {
		if l := found[what]; l.Kind != kind || l.Text == "" || l.Node != r.servers[0].Addr() {
			t.Errorf("%s: %+v, want kind %s", what, l, kind)
		}
		delete(found, what)
	}
	if len(found) > 0 {
		t.Errorf("found also %+v", found)
	}
	r.release(held)
	r.release(<-waits)
}

// TestPlugMendsLeaksAndLeavesLocksAlone: what is no leak any more is left as it is.
func TestPlugMendsLeaksAndLeavesLocksAlone(t *testing.T) {
	r := start(t, 1)
	ours := "BBBBBBBBBBBBBBBBBBBBBBBBBB.1"
	r.plant(ours)
	d := r.driver(r.nodes(), &redlock.Options{MaxTTL: time.Minute})
	t.Cleanup(func() { d.Close() })
	looker := r.driver(r.nodes(), &redlock.Options{ReadOnly: true})
	t.Cleanup(func() { looker.Close() })
	found := r.leaks(d)

	// Meanwhile another holder took the first lock, and the second has got a TTL.
	r.do(0, "SET", "lock:theirs", "another")
	r.do(0, "PEXPIRE", "lock:empty", "40000")
	for _, what := range []string{"lock:theirs value", "lock:empty "} {
		if done, err := d.Plug(t.Context(), found[what]); done || err != nil {
			t.Errorf("Plug(%s) = %v, %v, though it is no leak any more", what, done, err)
		}
	}
	if v := r.do(0, "GET", "lock:theirs"); v != "another" {
		t.Errorf("the lock of the next holder is %v", v)
	}
	r.do(0, "SET", "lock:theirs", "value")
	r.do(0, "PERSIST", "lock:empty")

	if _, err := looker.Plug(t.Context(), found["lock:theirs value"]); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Plug with ReadOnly = %v", err)
	}
	for _, what := range slices.Sorted(maps.Keys(found)) {
		l := found[what]
		done, err := d.Plug(t.Context(), l)
		if l.Fixable != done || l.Fixable != (err == nil) {
			t.Errorf("Plug(%s) = %v, %v, and it is fixable: %v", what, done, err, l.Fixable)
		}
	}
	for key, most := range map[string]int64{
		"lock:ours": 60_000, "holdfast:fence:{lock:old}": 150_000, "holdfast:client:" + gone[:26]: 300_000,
	} {
		if left, _ := r.do(0, "PTTL", key).(int64); left <= 0 || left > most {
			t.Errorf("%s ends in %d ms, want up to %d", key, left, most)
		}
	}
	for _, key := range []string{"lock:theirs", "lock:empty", "holdfast:queue:{lock:old}"} {
		if r.do(0, "EXISTS", key) != int64(0) {
			t.Errorf("%s is still there", key)
		}
	}
	left := r.leaks(d)
	if len(left) != 2 || left["lock:hash (hash)"].Fixable || left["holdfast:other "].Fixable {
		t.Errorf("left are %+v", left)
	}
}

// TestAWaiterThatListensIsNoLeak, also if it began to between the look and the mending.
func TestAWaiterThatListensIsNoLeak(t *testing.T) {
	r := start(t, 1)
	c, waiter := r.client(), r.client()
	held := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: long})
	waits := make(chan *holdfast.Lease, 1)
	go func() { waits <- r.acquire(waiter, "k", nil) }()
	r.awaitWaiters(c, "k", 1)
	d := r.driver(r.nodes(), nil)
	t.Cleanup(func() { d.Close() })
	queue, err := c.Queue(t.Context(), "k", 1)
	if err != nil || len(queue) != 1 {
		t.Fatalf("Queue() = %v, %v", queue, err)
	}
	l := redlock.Leak{Node: r.servers[0].Addr(), Kind: redlock.LeakWaiter, Key: "holdfast:queue:{lock:k}", Owner: queue[0].Owner, Fixable: true}
	if done, err := d.Plug(t.Context(), l); done || err != nil {
		t.Errorf("Plug of a waiter that listens = %v, %v", done, err)
	}
	r.release(held)
	r.release(<-waits)
}

// TestAWaiterThatHasJustComeIsNoLeak: its client queues first and may subscribe a moment later.
func TestAWaiterThatHasJustComeIsNoLeak(t *testing.T) {
	r := start(t, 1)
	d := r.driver(r.nodes(), &redlock.Options{ReadOnly: true})
	t.Cleanup(func() { d.Close() })
	const queue, young = "holdfast:queue:{lock:k}", "BBBBBBBBBBBBBBBBBBBBBBBBBB.1"
	r.do(0, "ZADD", queue, "1", gone)
	r.do(0, "PEXPIRE", queue, "600000")
	steps, found := 0, make(map[string]bool)
	for l, err := range d.Leaks(r.within(), func(int64, int64) {
		if steps++; steps == 2 { // the queue has been read for the first time
			r.do(0, "ZADD", queue, "2", young)
		}
	}) {
		if err != nil {
			t.Fatal(err)
		}
		found[l.Owner] = true
	}
	if steps != 2 || !found[gone] || found[young] {
		t.Errorf("in %d steps leaks of %v, want the one of %s alone", steps, found, gone)
	}
}

// TestACounterThatIsPutBackLivesAsLongAsALongMaxTTLNeeds: while a lease may last, its name is not
// to begin again with lower tokens.
func TestACounterThatIsPutBackLivesAsLongAsALongMaxTTLNeeds(t *testing.T) {
	r := start(t, 1)
	d := r.driver(r.nodes(), &redlock.Options{MaxTTL: 12 * time.Hour})
	t.Cleanup(func() { d.Close() })
	const key = "holdfast:fence:{lock:old}"
	r.do(0, "SET", key, "7")
	l := r.leaks(d)[key+" "]
	if done, err := d.Plug(t.Context(), l); !done || err != nil {
		t.Fatalf("Plug(%+v) = %v, %v", l, done, err)
	}
	if left, _ := r.do(0, "PTTL", key).(int64); time.Duration(left)*time.Millisecond < 23*time.Hour {
		t.Errorf("the counter ends in %d ms, want twice MaxTTL", left)
	}
}

// TestLeaksOfBareKeysAreThoseWithACounter: other keys are data.
func TestLeaksOfBareKeysAreThoseWithACounter(t *testing.T) {
	r := start(t, 1)
	d := r.driver(r.nodes(), &redlock.Options{BareKeys: true})
	t.Cleanup(func() { d.Close() })
	r.do(0, "SET", "data", "x")
	r.do(0, "SET", "job", "x")
	r.do(0, "SET", "holdfast:fence:{job}", "7", "PX", "60000")
	if found := r.leaks(d); len(found) != 1 || found["job x"].Kind != redlock.LeakLock {
		t.Errorf("found %+v", found)
	}
}

// TestLeaksNameTheNodesThatWereNotRead, after the leaks of the others.
func TestLeaksNameTheNodesThatWereNotRead(t *testing.T) {
	r := start(t, 3)
	r.used(nil)
	r.do(2, "SET", "lock:theirs", "value")
	r.servers[0].Kill()
	d, err := redlock.Open(t.Context(), r.url(), &redlock.Options{ReadOnly: true, Timeout: busy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	var told []string
	for l, err := range d.Leaks(r.within(), nil) {
		if down, ok := errors.AsType[*driver.UnavailableError](err); ok && len(down.Nodes) == 1 {
			told = append(told, down.Nodes[0].Node)
		} else if err != nil {
			t.Error(err)
		} else {
			told = append(told, l.Key)
		}
	}
	if fmt.Sprint(told) != fmt.Sprint([]string{"lock:theirs", r.servers[0].Addr()}) {
		t.Errorf("told %q", told)
	}
}

// TestLeaksOnAFullServerHoldUpNobody: no command of the look is for more than a few hundred
// keys or entries, and so keeps the server for long.
func TestLeaksOnAFullServerHoldUpNobody(t *testing.T) {
	r := start(t, 1)
	r.crowd(50_000)
	r.plant("BBBBBBBBBBBBBBBBBBBBBBBBBB.1")
	r.do(0, "CONFIG", "SET", "slowlog-max-len", "100000")
	r.do(0, "CONFIG", "SET", "slowlog-log-slower-than", "0")
	r.do(0, "SLOWLOG", "RESET")
	d := r.driver(r.nodes(), &redlock.Options{ReadOnly: true})
	t.Cleanup(func() { d.Close() })
	changes := r.field(0, "rdb_changes_since_last_save")
	var looked, all int64
	found := 0
	for _, err := range d.Leaks(r.within(), func(l, a int64) {
		if l < looked || l > a {
			t.Errorf("%d of %d keys, after %d", l, a, looked)
		}
		looked, all = l, a
	}) {
		if err != nil {
			t.Fatal(err)
		}
		found++
	}
	if found != len(planted)+1 || all < 50_000 || looked == 0 {
		t.Errorf("%d leaks, and %d of %d keys", found, looked, all)
	}
	if now := r.field(0, "rdb_changes_since_last_save"); now != changes {
		t.Errorf("%s changes, and %s before", now, changes)
	}
	scans := 0
	for _, entry := range r.do(0, "SLOWLOG", "GET", "-1").([]any) {
		words := entry.([]any)[3].([]any)
		switch name := words[0]; name {
		case "SCAN":
			if scans++; fmt.Sprint(words[4:]) != "[COUNT 250]" {
				t.Errorf("%v", words)
			}
		case "ZRANGE":
			if fmt.Sprint(words[2:]) != "[0 199]" {
				t.Errorf("%v", words)
			}
		case "KEYS", "SMEMBERS", "HGETALL", "SORT":
			t.Errorf("%v", words)
		}
	}
	if scans < 200 {
		t.Errorf("%d SCANs of 50,000 keys", scans)
	}
}

// crowd makes n keys of other programs on the first server.
func (r *rig) crowd(n int) {
	r.Helper()
	for ; n > 0; n -= 10_000 {
		r.do(0, "EVAL", "for i = 1, 10000 do redis.call('SET', 'data:' .. ARGV[1] .. ':' .. i, i) end", "0", fmt.Sprint(n))
	}
}
