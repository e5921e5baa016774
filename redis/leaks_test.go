package redis_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// leaksOf returns the leaks that d finds, by key.
func (r *rig) leaksOf(d *redis.Driver) map[string]redis.Leak {
	r.Helper()
	all := make(map[string]redis.Leak)
	for l, err := range d.Leaks(r.boundedContext(), nil) {
		r.noError(err)
		all[l.Key] = l
	}
	return all
}

const (
	deadWaiter = "AAAAAAAAAAAAAAAAAAAAAAAAAA.1" // a dead waiter
	ownOwner   = "BBBBBBBBBBBBBBBBBBBBBBBBBB.1" // the owner of a lock whose TTL was removed
)

// plantLeaks creates leaks on the first server, and other keys.
func (r *rig) plantLeaks() {
	r.Helper()
	for _, cmd := range [][]string{
		{"SET", "lock:theirs", "value"},
		{"SET", "lock:empty", ""},
		{"HSET", "lock:hash", "id:1", "1"},
		{"SET", "lock:ours", ownOwner},

		{"SET", "data", "value"},
		{"SET", "lock:lapses", "value", "PX", "600000"},
		{"SET", wire.ServerFence("lock:ours"), "7"},
		{"SET", "holdfast:client:" + deadWaiter[:26], "{}"},
		{"ZADD", "holdfast:queue:{lock:old}", "1", deadWaiter},
		{"HSET", "holdfast:guard:{job}", "token", "7", "owner", "a"}, // of a storage that checks tokens
	} {
		r.do(0, cmd...)
	}
}

// plantedLeaks has the leaks that plantLeaks creates, and whether each of them can be deleted.
var plantedLeaks = map[string]bool{"lock:theirs": true, "lock:empty": true, "lock:hash": false, "lock:ours": false}

// keys returns all keys of the first server.
func (r *rig) keys() []string {
	r.Helper()
	var keys []string
	for _, key := range r.do(0, "KEYS", "*").([]any) {
		keys = append(keys, key.(string))
	}
	slices.Sort(keys)
	return keys
}

// The other locks are held, awaited or unused. The scan must not change them.
func TestLeaksListsOnlyLocksWithoutTTL(t *testing.T) {
	r := startRig(t, 1)
	c, waiter := r.newClient(), r.newClient()
	held := r.acquire(c, "held", &holdfast.AcquireOptions{TTL: longTTL})
	r.release(r.acquire(c, "idle", nil))
	waits := fixture.RunAsync(func() *holdfast.Lease { return r.acquire(waiter, "held", nil) })
	r.awaitWaiters(c, "held", 1)
	d := r.openDriver(r.nodes(), &redis.Options{ReadOnly: true})
	t.Cleanup(func() { d.Close() })
	if found := r.leaksOf(d); len(found) > 0 {
		t.Errorf("without a leak: %+v", found)
	}
	r.plantLeaks()
	before := r.keys()
	found := r.leaksOf(d)
	for key, fixable := range plantedLeaks {
		if l := found[key]; l.Fixable != fixable || l.Text == "" || l.Node != r.servers[0].Addr() {
			t.Errorf("%s: %+v, want fixable %v", key, l, fixable)
		}
	}
	if len(found) != len(plantedLeaks) || found["lock:theirs"].Owner != "value" || found["lock:ours"].Owner != ownOwner {
		t.Errorf("found %+v", found)
	}
	if _, err := d.DeleteLeak(t.Context(), found["lock:theirs"]); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("DeleteLeak with ReadOnly = %v", err)
	}
	if now := r.keys(); !slices.Equal(now, before) {
		t.Errorf("the keys are %q, and were %q", now, before)
	}
	r.release(held)
	r.release(<-waits)
}

// A key that is not a leak any more is not deleted.
func TestDeleteLeakDeletesOnlyForeignLeaks(t *testing.T) {
	r := startRig(t, 1)
	r.plantLeaks()
	d := r.openDriver(r.nodes(), nil)
	t.Cleanup(func() { d.Close() })
	found := r.leaksOf(d)
	before := r.keys()

	// Another holder has acquired the first lock, and the second has got a TTL.
	r.do(0, "SET", "lock:theirs", "another")
	r.do(0, "PEXPIRE", "lock:empty", "40000")
	for _, key := range []string{"lock:theirs", "lock:empty"} {
		if deleted, err := d.DeleteLeak(t.Context(), found[key]); deleted || err != nil {
			t.Errorf("DeleteLeak(%s) = %v, %v for a key that is not a leak", key, deleted, err)
		}
	}
	if now := r.keys(); !slices.Equal(now, before) {
		t.Errorf("the keys are %q, and were %q", now, before)
	}
	r.do(0, "SET", "lock:theirs", "value")
	r.do(0, "PERSIST", "lock:empty")

	for key, l := range found {
		if deleted, err := d.DeleteLeak(t.Context(), l); deleted != l.Fixable || (err == nil) != l.Fixable {
			t.Errorf("DeleteLeak(%s) = %v, %v, and it is fixable: %v", key, deleted, err, l.Fixable)
		}
	}
	want := slices.DeleteFunc(before, func(key string) bool { return plantedLeaks[key] })
	if now := r.keys(); !slices.Equal(now, want) {
		t.Errorf("the keys are %q, want %q", now, want)
	}
}

