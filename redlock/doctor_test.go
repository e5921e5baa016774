package redlock_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redlock"
)

// diagnosed is what a new driver finds.
func (r *rig) diagnosed(url string, opts *redlock.Options) []driver.Finding {
	r.Helper()
	o := redlock.Options{}
	if opts != nil {
		o = *opts
	}
	o.Timeout = busy
	found, err := diagnose(r.Context(), url, time.Minute, &o)
	if err != nil {
		r.Fatal(err)
	}
	return found
}

// urlOf names servers and ways to them.
func urlOf(addrs ...string) string {
	if len(addrs) == 1 {
		return "redis://" + addrs[0]
	}
	return "redlock://" + strings.Join(addrs, ",")
}

func (r *rig) url() string {
	var addrs []string
	for _, s := range r.servers {
		addrs = append(addrs, s.Addr())
	}
	return urlOf(addrs...)
}

// bad are the findings with which an operator should do something.
func bad(found []driver.Finding) (all []driver.Finding) {
	for _, f := range found {
		if f.Bad() {
			all = append(all, f)
		}
	}
	return all
}

// used has a first client admit the nodes, as in a set that is in use.
func (r *rig) used(opts *redlock.Options) {
	r.Helper()
	c := r.clientOf(r.driver(r.nodes(), opts), nil)
	r.release(r.acquire(c, "k", nil))
	r.eventually("all nodes are admitted", func() bool {
		for _, n := range c.Nodes() {
			if n.State == driver.NodeDown {
				return false
			}
		}
		return true
	})
	c.Close()
}

// sound starts three servers that are as they should be, and in use.
func sound(t *testing.T) *rig {
	r := start(t, 3)
	r.used(nil)
	return r
}

func TestASoundSetHasNoFindings(t *testing.T) {
	r := sound(t)
	before := r.everything()
	found := r.diagnosed(r.url(), nil)
	if bad := bad(found); len(bad) > 0 {
		t.Errorf("found %+v", bad)
	}
	checks := make(map[string]int)
	for _, f := range found {
		checks[f.Check]++
		if f.Text == "" || f.Verdict != driver.VerdictOK {
			t.Errorf("%+v", f)
		}
	}
	for _, check := range []string{
		"reach", "round-trip", "role", "distinct", "version", "clock", "eviction", "evicted", "memory", "persistence", "set", "rights", "scripts",
		"wake", "patterns", "tls", "slowlog",
	} {
		if checks[check] != 3 {
			t.Errorf("%d findings of check %s, want one for each node", checks[check], check)
		}
	}
	if after := r.everything(); after != before {
		t.Errorf("the nodes had %q, and now %q", before, after)
	}
	c := r.client()
	if found, err := c.Diagnose(t.Context(), 0); err != nil || len(found) == 0 {
		t.Errorf("Client.Diagnose() = %v, %v", found, err)
	}
}

// everything is what all servers hold, and how often that was changed.
func (r *rig) everything() string {
	var all strings.Builder
	for i := range r.servers {
		keys, _ := r.do(i, "KEYS", "*").([]any)
		for _, k := range keys {
			if key := k.(string); r.do(i, "TYPE", key) == "string" {
				fmt.Fprintln(&all, i, key, r.do(i, "GET", key))
			}
		}
		_, stats, _ := strings.Cut(r.do(i, "INFO", "persistence").(string), "rdb_changes_since_last_save:")
		stats, _, _ = strings.Cut(stats, "\r")
		fmt.Fprintln(&all, i, stats)
	}
	return all.String()
}

