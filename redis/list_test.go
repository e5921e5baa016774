package redis_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redis"
)

// List asks for many locks in one round trip.
func TestListYieldsLocksBeforeScanEnds(t *testing.T) {
	r := startRig(t, 1)
	const locks = 5000
	r.do(0, "EVAL", `for i = 1, ARGV[1] do
		redis.call('SET', 'lock:' .. i, 'AAAAAAAAAAAAAAAAAAAAAAAAAA.' .. i, 'PX', 60000)
	end`, "0", fmt.Sprint(locks))
	way := newRoute(t, r.servers)
	d := r.openDriver(way.nodes(), &redis.Options{ReadOnly: true})
	t.Cleanup(func() { d.Close() })
	var names []string
	r.eventually("a list for which the node has answered each time", func() bool {
		before := way[0].Stats().Requests
		names = nil
		err := d.List(r.boundedContext(), "", func(st driver.Status) bool {
			if names = append(names, st.Key); len(names) == 1 {
				if asked := way[0].Stats().Requests - before; asked > 500 {
					t.Errorf("%d requests before the first lock", asked)
				}
			}
			return true
		})
		if err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	if len(names) != locks {
		t.Errorf("%d locks", len(names))
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != locks {
		t.Error("a lock was yielded twice")
	}
	r.do(0, "SCRIPT", "FLUSH")
	n := 0
	if err := d.List(r.boundedContext(), "", func(driver.Status) bool { n++; return n < 7 }); err != nil || n != 7 {
		t.Errorf("after SCRIPT FLUSH: %d locks, %v, want 7", n, err)
	}
}

// While a client checks a server, the server stores a probe key.
func TestProbesAreNotListed(t *testing.T) {
	r := startRig(t, 1)
	c := r.newClient()
	r.do(0, "SET", "lock:~probe:"+"AAAAAAAAAAAAAAAAAAAAAAAAAA", "probe", "PX", "60000")
	for st, err := range c.List(t.Context(), "") {
		t.Errorf("List yields %q, %v", st.Key, err)
	}
}

// Libraries are recognized by the values that they write.
func TestLocksOfOtherLibrariesAreNamed(t *testing.T) {
	r := startRig(t, 1)
	c := r.newClient()
	for value, want := range map[string]holdfast.Holder{
		"3q2+7wABAgMEBQYHCAkKCw==":             {Program: "another library (redsync?)"},
		"3q2-7wABAgMEBQYHCAkKCw":               {Program: "another library (redislock?)"},
		"0123456789abcdef0123456789abcdef":     {Program: "another library (redis-py or node-redlock?)"},
		"9d2c8a04-6c3f-4a43-8a0e-0b6a3f0f5b11": {Program: "another library (RedLock.net or Spring?)"},
		"ADDED:2026-11-22T10:00:00Z@cron-3":    {Host: "cron-3", Program: "another library (ShedLock?)"},
		"something":                            {},
	} {
		r.do(0, "SET", "lock:k", value, "PX", "60000")
		if st, err := c.Inspect(t.Context(), "k"); err != nil || st.Holder != want || st.Owner != value || !st.Held {
			t.Errorf("%s: %+v, %v, want %+v", value, st, err, want)
		}
	}
	const client = "9d2c8a04-6c3f-4a43-8a0e-0b6a3f0f5b11"
	r.do(0, "HSET", "lock:r", client+":47", "2", client+":51", "1", "mode", "read")
	want := "Redisson, thread 47 of client " + client + ", 2 times; thread 51 of client " + client + ", 1 times"
	for st, err := range c.List(t.Context(), "r") {
		if err != nil || st.Holder.Program != want {
			t.Errorf("%+v, %v, want %s", st, err, want)
		}
	}
	r.do(0, "ACL", "SETUSER", "default", "-hscan")
	if st, err := c.Inspect(t.Context(), "r"); err != nil || st.Holder.Program != "a hash (Redisson?)" {
		t.Errorf("without permission for HSCAN: %+v, %v", st, err)
	}
}

// The remaining nodes show their part of the queue.
func TestQueueIsShownWithoutMajority(t *testing.T) {
	r, c, _ := startInspected(t)
	r.do(2, zaddPlaceArgs("holdfast:queue:{lock:k}", "AAAAAAAAAAAAAAAAAAAAAAAAAA.1", 1)...)
	r.do(2, zaddPlaceArgs("holdfast:queue:{lock:k}", "BBBBBBBBBBBBBBBBBBBBBBBBBB.1", 2)...)
	r.killServers(c, 0, 1)
	queue, err := c.Queue(t.Context(), "k", 10)
	if len(queue) != 2 || queue[0].Owner != "AAAAAAAAAAAAAAAAAAAAAAAAAA.1" || err == nil {
		t.Errorf("Queue() = %+v, %v", queue, err)
	}
}

// A huge value of another program under a lock's key does not end the connection.
func TestHugeValueDoesNotAffectOtherLocks(t *testing.T) {
	r := startRig(t, 1)
	r.do(0, "SET", "lock:huge", strings.Repeat("x", 5<<20))
	events := make(chan driver.NodeEvent, 100)
	d := r.openDriver(r.nodes(), nil)
	c := r.clientOf(d, nil)
	d.Notify(func(e driver.NodeEvent) { events <- e })
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL})
	_, err := c.TryAcquire(r.boundedContext(), "huge", nil)
	checkMentions(t, err, "TOOLONG")
	if _, err := c.Inspect(r.boundedContext(), "huge"); err == nil {
		t.Error("Inspect of the huge value returned no error")
	}
	if err := l.Extend(r.boundedContext(), longTTL); err != nil {
		t.Errorf("the other lease: %v", err)
	}
	if told := eventsOfChanges(events); len(told) > 0 {
		t.Errorf("the node is %+v", told)
	}
}
