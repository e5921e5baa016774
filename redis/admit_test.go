package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redis"
)

// briefMaxTTL is a MaxTTL whose quarantine takes three seconds.
const briefMaxTTL = time.Second

func startAlways(t *testing.T, n int) *rig {
	t.Helper()
	t.Parallel()
	r := &rig{T: t}
	for range n {
		r.servers = append(r.servers, redistest.Start(t, &redisproc.Options{AppendOnly: "always"}))
	}
	return r
}

// openVoting opens a client of a set that other clients have already admitted.
func (r *rig) openVoting(opts redis.Options) *redis.Driver {
	r.Helper()
	if opts.MaxTTL == 0 {
		opts.MaxTTL = briefMaxTTL
	}
	opts.Timeout = busyTimeout()
	r.openDriver(r.nodes(), &opts).Close() // without quarantine, because nobody has used the set before
	return newDriver(r, r.nodes(), &opts)
}

// checkQuarantined waits until the driver reports that the i-th node is in quarantine.
func (r *rig) checkQuarantined(d *redis.Driver, i int) {
	r.Helper()
	r.eventually("the node is in quarantine", func() bool {
		st, err := d.Inspect(r.Context(), "k")
		return err == nil && st.Nodes[i].Err != nil && strings.Contains(st.Nodes[i].Err.Error(), "quarantine")
	})
}

// A replaced node has the configuration of a durable node, but its data is gone.
func TestReplacedDurableNodeSitsOutQuarantine(t *testing.T) {
	r := startAlways(t, 3)
	d := r.openVoting(redis.Options{MaxTTL: time.Minute})
	r.clientOf(d, nil)
	r.noError(r.servers[0].Wipe(t.Context()))
	r.checkQuarantined(d, 0)
	checkMentions(t, func() error {
		_, err := redis.New(t.Context(), r.nodes()[:1], nil)
		return err
	}(), "n=3", "n=1") // from its first sight on, it belongs to the set
}

// The replica has the marker of the node and is durable itself, and clients reach it at the same address. But
// its disk lacks the writes that it had not received when the master failed.
func TestDurableReplicaAtMasterAddressSitsOutQuarantine(t *testing.T) {
	r := startAlways(t, 3)
	replica := redistest.Start(t, &redisproc.Options{AppendOnly: "always", Args: r.replicaOf(0)})
	way := newRoute(t, r.servers)
	opts := &redis.Options{MaxTTL: time.Minute, Timeout: busyTimeout()}
	r.openDriver(way.nodes(), opts).Close() // without quarantine
	if marker := fmt.Sprint(r.do(0, "GET", "holdfast:set")); !strings.Contains(marker, "durable=") {
		t.Fatalf("marker of the master = %q", marker)
	}
	r.eventually("the replica has the marker", func() bool {
		marker, err := replica.Do("GET", "holdfast:set")
		return err == nil && strings.Contains(fmt.Sprint(marker), "durable=")
	})
	r.servers[0].Kill()
	if _, err := replica.Do("REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	way[0].Redirect(replica.Addr())
	d := newDriver(t, way.nodes(), opts)
	r.clientOf(d, nil)
	r.checkQuarantined(d, 0)
}

// When most releases of Redis and Valkey read their file, they skip what the default user may not write. The
// marker may exist all the same, because a rewritten append-only file begins with a copy of the data.
func TestNodeWithoutReplaySitsOutQuarantine(t *testing.T) {
	t.Parallel()
	r := &rig{T: t}
	for range 3 {
		r.servers = append(r.servers, redistest.Start(t, &redisproc.Options{
			AppendOnly: "always", ACL: []string{"default on nopass ~* &* +@all -@write", "locker on >" + secretPassword + " ~* &* +@all"},
		}))
	}
	d := r.openVoting(redis.Options{MaxTTL: time.Minute, Username: "locker", Password: secretPassword})
	c := r.clientOf(d, nil)
	if marker := r.do(0, "GET", "holdfast:set").(string); strings.Contains(marker, "durable=") {
		t.Errorf("the client trusts its durability: %q", marker)
	}
	r.do(0, "BGREWRITEAOF")
	r.eventually("the file is rewritten", func() bool {
		info := r.do(0, "INFO", "persistence").(string)
		return strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
	})
	l := r.acquire(c, "k", nil)
	r.servers[0].Kill()
	r.noError(r.servers[0].Restart(t.Context()))
	r.checkQuarantined(d, 0)
	r.release(l)
}

// A node that boots with a slow clock seems to have run for long once the clock is set.
func TestSetClockDoesNotShortenQuarantine(t *testing.T) {
	r := startRig(t, 3)
	way := newRoute(t, r.servers)
	d := r.openVoting(redis.Options{MaxTTL: time.Minute})
	r.clientOf(d, nil)
	for i := range r.servers {
		way[i].Rewrite(faultproxy.Command("INFO"), func(text string) string {
			return strings.Replace(text, "uptime_in_seconds:", "uptime_in_seconds:99999", 1)
		})
		r.do(i, "FLUSHALL")
	}
	_, err := redis.New(t.Context(), way.nodes(), &redis.Options{Timeout: busyTimeout()})
	checkMentions(t, err, "quarantine", "votes in", "quarantine=off")
}

// A node that cannot be checked does not vote. It is checked as soon as it can be.
func TestFullNodeIsCheckedOnceItHasRoom(t *testing.T) {
	r := startWith(t, &redisproc.Options{Args: []string{"--maxmemory", "20mb"}})
	r.fillMemory(0)
	_, err := r.open(r.nodes(), nil)
	if !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%v does not match ErrUnavailable", err)
	}
	checkMentions(t, err, "OOM", "holdfast:set")
	r.do(0, "CONFIG", "SET", "maxmemory", "0")
	c := r.newClient()
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL})
	r.fillMemory(0)
	d := r.openDriver(r.nodes(), nil) // it was admitted before, so nothing has to be written
	defer d.Close()
	if err := l.Extend(t.Context(), longTTL); err != nil {
		t.Errorf("a full node did not renew: %v", err)
	}
	r.release(l)
	r.checkCleared()
}