// TestEachFaultIsFoundAndNothingElse plants one fault in a set that is sound otherwise.
func TestEachFaultIsFoundAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		plant   func(r *rig) (url string, opts *redlock.Options)
		check   string
		verdict driver.Verdict
		words   []string // of text and mend
	}{
		{"a node that is down", func(r *rig) (string, *redlock.Options) {
			r.servers[2].Kill()
			return r.url(), nil
		}, "reach", driver.VerdictFault, []string{"refused"}},
		{"a node that hangs", func(r *rig) (string, *redlock.Options) {
			r.servers[2].Pause()
			r.Cleanup(func() { r.servers[2].Resume() })
			return r.url(), nil
		}, "reach", driver.VerdictFault, []string{"no answer before the timeout"}},
		{"a node far away", func(r *rig) (string, *redlock.Options) {
			way := newRoute(r, r.servers[2:])
			way[0].SetDelay(700 * time.Millisecond)
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), way[0].Addr()), nil
		}, "round-trip", driver.VerdictWarning, []string{"given up after 1s", "longer TTL"}},
		{"a password that is wrong", func(r *rig) (string, *redlock.Options) {
			r.do(2, "CONFIG", "SET", "requirepass", "other")
			return r.url(), nil
		}, "reach", driver.VerdictFault, []string{"access denied", "give Username and Password"}},
		{"a replica", func(r *rig) (string, *redlock.Options) {
			replica := redistest.Start(r, &redisproc.Options{Args: r.replicaOf(2)})
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), replica.Addr()), nil
		}, "role", driver.VerdictFault, []string{"it is a replica of", "a master that replicates nothing"}},
		{"a node with a replica", func(r *rig) (string, *redlock.Options) {
			redistest.Start(r, &redisproc.Options{Args: r.replicaOf(2)})
			r.eventually("it is connected", func() bool { return strings.Contains(r.do(2, "INFO", "replication").(string), "connected_slaves:1") })
			return r.url(), nil
		}, "replicas", driver.VerdictWarning, []string{"1 connected replicas", "need none"}},
		{"a node of a cluster", func(r *rig) (string, *redlock.Options) {
			other := redistest.Start(r, &redisproc.Options{Args: []string{"--cluster-enabled", "yes"}})
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), other.Addr()), nil
		}, "reach", driver.VerdictFault, []string{"Redis Cluster", "independent servers"}},
		{"a server listed twice", func(r *rig) (string, *redlock.Options) {
			way := newRoute(r, r.servers[1:2])
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), way[0].Addr()), nil
		}, "distinct", driver.VerdictFault, []string{"the same server as", "once"}},
		{"a server that is too old", func(r *rig) (string, *redlock.Options) {
			way := (&rig{T: r.T, servers: r.servers[2:]}).disguised("INFO", "redis_version:", "redis_version:5.0.14\r\nother:", "valkey_version:", "another:")
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), way[0].Addr()), nil
		}, "version", driver.VerdictFault, []string{"Redis 5.0.14", "Redis 6 or newer"}},
		{"a clock that is ahead", func(r *rig) (string, *redlock.Options) {
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), r.ahead(2, 7*time.Second)), nil
		}, "clock", driver.VerdictWarning, []string{"differs from this machine's by", "synchronise both"}},
		{"a clock that is wrong", func(r *rig) (string, *redlock.Options) {
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), r.ahead(2, time.Hour)), nil
		}, "clock", driver.VerdictFault, []string{"no lock on a name that is new", "set it"}},
		{"eviction", func(r *rig) (string, *redlock.Options) {
			r.do(2, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
			return r.url(), nil
		}, "eviction", driver.VerdictFault, []string{"volatile-lru", "CONFIG SET maxmemory-policy noeviction"}},
		{"keys that were thrown away", func(r *rig) (string, *redlock.Options) {
			r.evict(2)
			return r.url(), nil
		}, "evicted", driver.VerdictWarning, []string{"thrown away", "CONFIG RESETSTAT"}},
		{"memory that is nearly full", func(r *rig) (string, *redlock.Options) {
			r.do(2, "CONFIG", "SET", "maxmemory", strconv.FormatInt(r.usedMemory(2)*106/100, 10))
			return r.url(), nil
		}, "memory", driver.VerdictWarning, []string{"room for", "new names a second", "raise maxmemory"}},
		{"a disk that is full", func(r *rig) (string, *redlock.Options) {
			way := (&rig{T: r.T, servers: r.servers[2:]}).disguised("INFO", "rdb_last_bgsave_status:ok", "rdb_last_bgsave_status:err")
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), way[0].Addr()), nil
		}, "disk", driver.VerdictFault, []string{"MISCONF", "its disk"}},
		{"a single node that forgets", func(r *rig) (string, *redlock.Options) {
			r.do(0, "DEL", "holdfast:set") // of the set of three
			return urlOf(r.servers[0].Addr()), nil
		}, "persistence", driver.VerdictWarning, []string{"forgets who holds what", "appendfsync always"}},
		{"a single node whose restarts nobody notices", func(r *rig) (string, *redlock.Options) {
			r.servers = []*redisproc.Server{redistest.Start(r, &redisproc.Options{AppendOnly: "always"})}
			return urlOf(r.disguised("INFO", "run_id:", "other_id:")[0].Addr()), nil
		}, "run", driver.VerdictWarning, []string{"no run_id", "tokens", "not a proxy"}},
		{"a node that is durable no more", func(r *rig) (string, *redlock.Options) {
			durable := redistest.Start(r, &redisproc.Options{AppendOnly: "always"})
			r.servers[2] = durable
			r.used(nil)
			r.do(2, "CONFIG", "SET", "appendfsync", "everysec")
			return r.url(), nil
		}, "durable", driver.VerdictFault, []string{"does so no more", "DEL holdfast:set"}},
		{"a node that cannot read back what it has written", func(r *rig) (string, *redlock.Options) {
			r.servers[2] = redistest.Start(r, &redisproc.Options{AppendOnly: "always"})
			r.used(nil)
			for i := range 3 {
				r.do(i, "ACL", "SETUSER", "ops", "on", ">"+secret, "~*", "&*", "+@all")
			}
			r.do(2, "ACL", "SETUSER", "default", "-@write")
			return r.url(), &redlock.Options{Username: "ops", Password: secret}
		}, "replay", driver.VerdictFault, []string{"has forgotten locks", "ACL SETUSER default ~* &* +@all"}},
		{"clients of another MaxTTL", func(r *rig) (string, *redlock.Options) {
			r.do(2, "SET", "holdfast:set", strings.Replace(r.do(2, "GET", "holdfast:set").(string), "60000", "300000", 1))
			return r.url(), nil
		}, "set", driver.VerdictFault, []string{"n=3 maxttl=300000", "the same nodes, MaxTTL"}},
		{"a marker of another version", func(r *rig) (string, *redlock.Options) {
			r.do(2, "SET", "holdfast:set", "n=3 maxttl=60000 v=0 run=x")
			return r.url(), nil
		}, "set", driver.VerdictFault, []string{"another version"}},
		{"a node that has lost its data", func(r *rig) (string, *redlock.Options) {
			if err := r.servers[2].Wipe(r.Context()); err != nil {
				r.Fatal(err)
			}
			return r.url(), nil
		}, "quarantine", driver.VerdictWarning, []string{"lost its data", "1m2s"}},
		{"a node in quarantine", func(r *rig) (string, *redlock.Options) {
			if err := r.servers[2].Wipe(r.Context()); err != nil {
				r.Fatal(err)
			}
			d, err := redlock.Open(r.Context(), r.url(), &redlock.Options{Timeout: busy})
			if err != nil {
				r.Fatal(err)
			}
			d.Close()
			return r.url(), nil
		}, "quarantine", driver.VerdictWarning, []string{"votes in"}},
		{"a right that is missing", func(r *rig) (string, *redlock.Options) {
			return r.restricted(without("+zcard")...)
		}, "rights", driver.VerdictFault, []string{"zcard", "ACL SETUSER locker ~lock:* ~holdfast:* &holdfast:wake:* " + strings.Join(rights, " ")}},
		{"a command that was renamed", func(r *rig) (string, *redlock.Options) {
			other := redistest.Start(r, &redisproc.Options{Args: []string{"--rename-command", "ZRANGE", "HIDDEN"}})
			marker := strings.Replace(r.do(2, "GET", "holdfast:set").(string), r.run(r.servers[2]), r.run(other), 1)
			if _, err := other.Do("SET", "holdfast:set", marker); err != nil {
				r.Fatal(err)
			}
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), other.Addr()), nil
		}, "scripts", driver.VerdictFault, []string{"ZRANGE", "renamed", "its own name"}},
		{"a channel that is refused", func(r *rig) (string, *redlock.Options) {
			return r.restricted(without("+publish")...)
		}, "wake", driver.VerdictWarning, []string{"who poll", "ACL SETUSER locker", "+publish"}},
		{"a listener to all channels", func(r *rig) (string, *redlock.Options) {
			r.listen(2)
			return r.restricted(without("+pubsub|numsub")...)
		}, "patterns", driver.VerdictWarning, []string{"1 patterns", "+pubsub|numsub"}},
		{"a slow command", func(r *rig) (string, *redlock.Options) {
			r.do(2, "CONFIG", "SET", "slowlog-log-slower-than", "260000")
			r.do(2, "SLOWLOG", "RESET") // what took 10 ms while the server started
			for n := 10_000_000; r.do(2, "SLOWLOG", "LEN") == int64(0); n *= 2 {
				r.do(2, "EVAL", "for i = 1, ARGV[1] do end", "0", strconv.Itoa(n))
			}
			return r.url(), nil
		}, "slowlog", driver.VerdictWarning, []string{"the worst is EVAL", "SLOWLOG RESET"}},
		{"clients that use the bare names", func(r *rig) (string, *redlock.Options) {
			r.do(2, "SET", "holdfast:set:", "n=3 maxttl=60000")
			return r.url(), nil
		}, "siblings", driver.VerdictWarning, []string{"BareKeys", "DEL holdfast:set:"}},
		{"an even number of nodes", func(r *rig) (string, *redlock.Options) {
			r.servers = r.servers[:2]
			for i := range 2 {
				r.do(i, "SET", "holdfast:set", strings.Replace(r.do(i, "GET", "holdfast:set").(string), "n=3", "n=2", 1))
			}
			return r.url(), nil
		}, "nodes", driver.VerdictWarning, []string{"2 nodes survive the loss of 0", "odd number"}},
		{"a quarantine that is off", func(r *rig) (string, *redlock.Options) {
			return r.url() + "?quarantine=off", nil
		}, "quarantine", driver.VerdictFault, []string{"forgotten", "leave it out"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := sound(t)
			url, opts := c.plant(r)
			found := bad(r.diagnosed(url, opts))
			if len(found) != 1 || found[0].Check != c.check || found[0].Verdict != c.verdict {
				t.Fatalf("found %+v, want one %s of %s", found, c.verdict, c.check)
			}
			for _, word := range c.words {
				if text := found[0].Text + "; " + found[0].Mend; !strings.Contains(text, word) {
					t.Errorf("%q does not say %q", text, word)
				}
			}
		})
	}
}