// The text of the leak reports the repair.
func TestHoldfastLockWithoutTTLIsRepaired(t *testing.T) {
	r := startRig(t, 1)
	c := r.newClient()
	lease := r.acquire(c, "held", nil)
	d := r.openDriver(r.nodes(), &redis.Options{ReadOnly: true})
	t.Cleanup(func() { d.Close() })
	r.do(0, "PERSIST", "lock:held")
	if err := lease.Extend(t.Context(), longTTL); err != nil {
		t.Error(err)
	}
	if found := r.leaksOf(d); len(found) > 0 {
		t.Errorf("after a renewal: %+v", found)
	}
	r.do(0, "PERSIST", "lock:held")
	if err := c.ForceRelease(t.Context(), "held", lease.Token(), "its holder has died"); err != nil {
		t.Error(err)
	}
	if found := r.leaksOf(d); len(found) > 0 {
		t.Errorf("after ForceRelease: %+v", found)
	}
}

// Bare keys without waiters are data of other programs.
func TestBareLeaksAreAwaitedLocks(t *testing.T) {
	r := startRig(t, 1)
	d := r.openDriver(r.nodes(), &redis.Options{BareKeys: true})
	t.Cleanup(func() { d.Close() })
	r.do(0, "SET", "data", "x")
	r.do(0, "SET", "awaited", "x")
	r.do(0, zaddPlaceArgs("holdfast:queue:{awaited}", deadWaiter, 1)...)
	if found := slices.Sorted(maps.Keys(r.leaksOf(d))); !slices.Equal(found, []string{"awaited"}) {
		t.Errorf("found %q", found)
	}
}

// The error names the unread nodes after the leaks of the other nodes.
func TestLeaksNameUnreadNodes(t *testing.T) {
	r := startRig(t, 3)
	r.useNames(nil)
	r.do(2, "SET", "lock:theirs", "value")
	r.servers[0].Kill()
	d := openURL(t, r.url(), &redis.Options{ReadOnly: true, Timeout: busyTimeout()})
	var told []string
	for l, err := range d.Leaks(r.boundedContext(), nil) {
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

// No command of the scan reads more than a few hundred keys, so none blocks the server for long.
func TestLeakScanDoesNotBlockServer(t *testing.T) {
	r := startRig(t, 1)
	r.addCrowd(50_000)
	r.plantLeaks()
	r.do(0, "CONFIG", "SET", "slowlog-max-len", "100000")
	r.do(0, "CONFIG", "SET", "slowlog-log-slower-than", "0")
	r.do(0, "SLOWLOG", "RESET")
	d := r.openDriver(r.nodes(), &redis.Options{ReadOnly: true})
	t.Cleanup(func() { d.Close() })
	changes := r.infoField(0, "rdb_changes_since_last_save")
	var looked, all int64
	found := 0
	for _, err := range d.Leaks(r.boundedContext(), func(l, a int64) {
		if l < looked || l > a {
			t.Errorf("%d of %d keys, after %d", l, a, looked)
		}
		looked, all = l, a
	}) {
		r.noError(err)
		found++
	}
	if found != len(plantedLeaks) || all < 50_000 || looked == 0 {
		t.Errorf("%d leaks, and %d of %d keys", found, looked, all)
	}
	if now := r.infoField(0, "rdb_changes_since_last_save"); now != changes {
		t.Errorf("%s changes, %s before", now, changes)
	}
	scans := 0
	for _, entry := range r.do(0, "SLOWLOG", "GET", "-1").([]any) {
		words := entry.([]any)[3].([]any)
		switch name := words[0]; name {
		case "SCAN":
			if scans++; fmt.Sprint(words[4:]) != "[COUNT 250]" {
				t.Errorf("%v", words)
			}
		case "KEYS", "SMEMBERS", "HGETALL", "SORT":
			t.Errorf("%v", words)
		}
	}
	if scans < 100 { // SCAN reads both tables while a table grows
		t.Errorf("%d SCANs of 50,000 keys", scans)
	}
}

// addCrowd creates n keys of other programs on the first server.
func (r *rig) addCrowd(n int) {
	r.Helper()
	for ; n > 0; n -= 10_000 {
		r.do(0, "EVAL", "for i = 1, 10000 do redis.call('SET', 'data:' .. ARGV[1] .. ':' .. i, i) end", "0", fmt.Sprint(n))
	}
}