// fillMemory fills the memory of a server until it accepts no more writes.
func (r *rig) fillMemory(i int) {
	r.Helper()
	r.do(i, "CONFIG", "SET", "maxmemory", "1")
	if _, err := r.servers[i].Do("SET", "x", "y"); err == nil {
		r.Fatal("the server is not full")
	}
}

// A read-only client must leave nothing behind, not even settings with which other clients would have to
// agree.
func TestReadOnlyClientDoesNotWrite(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			r := startRig(t, n)
			for _, used := range []bool{false, true} {
				var held *holdfast.Lease
				if used {
					held = r.acquire(r.newClient(), "k", &holdfast.AcquireOptions{TTL: longTTL})
					for i := range n { // two of three are enough for the lock
						r.eventually("each node has the lock", func() bool { return r.do(i, "EXISTS", "lock:k") == int64(1) })
					}
				}
				before := r.writeCounts()
				d := newDriver(t, r.nodes(), &redis.Options{ReadOnly: true, MaxTTL: time.Hour, Timeout: busyTimeout()})
				c := r.clientOf(d, nil)
				st, err := c.Inspect(t.Context(), "k")
				fresh := n > 1 && !used // so it is in quarantine
				if errors.Is(err, holdfast.ErrUnavailable) != fresh || err != nil && !fresh || st.Held != used {
					t.Errorf("Inspect() = %+v, %v", st, err)
				}
				for _, err := range c.List(t.Context(), "") {
					if err != nil && !fresh {
						t.Error(err)
					}
				}
				if _, err := c.TryAcquire(t.Context(), "other", nil); !errors.Is(err, holdfast.ErrInvalid) {
					t.Errorf("TryAcquire() = %v, want driver.ErrInvalid", err)
				}
				if err := c.ForceRelease(t.Context(), "k", 1, ""); !errors.Is(err, holdfast.ErrInvalid) {
					t.Errorf("ForceRelease() = %v, want driver.ErrInvalid", err)
				}
				if after := r.writeCounts(); after != before {
					t.Errorf("written: %s, before: %s", after, before)
				}
				if used {
					r.release(held)
				}
			}
		})
	}
}