// without are the documented rights but one.
func without(right string) (less []string) {
	for _, other := range rights {
		if other != right {
			less = append(less, other)
		}
	}
	return less
}

// restricted has the third node know a user with these rights, and the others all.
func (r *rig) restricted(commands ...string) (string, *redlock.Options) {
	for i := range r.servers {
		line := user("locker", rights...)
		if i == 2 {
			line = user("locker", commands...)
		}
		r.do(i, append([]string{"ACL", "SETUSER"}, strings.Fields(line)...)...)
	}
	return r.url(), &redlock.Options{Username: "locker", Password: secret}
}

// ahead is a way to a server on which its clock is ahead.
func (r *rig) ahead(i int, by time.Duration) string {
	way := newRelay(r, r.servers[i].Addr())
	way.edit = func(words []string, reply []byte) []byte {
		lines := strings.Split(string(reply), "\r\n")
		if words[0] != "TIME" || len(lines) < 3 {
			return reply
		}
		seconds, err := strconv.ParseInt(lines[2], 10, 64)
		if err != nil {
			r.Error(err)
		}
		lines[2] = strconv.FormatInt(seconds+int64(by.Seconds()), 10)
		return []byte(strings.Join(lines, "\r\n"))
	}
	return way.start().node().Addr
}

func (r *rig) field(i int, name string) string {
	_, text, _ := strings.Cut(r.do(i, "INFO").(string), "\n"+name+":")
	text, _, _ = strings.Cut(text, "\r")
	return text
}