// Nodes that have lost their data report a lock as free that somebody still holds. While no majority votes, a
// read-only client must not trust them.
func TestReadOnlyIgnoresNodesInQuarantine(t *testing.T) {
	r := startRig(t, 3)
	r.acquire(r.newClient(), "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
	for i := range 3 {
		r.eventually("each node has the lock", func() bool { return r.do(i, "EXISTS", "lock:k") == int64(1) })
	}
	for wiped := range 4 {
		if wiped > 0 {
			r.do(wiped-1, "FLUSHALL")
		}
		before := r.writeCounts()
		d := newDriver(t, r.nodes(), &redis.Options{ReadOnly: true, Timeout: busyTimeout()})
		c := r.clientOf(d, nil)
		st, err := c.Inspect(t.Context(), "k")
		if known := wiped < 2; st.Held != known || errors.Is(err, holdfast.ErrUnavailable) == known {
			t.Errorf("%d nodes wiped: Inspect() = %+v, %v", wiped, st, err)
		}
		for i, n := range st.Nodes {
			if quarantined := n.Err != nil && strings.Contains(n.Err.Error(), "in quarantine: does not vote yet"); quarantined != (i < wiped) {
				t.Errorf("%d nodes wiped: node %d reports %+v", wiped, i, n)
			}
		}
		var last error
		for _, err := range c.List(t.Context(), "") {
			last = err
		}
		if errors.Is(last, holdfast.ErrUnavailable) != (wiped >= 2) {
			t.Errorf("%d nodes wiped: List() = %v", wiped, last)
		}
		if after := r.writeCounts(); after != before {
			t.Errorf("written: %s, before: %s", after, before)
		}
	}
}

// writeCounts returns the number of calls of each writing command, and all keys.
func (r *rig) writeCounts() string {
	r.Helper()
	var all []string
	for i := range r.servers {
		all = append(all, fmt.Sprint(r.do(i, "DBSIZE")))
		for line := range strings.Lines(fmt.Sprint(r.do(i, "INFO", "commandstats"))) {
			name, rest, _ := strings.Cut(line, ":")
			switch strings.TrimPrefix(name, "cmdstat_") {
			case "set", "del", "incrby", "pexpire", "zadd", "zrem", "publish", "unlink":
				count, _, _ := strings.Cut(rest, ",")
				all = append(all, name+" "+count)
			}
		}
	}
	return strings.Join(all, " ")
}

func TestReadOnlyNeedsOnlyReadPermissions(t *testing.T) {
	look := aclUser("looker", "+auth", "+hello", "+client|setname", "+ping", "+info", "+time", "+script|load", "+evalsha", "+get", "+pttl", "+zcount", "+scan")
	r := startWith(t, &redisproc.Options{ACL: []string{look, aclUser("locker", permissions...)}})
	l := r.acquire(r.clientOf(r.openDriver(r.nodes(), &redis.Options{Username: "locker", Password: secretPassword}), nil), "k", nil)
	defer r.release(l)
	d := newDriver(t, r.nodes(), &redis.Options{ReadOnly: true, Username: "looker", Password: secretPassword, Timeout: busyTimeout()})
	c := r.clientOf(d, nil)
	if st, err := c.Inspect(t.Context(), "k"); err != nil || !st.Held {
		t.Errorf("Inspect() = %+v, %v", st, err)
	}
	for st, err := range c.List(t.Context(), "") {
		if err != nil || st.Key != "k" {
			t.Errorf("List has %+v, %v", st, err)
		}
	}
	if denied := r.deniedCommands(); len(denied) != 0 {
		t.Errorf("ACL LOG = %v, want nothing denied", denied)
	}
}

// A client that is given one node of three does not belong to their set.
func TestReadOnlyRejectsNodeOfAnotherSet(t *testing.T) {
	r := startRig(t, 3)
	r.openDriver(r.nodes(), nil).Close()
	_, err := redis.New(t.Context(), r.nodes()[:1], &redis.Options{ReadOnly: true, Timeout: busyTimeout()})
	if !errors.Is(err, driver.ErrConfig) {
		t.Errorf("%v does not match driver.ErrConfig", err)
	}
	checkMentions(t, err, "n=3", "n=1")
}

// Two prefixes on one server are independent sets of locks.
func TestEachPrefixHasItsOwnSet(t *testing.T) {
	r := startRig(t, 3)
	r.openDriver(r.nodes(), nil).Close()
	r.openDriver(r.nodes()[:1], &redis.Options{Prefix: "jobs:"}).Close()
	r.openDriver(r.nodes(), &redis.Options{Prefix: "other:", MaxTTL: time.Hour}).Close()
	r.openDriver(r.nodes()[:1], &redis.Options{BareKeys: true}).Close()
	for key, want := range map[string]string{
		"holdfast:set": "n=3 v=3 maxttl=60000 run=", "holdfast:set:jobs:": "n=1", "holdfast:set:other:": "n=3 v=3 maxttl=3600000 run=", "holdfast:set:": "n=1",
	} {
		if got := fmt.Sprint(r.do(0, "GET", key)); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

// A program that starts must not fail because of a fault that running programs survive.
func TestOpenWarnsOfUnfitMinority(t *testing.T) {
	for name, spoil := range map[string]func(r *rig){
		"eviction":   func(r *rig) { r.do(2, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru") },
		"password":   func(r *rig) { r.do(2, "CONFIG", "SET", "requirepass", secretPassword) },
		"other set":  func(r *rig) { r.do(2, "SET", "holdfast:set", "n=5 v=3 maxttl=60000") },
		"quarantine": func(r *rig) { r.do(2, "DEL", "holdfast:set") },
	} {
		words := map[string]string{"eviction": "allkeys-lru", "password": "asks for a password", "other set": "n=5", "quarantine": "votes in"}
		t.Run(name, func(t *testing.T) {
			r := startRig(t, 3)
			r.openVoting(redis.Options{MaxTTL: time.Minute}).Close()
			spoil(r)
			log := new(logRecorder)
			d := newDriver(t, r.nodes(), &redis.Options{Timeout: busyTimeout(), Logger: slog.New(log)})
			events := make(chan driver.NodeEvent, 100)
			c := r.clientOf(d, &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) { events <- e }}})
			r.release(r.acquire(c, "k", nil))
			addr := r.servers[2].Addr()
			if !log.has(addr, words[name]) {
				t.Errorf("the log has %q, want %q", log.lines(), words[name])
			}
			r.awaitCause(events, addr, words[name])
		})
	}
}

// A client that keeps quarantine=off admits a wiped node while other clients hold a lock there.
func TestAdmissionsWithoutQuarantineAreLogged(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T) (r *rig, nodes []redis.Node){
		"three nodes":            func(t *testing.T) (*rig, []redis.Node) { r := startRig(t, 3); return r, r.nodes() },
		"a node that fails over": func(t *testing.T) (*rig, []redis.Node) { c := startReplicatedPair(t); return c.rig, c.nodes() },
	} {
		t.Run(name, func(t *testing.T) {
			r, nodes := begin(t)
			log := new(logRecorder)
			opened := func() (warnings int) {
				before := len(log.lines())
				r.openDriver(nodes, &redis.Options{Logger: slog.New(log)}).Close()
				for _, line := range log.lines()[before:] {
					if strings.Contains(line, "quarantine=off") && strings.Contains(line, "two may hold one") {
						warnings++
					}
				}
				return warnings
			}
			if n := opened(); n != len(nodes) {
				t.Errorf("a new set: %d warnings, want %d: %q", n, len(nodes), log.lines())
			}
			if n := opened(); n != 0 {
				t.Errorf("an admitted set: %d warnings: %q", n, log.lines())
			}
			r.do(0, "FLUSHALL")
			if n := opened(); n != 1 {
				t.Errorf("one wiped node: %d warnings: %q", n, log.lines())
			}
		})
	}
	t.Run("one server", func(t *testing.T) {
		r, log := startRig(t, 1), new(logRecorder)
		r.openDriver(r.nodes(), &redis.Options{Logger: slog.New(log)}).Close()
		if log.has("quarantine=off") {
			t.Errorf("without quarantine: %q", log.lines())
		}
	})
}

// After a restart from a snapshot, a master that had replicas looks like a promoted replica.
func TestRestartFromSnapshotIsNotPromotion(t *testing.T) {
	c := startReplicatedPair(t)
	c.eventually("a snapshot", func() bool { // the snapshot for the replica may be in progress
		_, err := c.servers[0].Do("SAVE")
		return err == nil
	})
	c.servers[0].Kill()
	c.servers[1].Kill()
	if err := c.servers[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if reply := c.do(0, "INFO", "replication").(string); strings.Contains(reply, "master_replid2:0000") {
		t.Skip("this release does not note it")
	}
	d := c.openDriver([]redis.Node{{Addr: c.servers[0].Addr()}}, nil)
	defer d.Close()
	checkMentions(t, d.Nodes()[0].Err, "was a replica before", "a restart has read back a snapshot")
}

// awaitCause waits for an event of a node whose cause contains word.
func (r *rig) awaitCause(events <-chan driver.NodeEvent, node, word string) {
	r.Helper()
	var had []string
	for timeout := time.After(patience()); ; {
		select {
		case e := <-events:
			if e.Node == node && e.Err != nil && strings.Contains(e.Err.Error(), word) {
				return
			}
			had = append(had, fmt.Sprint(e))
		case <-timeout:
			r.Fatalf("no event of %s that contains %q, only %q", node, word, had)
		}
	}
}

// Each new cause sends an event, although the node was down before.
func TestNewCauseSendsNodeEvent(t *testing.T) {
	r := startRig(t, 3)
	way := newRoute(t, r.servers)
	r.openVoting(redis.Options{MaxTTL: time.Minute}).Close()
	d := newDriver(t, way.nodes(), &redis.Options{Timeout: busyTimeout()})
	events := make(chan driver.NodeEvent, 100)
	r.clientOf(d, &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) { events <- e }}})
	addr := way[2].Addr()
	r.do(2, "CONFIG", "SET", "requirepass", secretPassword)
	way[2].Cut()
	r.awaitCause(events, addr, "access denied")
	r.noError(r.servers[2].Wipe(t.Context()))
	r.awaitCause(events, addr, "votes in")
}

func TestDefectSendsNodeEvent(t *testing.T) {
	r := startRig(t, 1)
	replica := redistest.Start(t, &redisproc.Options{Args: r.replicaOf(0)})
	r.eventually("a replica", func() bool { return strings.Contains(fmt.Sprint(r.do(0, "INFO", "replication")), "state=online") })
	told := make(chan driver.NodeEvent, 100)
	hooks := &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) { told <- e }}}
	c := r.clientOf(r.openDriver(r.nodes(), nil), hooks)
	r.awaitState(told, r.servers[0].Addr(), driver.NodeDegraded)
	r.release(r.acquire(c, "k", nil))

	if _, err := replica.Do("REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	d := r.openDriver([]redis.Node{{Addr: replica.Addr()}}, nil)
	r.clientOf(d, hooks)
	r.awaitCause(told, replica.Addr(), "was a replica")
}

// A full node rejects all new locks, although its connection works.
func TestFullNodeSendsNodeEvent(t *testing.T) {
	r := startRig(t, 3)
	events := make(chan driver.NodeEvent, 1000)
	full := r.servers[2].Addr()
	c := r.clientOf(r.openDriver(r.nodes(), nil), &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) {
		if e.Node == full {
			events <- e
		}
	}}})
	for _, i := range []int{1, 2} {
		r.fillMemory(i)
	}
	asking, stop := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() { // repeated, because a slow node is skipped
		defer close(asked)
		for asking.Err() == nil {
			if l, err := c.TryAcquire(asking, "k", nil); err == nil {
				t.Errorf("two full nodes of three granted %d", l.Token())
			}
		}
	}()
	r.awaitCause(events, full, "OOM")
	stop()
	<-asked
	for _, i := range []int{1, 2} {
		r.do(i, "CONFIG", "SET", "maxmemory", "0")
	}
	r.release(r.acquire(c, "k", nil))
	r.awaitState(events, full, driver.NodeUp)
}

// Two addresses that swap their servers do not count as one server listed twice.
func TestAddressesMaySwapServers(t *testing.T) {
	r := startRig(t, 3)
	way := newRoute(t, r.servers)
	r.openVoting(redis.Options{MaxTTL: time.Minute}).Close()
	d := newDriver(t, way.nodes(), &redis.Options{Timeout: busyTimeout()})
	r.clientOf(d, nil)
	way[0].Redirect(r.servers[1].Addr())
	way[1].Redirect(r.servers[0].Addr())
	way[0].Cut()
	way[1].Cut()
	r.eventually("all vote again", func() bool {
		st, err := d.Inspect(t.Context(), "k")
		return err == nil && st.Nodes[0].Err == nil && st.Nodes[1].Err == nil
	})
}