func (r *rig) usedMemory(i int) int64 {
	n, err := strconv.ParseInt(r.field(i, "used_memory"), 10, 64)
	if err != nil {
		r.Fatal(err)
	}
	return n
}

func (r *rig) run(s *redisproc.Server) string {
	reply, err := s.Do("INFO", "server")
	if err != nil {
		r.Fatal(err)
	}
	_, text, _ := strings.Cut(reply.(string), "run_id:")
	text, _, _ = strings.Cut(text, "\r")
	return text
}

// evict has a server throw away keys, and then be as it was.
func (r *rig) evict(i int) {
	r.do(i, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	for n := range 20 {
		r.do(i, "SET", "filler"+strconv.Itoa(n), strings.Repeat("x", 100_000), "PX", "600000")
	}
	r.do(i, "CONFIG", "SET", "maxmemory", strconv.FormatInt(r.usedMemory(i)-1_000_000, 10))
	r.do(i, "SET", "one more", "x")
	r.do(i, "CONFIG", "SET", "maxmemory", "0")
	r.do(i, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	if r.field(i, "evicted_keys") == "0" {
		r.Fatal("nothing was evicted")
	}
}

// listen has somebody listen to all channels of a server.
func (r *rig) listen(i int) {
	conn, err := net.Dial("tcp", r.servers[i].Addr())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	fmt.Fprint(conn, "PSUBSCRIBE *\r\n")
	r.eventually("it listens", func() bool { return r.do(i, "PUBSUB", "NUMPAT") == int64(1) })
}

// A node without the rights that only looking takes is not ill for it.
func TestADoctorIsContentWithTheRightsThatLocksNeed(t *testing.T) {
	r := sound(t)
	for i := range r.servers {
		r.do(i, append([]string{"ACL", "SETUSER"}, strings.Fields(user("locker", rights...))...)...)
	}
	found := r.diagnosed(r.url(), &redlock.Options{Username: "locker", Password: secret})
	if bad := bad(found); len(bad) > 0 {
		t.Errorf("found %+v", bad)
	}
	skipped := make(map[string]bool)
	for _, f := range found {
		if f.Verdict == driver.VerdictSkipped {
			skipped[f.Check] = strings.Contains(f.Text, "needs the right")
		}
	}
	if len(skipped) != 2 || !skipped["persistence"] || !skipped["slowlog"] {
		t.Errorf("skipped: %v", skipped)
	}
}

// A certificate that ends is told of in time, and a sound one is no finding.
func TestADoctorReadsCertificates(t *testing.T) {
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := startWith(t, &redisproc.Options{TLS: cert, AppendOnly: "always"})
	cfg, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	if found := bad(r.diagnosed(r.url(), &redlock.Options{TLS: cfg})); len(found) > 0 {
		t.Errorf("found %+v", found)
	}
	cfg.Time = func() time.Time { return time.Now().Add(163 * time.Hour) } // of 168
	found := bad(r.diagnosed(r.url(), &redlock.Options{TLS: cfg}))
	if len(found) != 1 || found[0].Check != "tls" || found[0].Verdict != driver.VerdictWarning || found[0].Mend != "renew it" {
		t.Errorf("found %+v, want that it ends soon", found)
	}
}

var _ driver.Doctor = (*redlock.Driver)(nil)

// No secret of the URL is in what a doctor says.
func TestADoctorShowsNoPassword(t *testing.T) {
	r := start(t, 1)
	for _, f := range r.diagnosed("redis://locker:"+secret+"@"+r.servers[0].Addr(), nil) {
		if strings.Contains(fmt.Sprint(f), secret) {
			t.Errorf("%+v", f)
		}
	}
}

func TestTheDoctorLooksAtWhatAFailoverNeeds(t *testing.T) {
	b := startBand(t, nil)
	url := fmt.Sprintf("redis+sentinel://%s/%s?timeout=5s", strings.Join(b.group.Addrs(), ","), redisproc.GroupName)
	look := func() map[string]driver.Finding {
		t.Helper()
		found, err := diagnose(t.Context(), url, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		all := make(map[string]driver.Finding)
		for _, f := range found {
			all[f.Check] = f
		}
		return all
	}
	found := look()
	for check, verdict := range map[string]driver.Verdict{
		"reach": driver.VerdictOK, "role": driver.VerdictOK, "replicas": driver.VerdictOK, "sentinels": driver.VerdictOK, "min-replicas": driver.VerdictWarning,
		"persistence": driver.VerdictOK, "quarantine": driver.VerdictWarning, "force": driver.VerdictOK,
	} {
		if f, ok := found[check]; !ok || f.Verdict != verdict {
			t.Errorf("%s: %+v, want it %v", check, f, verdict)
		}
	}
	b.do(0, "ACL", "SETUSER", "default", "-wait")
	if f := look()["force"]; f.Verdict != driver.VerdictWarning || !strings.Contains(f.Mend, "+wait") {
		t.Errorf("%+v, want a warning that names the right", f)
	}
	b.do(0, "CONFIG", "SET", "min-replicas-to-write", "1", "min-replicas-max-lag", "10")
	if f := look()["isolation"]; f.Verdict != driver.VerdictWarning || !strings.Contains(f.Mend, "down-after-milliseconds") {
		t.Errorf("%+v, want a warning that names the mend", f)
	}
	for _, s := range b.group.Sentinels {
		if _, err := s.Do("SENTINEL", "SET", redisproc.GroupName, "down-after-milliseconds", "12000"); err != nil {
			t.Fatal(err)
		}
	}
	if f := look()["isolation"]; f.Verdict != driver.VerdictOK {
		t.Errorf("%+v, want it well", f)
	}
	b.group.Sentinels[0].Kill()
	if f := look()["sentinels"]; f.Verdict != driver.VerdictWarning || !strings.Contains(f.Text, b.group.Addrs()[0]) {
		t.Errorf("%+v, want a warning about %s", f, b.group.Addrs()[0])
	}
}

// The file has what scripts wrote to locks, by SET, and to queues, by ZADD. Without the right to either the server leaves out
// the transaction as a whole.
func TestAFileIsReadBackOnlyWithTheRightsToAllThatItHas(t *testing.T) {
	for _, right := range []string{"set", "zadd"} {
		t.Run(right, func(t *testing.T) {
			r := startWith(t, &redisproc.Options{
				AppendOnly: "always", ACL: []string{"default on nopass ~* &* +@all -" + right, "locker on >" + secret + " ~* &* +@all"},
			})
			found, err := diagnose(t.Context(), "redis://locker:"+secret+"@"+r.servers[0].Addr()+"?timeout=5s", 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(found, func(f driver.Finding) bool { return f.Check == "replay" && f.Verdict == driver.VerdictFault }) {
				t.Errorf("without the right to %s: %+v", right, found)
			}
		})
	}
}

func TestTheDoctorFindsAQuarantineThatIsOffWhereAServerFailsOver(t *testing.T) {
	c := startCouple(t)
	url := fmt.Sprintf("redis+replicas://%s,%s/0?timeout=5s&quarantine=off", c.servers[0].Addr(), c.servers[1].Addr())
	found, err := diagnose(t.Context(), url, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Check == "quarantine" && f.Verdict == driver.VerdictFault {
			return
		}
	}
	t.Errorf("found %+v, want that quarantine=off is a fault", found)
}

func TestAnotherProgramsPortIsTakenForThat(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	found, err := diagnose(t.Context(), "redis://"+web.Listener.Addr().String(), 0, nil)
	if err != nil || len(found) != 1 || found[0].Check != "reach" || !strings.Contains(found[0].Mend, "port of another program") {
		t.Errorf("found %+v, %v", found, err)
	}
}

// diagnose is what the doctor finds at a URL.
func diagnose(ctx context.Context, url string, ttl time.Duration, opts *redlock.Options) ([]driver.Finding, error) {
	var o redlock.Options
	if opts != nil {
		o = *opts
	}
	o.NoCheck = true
	d, err := redlock.Open(ctx, url, &o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Diagnose(ctx, ttl), nil
}
