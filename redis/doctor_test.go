package redis_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redis"
)

// diagnoseNew returns the findings of a new driver.
func (r *rig) diagnoseNew(url string, opts *redis.Options) []driver.Finding {
	r.Helper()
	o := redis.Options{}
	if opts != nil {
		o = *opts
	}
	o.Timeout = busyTimeout()
	found, err := runDoctor(r.Context(), url, time.Minute, &o)
	r.noError(err)
	return found
}

// urlOf returns the URL of the servers.
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

// badFindings returns the findings that an operator should fix. Slow commands count only if the test planted
// them: on a suspended machine any command is slow, and the server lists it for a day.
func badFindings(found []driver.Finding, planted string) (all []driver.Finding) {
	for _, f := range found {
		if f.Bad() && (f.Check != "slowlog" || planted == "slowlog") {
			all = append(all, f)
		}
	}
	return all
}

// useNames admits the nodes with a first client, as in a set that is in use.
func (r *rig) useNames(opts *redis.Options) {
	r.Helper()
	c := r.clientOf(r.openDriver(r.nodes(), opts), nil)
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

// startHealthy starts three healthy servers that are in use.
func startHealthy(t *testing.T) *rig {
	r := startRig(t, 3)
	r.useNames(nil)
	return r
}

func TestDoctorPassesHealthySet(t *testing.T) {
	r := startHealthy(t)
	before := r.allData()
	found := r.diagnoseNew(r.url(), nil)
	if bad := badFindings(found, ""); len(bad) > 0 {
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
	if after := r.allData(); after != before {
		t.Errorf("the nodes had %q, now %q", before, after)
	}
	c := r.newClient()
	if found, err := c.Diagnose(t.Context(), 0); err != nil || len(found) == 0 {
		t.Errorf("Client.Diagnose() = %v, %v", found, err)
	}
}

// allData returns the data of all servers, and the number of changes.
func (r *rig) allData() string {
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

// faultCase is a planted fault with the expected finding.
type faultCase struct {
	name    string
	plant   func(r *rig) (url string, opts *redis.Options)
	check   string
	verdict driver.Verdict
	words   []string // words in the text and the fix
}

// checkFindings checks that the fault of c was found, and nothing else.
func (c faultCase) checkFindings(t *testing.T, found []driver.Finding) {
	t.Helper()
	found = badFindings(found, c.check)
	if len(found) != 1 || found[0].Check != c.check || found[0].Verdict != c.verdict {
		t.Fatalf("%s: found %+v, want one %s of %s", c.name, found, c.verdict, c.check)
	}
	for _, word := range c.words {
		if text := found[0].Text + "; " + found[0].Fix; !strings.Contains(text, word) {
			t.Errorf("%s: %q does not contain %q", c.name, text, word)
		}
	}
}

// The test plants one fault at a time in a healthy set.
func TestDoctorFindsEachFault(t *testing.T) {
	t.Parallel()
	for _, c := range []faultCase{
		{"a node that is down", func(r *rig) (string, *redis.Options) {
			r.servers[2].Kill()
			return r.url(), nil
		}, "reach", driver.VerdictFault, []string{"refused"}},
		{"a node that hangs", func(r *rig) (string, *redis.Options) {
			r.servers[2].Pause()
			r.Cleanup(func() { r.servers[2].Resume() })
			return r.url(), nil
		}, "reach", driver.VerdictFault, []string{"no answer to", "before the timeout"}},
		{"a node far away", func(r *rig) (string, *redis.Options) {
			way := newRoute(r, r.servers[2:])
			way[0].SetDelay(pace.Scale(700 * time.Millisecond))
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), way[0].Addr()), nil
		}, "round-trip", driver.VerdictWarning, []string{"given up after", "longer TTL"}},
		{"a password that is wrong", func(r *rig) (string, *redis.Options) {
			r.do(2, "CONFIG", "SET", "requirepass", "other")
			return r.url(), nil
		}, "reach", driver.VerdictFault, []string{"access denied", "give user and password"}},
		{"a replica", func(r *rig) (string, *redis.Options) {
			replica := redistest.Start(r, &redisproc.Options{Args: r.replicaOf(2)})
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), replica.Addr()), nil
		}, "role", driver.VerdictFault, []string{"it is a replica of", "a master that replicates nothing"}},
		{"a node with a replica", func(r *rig) (string, *redis.Options) {
			redistest.Start(r, &redisproc.Options{Args: r.replicaOf(2)})
			r.eventually("it is connected", func() bool { return strings.Contains(r.do(2, "INFO", "replication").(string), "connected_slaves:1") })
			return r.url(), nil
		}, "replicas", driver.VerdictWarning, []string{"1 connected replicas", "need none"}},
		{"a node of a cluster", func(r *rig) (string, *redis.Options) {
			other := redistest.Start(r, &redisproc.Options{Args: []string{"--cluster-enabled", "yes"}})
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), other.Addr()), nil
		}, "reach", driver.VerdictFault, []string{"Redis Cluster", "independent servers"}},
		{"a server listed twice", func(r *rig) (string, *redis.Options) {
			way := newRoute(r, r.servers[1:2])
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), way[0].Addr()), nil
		}, "distinct", driver.VerdictFault, []string{"the same server as", "once"}},
		{"a server that is too old", func(r *rig) (string, *redis.Options) {
			way := (&rig{T: r.T, servers: r.servers[2:]}).disguiseServer("INFO", "redis_version:", "redis_version:5.0.14\r\nother:", "valkey_version:", "another:")
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), way[0].Addr()), nil
		}, "version", driver.VerdictFault, []string{"Redis 5.0.14", "Redis 6 or newer"}},
		{"a clock that is ahead", func(r *rig) (string, *redis.Options) {
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), r.clockAhead(2, 7*time.Second)), nil
		}, "clock", driver.VerdictWarning, []string{"differs from this machine's by", "synchronise both"}},
		{"a clock that is wrong", func(r *rig) (string, *redis.Options) {
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), r.clockAhead(2, time.Hour)), nil
		}, "clock", driver.VerdictFault, []string{"no lock on a name that is new", "set it"}},
		{"eviction", func(r *rig) (string, *redis.Options) {
			r.do(2, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
			return r.url(), nil
		}, "eviction", driver.VerdictFault, []string{"volatile-lru", "CONFIG SET maxmemory-policy noeviction"}},
		{"keys that were thrown away", func(r *rig) (string, *redis.Options) {
			r.letEvict(2)
			return r.url(), nil
		}, "evicted", driver.VerdictWarning, []string{"thrown away", "CONFIG RESETSTAT"}},
		{"memory that is nearly full", func(r *rig) (string, *redis.Options) {
			r.do(2, "CONFIG", "SET", "maxmemory", strconv.FormatInt(r.usedMemory(2)*106/100, 10))
			return r.url(), nil
		}, "memory", driver.VerdictWarning, []string{"room for", "raise maxmemory"}},
		{"a disk that is full", func(r *rig) (string, *redis.Options) {
			r.fillDisk(2)
			return r.url(), nil
		}, "disk", driver.VerdictFault, []string{"takes no locks", "MISCONF", "its disk", "BGSAVE"}},
		{"a disk that was full", func(r *rig) (string, *redis.Options) {
			way := (&rig{T: r.T, servers: r.servers[2:]}).disguiseServer("INFO", "rdb_last_bgsave_status:ok", "rdb_last_bgsave_status:err")
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), way[0].Addr()), nil
		}, "disk", driver.VerdictWarning, []string{"could not save", "its disk"}},
		{"connections that are nearly used up", func(r *rig) (string, *redis.Options) {
			r.connectMore(2, 18)
			r.do(2, "CONFIG", "SET", "maxclients", "20")
			return r.url(), nil
		}, "clients", driver.VerdictWarning, []string{"19 of 20 connections", "maxclients"}},
		{"connections that are used up", func(r *rig) (string, *redis.Options) {
			r.connectMore(2, 18)
			r.do(2, "CONFIG", "SET", "maxclients", "18")
			return r.url(), nil
		}, "reach", driver.VerdictFault, []string{"max number of clients reached", "raise its maxclients"}},
		{"writes that want replicas", func(r *rig) (string, *redis.Options) {
			r.do(2, "CONFIG", "SET", "min-replicas-to-write", "1")
			return r.url(), nil
		}, "replicas", driver.VerdictFault, []string{"takes no locks (NOREPLICAS)", "CONFIG SET min-replicas-to-write 0"}},
		{"a file of the password that all may read", func(r *rig) (string, *redis.Options) {
			for i := range r.servers {
				r.do(i, "CONFIG", "SET", "requirepass", secretPassword)
			}
			return r.url() + "?passwordfile=" + secretFile(r, 0o644), nil
		}, "files", driver.VerdictWarning, []string{"mode 0644", "chmod o= "}},
		{"a node that is durable no more", func(r *rig) (string, *redis.Options) {
			durable := redistest.Start(r, &redisproc.Options{AppendOnly: "always"})
			r.servers[2] = durable
			r.useNames(nil)
			r.do(2, "CONFIG", "SET", "appendfsync", "everysec")
			return r.url(), nil
		}, "durable", driver.VerdictFault, []string{"no longer does", "DEL holdfast:set"}},
		{"a node that cannot read back what it has written", func(r *rig) (string, *redis.Options) {
			r.servers[2] = redistest.Start(r, &redisproc.Options{AppendOnly: "always"})
			r.useNames(nil)
			for i := range 3 {
				r.do(i, "ACL", "SETUSER", "ops", "on", ">"+secretPassword, "~*", "&*", "+@all")
			}
			r.do(2, "ACL", "SETUSER", "default", "-@write")
			return r.url(), &redis.Options{Username: "ops", Password: secretPassword}
		}, "replay", driver.VerdictFault, []string{"has forgotten locks", "ACL SETUSER default ~* &* +@all"}},
		{"clients of another MaxTTL", func(r *rig) (string, *redis.Options) {
			r.do(2, "SET", "holdfast:set", strings.Replace(r.do(2, "GET", "holdfast:set").(string), "60000", "300000", 1))
			return r.url(), nil
		}, "set", driver.VerdictFault, []string{"n=3 v=3 maxttl=300000", "the same nodes and maxttl"}},
		{"a marker of another version", func(r *rig) (string, *redis.Options) {
			r.do(2, "SET", "holdfast:set", "n=3 maxttl=60000 v=0 run=x")
			return r.url(), nil
		}, "set", driver.VerdictFault, []string{"another version"}},
		{"a node that has lost its data", func(r *rig) (string, *redis.Options) {
			r.noError(r.servers[2].Wipe(r.Context()))
			return r.url(), nil
		}, "quarantine", driver.VerdictWarning, []string{"lost its data", "1m2s"}},
		{"a node in quarantine", func(r *rig) (string, *redis.Options) {
			r.noError(r.servers[2].Wipe(r.Context()))
			d := openURL(r, r.url(), &redis.Options{Timeout: busyTimeout()})
			d.Close()
			return r.url(), nil
		}, "quarantine", driver.VerdictWarning, []string{"votes in"}},
		{"a right that is missing", func(r *rig) (string, *redis.Options) {
			return r.restrictUser(permissionsWithout("+zcard")...)
		}, "rights", driver.VerdictFault, []string{"zcard", "ACL SETUSER locker ~lock:* ~holdfast:* &holdfast:wake:* " + strings.Join(permissions, " ")}},
		{"a command that was renamed", func(r *rig) (string, *redis.Options) {
			other := redistest.Start(r, &redisproc.Options{Args: []string{"--rename-command", "ZRANGEBYSCORE", "HIDDEN"}})
			marker := strings.Replace(r.do(2, "GET", "holdfast:set").(string), r.runOf(r.servers[2]), r.runOf(other), 1)
			if _, err := other.Do("SET", "holdfast:set", marker); err != nil {
				r.Fatal(err)
			}
			return urlOf(r.servers[0].Addr(), r.servers[1].Addr(), other.Addr()), nil
		}, "scripts", driver.VerdictFault, []string{"ZRANGEBYSCORE", "renamed", "its own name"}},
		{"a channel that is refused", func(r *rig) (string, *redis.Options) {
			return r.restrictUser(permissionsWithout("+publish")...)
		}, "wake", driver.VerdictWarning, []string{"who poll", "ACL SETUSER locker", "+publish"}},
		{"a listener to all channels", func(r *rig) (string, *redis.Options) {
			r.addListener(2)
			return r.restrictUser(permissionsWithout("+pubsub|numsub")...)
		}, "patterns", driver.VerdictWarning, []string{"1 patterns", "+pubsub|numsub"}},
		{"a slow command", func(r *rig) (string, *redis.Options) {
			r.do(2, "CONFIG", "SET", "slowlog-log-slower-than", "260000")
			r.do(2, "SLOWLOG", "RESET") // removes commands that took 10 ms while the server started
			for n := 10_000_000; r.do(2, "SLOWLOG", "LEN") == int64(0); n *= 2 {
				r.do(2, "EVAL", "for i = 1, ARGV[1] do end", "0", strconv.Itoa(n))
			}
			return r.url(), nil
		}, "slowlog", driver.VerdictWarning, []string{"the worst is EVAL", "SLOWLOG RESET"}},
		{"clients that use the bare names", func(r *rig) (string, *redis.Options) {
			r.do(2, "SET", "holdfast:set:", "n=3 maxttl=60000")
			return r.url(), nil
		}, "siblings", driver.VerdictWarning, []string{"bare=true", "DEL holdfast:set:"}},
		{"an even number of nodes", func(r *rig) (string, *redis.Options) {
			r.servers = r.servers[:2]
			for i := range 2 {
				r.do(i, "SET", "holdfast:set", strings.Replace(r.do(i, "GET", "holdfast:set").(string), "n=3", "n=2", 1))
			}
			return r.url(), nil
		}, "nodes", driver.VerdictWarning, []string{"with 2 nodes as with 1, locks survive the loss of 0", "odd number"}},
		{"a quarantine that is off", func(r *rig) (string, *redis.Options) {
			return r.url() + "?quarantine=off", nil
		}, "quarantine", driver.VerdictFault, []string{"forgotten", "leave it out"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startHealthy(t)
			url, opts := c.plant(r)
			c.checkFindings(t, r.diagnoseNew(url, opts))
		})
	}
}

// permissionsWithout returns the documented permissions except one.
func permissionsWithout(right string) (less []string) {
	for _, other := range permissions {
		if other != right {
			less = append(less, other)
		}
	}
	return less
}

// restrictUser creates a user who has these permissions on the third node, and all permissions on the others.
func (r *rig) restrictUser(commands ...string) (string, *redis.Options) {
	for i := range r.servers {
		line := aclUser("locker", permissions...)
		if i == 2 {
			line = aclUser("locker", commands...)
		}
		r.do(i, append([]string{"ACL", "SETUSER"}, strings.Fields(line)...)...)
	}
	return r.url(), &redis.Options{Username: "locker", Password: secretPassword}
}

// clockAhead returns the address of a relay to a server, whose clock seems to be ahead.
func (r *rig) clockAhead(i int, by time.Duration) string {
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

func (r *rig) infoField(i int, name string) string {
	_, text, _ := strings.Cut(r.do(i, "INFO").(string), "\n"+name+":")
	text, _, _ = strings.Cut(text, "\r")
	return text
}

func (r *rig) usedMemory(i int) int64 {
	n, err := strconv.ParseInt(r.infoField(i, "used_memory"), 10, 64)
	r.noError(err)
	return n
}

func (r *rig) runOf(s *redisproc.Server) string {
	reply, err := s.Do("INFO", "server")
	r.noError(err)
	_, text, _ := strings.Cut(reply.(string), "run_id:")
	text, _, _ = strings.Cut(text, "\r")
	return text
}

// letEvict makes a server evict keys, and then restores its settings.
func (r *rig) letEvict(i int) {
	r.do(i, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	for n := range 20 {
		r.do(i, "SET", "filler"+strconv.Itoa(n), strings.Repeat("x", 100_000), "PX", "600000")
	}
	r.do(i, "CONFIG", "SET", "maxmemory", strconv.FormatInt(r.usedMemory(i)-1_000_000, 10))
	r.do(i, "SET", "one more", "x")
	r.do(i, "CONFIG", "SET", "maxmemory", "0")
	r.do(i, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	if r.infoField(i, "evicted_keys") == "0" {
		r.Fatal("no key was evicted")
	}
}

// addListener subscribes a connection to all channels of a server.
func (r *rig) addListener(i int) {
	conn, err := net.Dial("tcp", r.servers[i].Addr())
	r.noError(err)
	r.Cleanup(func() { conn.Close() })
	fmt.Fprint(conn, "PSUBSCRIBE *\r\n")
	r.eventually("it listens", func() bool { return r.do(i, "PUBSUB", "NUMPAT") == int64(1) })
}

// Permissions that only the doctor uses may be missing without a fault.
func TestDoctorNeedsOnlyLockPermissions(t *testing.T) {
	r := startHealthy(t)
	for i := range r.servers {
		r.do(i, append([]string{"ACL", "SETUSER"}, strings.Fields(aclUser("locker", permissions...))...)...)
	}
	found := r.diagnoseNew(r.url(), &redis.Options{Username: "locker", Password: secretPassword})
	if bad := badFindings(found, ""); len(bad) > 0 {
		t.Errorf("found %+v", bad)
	}
	skipped := make(map[string]bool)
	for _, f := range found {
		if f.Verdict == driver.VerdictSkipped {
			skipped[f.Check] = strings.Contains(f.Text, "needs the right")
		}
	}
	if len(skipped) != 1 || !skipped["slowlog"] {
		t.Errorf("skipped: %v", skipped)
	}
}

// fillDisk makes the i-th server fail to save its data, as on a full disk: a directory has the name of the
// file.
func (r *rig) fillDisk(i int) {
	r.noError(os.Mkdir(filepath.Join(r.servers[i].Dir(), "data", "dump.rdb"), 0o700))
	r.do(i, "CONFIG", "SET", "save", "3600 1")
	r.Cleanup(func() { r.do(i, "CONFIG", "SET", "save", "") }) // otherwise the server would not stop
	r.do(i, "BGSAVE")
	r.eventually("it has failed", func() bool { return r.infoField(i, "rdb_last_bgsave_status") == "err" })
}

// connectMore opens n connections to a server.
func (r *rig) connectMore(i, n int) {
	for range n {
		conn, err := net.Dial("tcp", r.servers[i].Addr())
		r.noError(err)
		r.Cleanup(func() { conn.Close() })
	}
	r.eventually("they are there", func() bool { return r.infoField(i, "connected_clients") == strconv.Itoa(n+1) }) // and one for this command
}

// secretFile returns a file of this mode with the password.
func secretFile(t testing.TB, mode os.FileMode) string {
	name := filepath.Join(t.TempDir(), "password")
	if err := errors.Join(os.WriteFile(name, []byte(secretPassword), 0o600), os.Chmod(name, mode)); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestDoctorFindsEachFaultOfServer(t *testing.T) {
	t.Parallel()
	start := func(r *rig, opts *redisproc.Options) string {
		opts.AppendOnly = "always"
		s := redistest.Start(r, opts)
		r.servers = append(r.servers, s)
		return s.Addr()
	}
	plain := func(r *rig) string { return "redis://" + start(r, &redisproc.Options{}) }
	secure := func(r *rig, asks bool, change func(*tls.Config)) (string, *redis.Options) {
		cert, err := redisproc.NewCertificate(r.TempDir())
		r.noError(err)
		config, err := cert.Client()
		r.noError(err)
		change(config)
		return urlOf(start(r, &redisproc.Options{TLS: cert, AuthClients: asks})), &redis.Options{TLS: config}
	}
	in := func(days time.Duration) func(c *tls.Config) {
		return func(c *tls.Config) { c.Time = func() time.Time { return time.Now().Add(days * 24 * time.Hour) } } // a certificate is valid for 90 days
	}
	for _, c := range []faultCase{
		{"a server that is as it should be", func(r *rig) (string, *redis.Options) { return plain(r), nil }, "", "", nil},
		{"one over TLS", func(r *rig) (string, *redis.Options) { return secure(r, true, in(70)) }, "", "", nil},
		{"files that are not for all", func(r *rig) (string, *redis.Options) {
			return "redis://" + start(r, &redisproc.Options{Password: secretPassword}) + "?passwordfile=" + secretFile(r, 0o640), nil
		}, "", "", nil},
		{"a server as it is installed", func(r *rig) (string, *redis.Options) {
			return "redis://" + redistest.Start(r, &redisproc.Options{Args: []string{"--save", "3600 1"}}).Addr(), nil
		}, "persistence", driver.VerdictWarning, []string{"locks work", "default settings", "forgets who holds what", "a second holder", "appendfsync always"}},
		{"a server whose restarts nobody notices", func(r *rig) (string, *redis.Options) {
			plain(r)
			return urlOf(r.disguiseServer("INFO", "run_id:", "other_id:")[0].Addr()), nil
		}, "run", driver.VerdictWarning, []string{"no run_id", "tokens", "not a proxy"}},
		{"another password", func(r *rig) (string, *redis.Options) {
			return "redis://:other@" + start(r, &redisproc.Options{Password: secretPassword}), nil
		}, "reach", driver.VerdictFault, []string{"access denied", "correct user and password"}},
		{"a database that there is not", func(r *rig) (string, *redis.Options) {
			return plain(r) + "/99", nil
		}, "reach", driver.VerdictFault, []string{"out of range", "choose another DB"}},
		{"connections that are used up, and a password", func(r *rig) (string, *redis.Options) {
			addr := start(r, &redisproc.Options{Password: secretPassword})
			r.connectMore(0, 10)
			r.do(0, "CONFIG", "SET", "maxclients", "10")
			return "redis://:" + secretPassword + "@" + addr, nil
		}, "reach", driver.VerdictFault, []string{"max number of clients reached", "raise its maxclients"}},
		{"connections that are used up, over TLS", func(r *rig) (string, *redis.Options) {
			url, opts := secure(r, false, in(0))
			r.connectMore(0, 10)
			r.do(0, "CONFIG", "SET", "maxclients", "10")
			return url, opts
		}, "reach", driver.VerdictFault, []string{"client certificate", "maxclients"}},
		{"a certificate that has ended", func(r *rig) (string, *redis.Options) {
			return secure(r, true, in(91))
		}, "reach", driver.VerdictFault, []string{"expired", "renew its certificate"}},
		{"a certificate that ends soon", func(r *rig) (string, *redis.Options) {
			return secure(r, false, func(c *tls.Config) { in(87)(c); c.Certificates = nil })
		}, "tls", driver.VerdictWarning, []string{"its certificate ends on ", "in 3 days", "renew it"}},
		{"a client certificate that ends soon", func(r *rig) (string, *redis.Options) {
			return secure(r, false, func(c *tls.Config) { c.Certificates[0] = endingCertificate(r) })
		}, "tls", driver.VerdictWarning, []string{"the client certificate ends on ", "in 40 hours", "renew it"}},
		{"a certificate for another name", func(r *rig) (string, *redis.Options) {
			return secure(r, true, func(c *tls.Config) { c.ServerName = "db.example" })
		}, "reach", driver.VerdictFault, []string{"db.example", "use a name of its certificate", "servername"}},
		{"an authority that is not known", func(r *rig) (string, *redis.Options) {
			return secure(r, true, func(c *tls.Config) { c.RootCAs = x509.NewCertPool() })
		}, "reach", driver.VerdictFault, []string{"unknown authority", "give the CA that signed its certificate by ca"}},
		{"a client certificate that is missing", func(r *rig) (string, *redis.Options) {
			return secure(r, true, func(c *tls.Config) { c.Certificates = nil })
		}, "reach", driver.VerdictFault, []string{"client certificate", "cert and key"}},
		{"TLS on a port without", func(r *rig) (string, *redis.Options) {
			return strings.Replace(plain(r), "redis:", "rediss:", 1), nil
		}, "reach", driver.VerdictFault, []string{"TLS", "use redis://"}},
		{"a port of TLS without it", func(r *rig) (string, *redis.Options) {
			url, _ := secure(r, false, in(0))
			return url, nil
		}, "reach", driver.VerdictFault, []string{"rediss://"}},
		{"a file of a key that all may read", func(r *rig) (string, *redis.Options) {
			cert, err := redisproc.NewCertificate(r.TempDir())
			if err = errors.Join(err, os.Chmod(cert.Key, 0o644)); err != nil {
				r.Fatal(err)
			}
			return "rediss://" + start(r, &redisproc.Options{TLS: cert}) + "?ca=" + cert.Cert + "&cert=" + cert.Cert + "&key=" + cert.Key, nil
		}, "files", driver.VerdictWarning, []string{"tls.key", "chmod o= "}},
		{"another program's port", func(r *rig) (string, *redis.Options) {
			web := httptest.NewServer(http.NotFoundHandler())
			r.Cleanup(web.Close)
			return "redis://" + web.Listener.Addr().String(), nil
		}, "reach", driver.VerdictFault, []string{"port of another program"}},
		{"a name of HELLO that is hidden", func(r *rig) (string, *redis.Options) {
			return urlOf(start(r, &redisproc.Options{Args: []string{"--rename-command", "HELLO", "HIDDEN"}})), nil
		}, "reach", driver.VerdictFault, []string{"HELLO", "was renamed", "its own name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := &rig{T: t}
			url, opts := c.plant(r)
			found := r.diagnoseNew(url, opts)
			if c.check == "" {
				if bad := badFindings(found, ""); len(bad) > 0 {
					t.Errorf("found %+v", bad)
				}
				return
			}
			c.checkFindings(t, found)
		})
	}
}

// endingCertificate returns a certificate that expires soon.
func endingCertificate(t testing.TB) tls.Certificate {
	cert, err := redisproc.NewCertificateLike(t.TempDir(), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(40*time.Hour + time.Minute) })
	if err != nil {
		t.Fatal(err)
	}
	config, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	return config.Certificates[0]
}

// A managed service hides commands that locks do not need. That is no fault.
func TestUnneededCommandsMayBeHidden(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command, answer string // answer of the server
		skipped         []string
		alone           []string // for a single server, in place of skipped
	}{
		{"CONFIG", "-ERR unknown command 'CONFIG', with args beginning with: 'GET' \r\n", nil, []string{"persistence"}},
		{"CONFIG", "*0\r\n", nil, []string{"persistence"}},
		{"SLOWLOG", "-ERR unknown command 'SLOWLOG'\r\n", []string{"slowlog"}, []string{"slowlog"}},
		{"ACL", "-ERR unknown command 'ACL'\r\n", nil, []string{"replay"}},
		{"PING", "-ERR unknown command 'PING'\r\n", nil, nil},
	} {
		t.Run(c.command, func(t *testing.T) {
			hide := func(r *rig) string {
				way := newRelay(r, r.servers[0].Addr())
				way.answer = func(words []string, _ bool) []byte {
					if words[0] == c.command {
						return []byte(c.answer)
					}
					return nil
				}
				return way.start().node().Addr
			}
			r := startHealthy(t)
			one := &rig{T: t, servers: []*redisproc.Server{redistest.Start(t, &redisproc.Options{AppendOnly: "always"})}}
			r.checkSkips(r.diagnoseNew(urlOf(hide(r), r.servers[1].Addr(), r.servers[2].Addr()), nil), c.skipped)
			one.checkSkips(one.diagnoseNew(urlOf(hide(one)), nil), c.alone)
		})
	}
}

// checkSkips checks that these checks were skipped with the expected reason, and that there is no bad finding.
func (r *rig) checkSkips(found []driver.Finding, want []string) {
	r.Helper()
	if bad := badFindings(found, ""); len(bad) > 0 {
		r.Errorf("found %+v", bad)
	}
	var skipped []string
	for _, f := range found {
		if f.Verdict == driver.VerdictSkipped {
			skipped = append(skipped, f.Check)
			if !strings.Contains(f.Text, "hidden by the provider") {
				r.Errorf("%+v has no reason", f)
			}
		}
	}
	if !slices.Equal(skipped, want) {
		r.Errorf("skipped %q, want %q", skipped, want)
	}
}

var _ driver.Doctor = (*redis.Driver)(nil)

// The findings contain no secret of the URL.
func TestDoctorHidesPasswords(t *testing.T) {
	r := startRig(t, 1)
	for _, f := range r.diagnoseNew("redis://locker:"+secretPassword+"@"+r.servers[0].Addr(), nil) {
		if strings.Contains(fmt.Sprint(f), secretPassword) {
			t.Errorf("%+v", f)
		}
	}
}

// The test plants one fault at a time and removes it again. The undo of a row may take a while.
func TestDoctorFindsEachFaultBehindSentinels(t *testing.T) {
	args := []string{"--min-replicas-to-write", "1", "--min-replicas-max-lag", "30"} // a replica on a busy machine answers late
	b := startSentinelGroup(t, &redisproc.GroupOptions{Servers: 2, Sentinels: 3, Down: time.Minute, Server: redisproc.Options{Args: args}})
	url := fmt.Sprintf("redis+sentinel://%s/%s", strings.Join(b.group.Addrs(), ","), redisproc.GroupName)
	b.release(b.acquire(b.clientOf(b.openDriver([]redis.Node{b.node()}, nil), nil), "k", nil))
	set := func(args ...string) { b.do(0, append([]string{"CONFIG", "SET"}, args...)...) }
	all := func(command ...string) {
		for _, s := range b.group.Sentinels {
			if _, err := s.Do(command...); err != nil {
				t.Fatal(err)
			}
		}
	}
	after := func(down string) { all("SENTINEL", "SET", redisproc.GroupName, "down-after-milliseconds", down) }
	b.eventually("all is well", func() bool { return len(badFindings(b.diagnoseNew(url, nil), "")) == 0 })
	none := func() {}
	for _, c := range []struct {
		faultCase
		url        string // empty: the default
		fault, end func()
	}{
		{
			faultCase{"a master that goes on alone", nil, "min-replicas", driver.VerdictWarning, []string{"min-replicas-to-write is 0", "min-replicas-max-lag 3"}},
			"",
			func() { set("min-replicas-to-write", "0") }, func() { set("min-replicas-to-write", "1") },
		},
		{
			faultCase{"a master that goes on for long", nil, "isolation", driver.VerdictWarning, []string{"stops granting after 31s", "down-after-milliseconds"}},
			"",
			func() { after("5000") }, func() { after("60000") },
		},
		{
			faultCase{"a right to WAIT that is missing", nil, "force", driver.VerdictWarning, []string{"ACL SETUSER", "+wait"}},
			"",
			func() { b.do(0, "ACL", "SETUSER", "default", "-wait") }, func() { b.do(0, "ACL", "SETUSER", "default", "+wait") },
		},
		{
			faultCase{"eviction", nil, "eviction", driver.VerdictFault, []string{"allkeys-lru", "noeviction"}},
			"",
			func() { set("maxmemory-policy", "allkeys-lru") }, func() { set("maxmemory-policy", "noeviction") },
		},
		{faultCase{"a quarantine that is off", nil, "quarantine", driver.VerdictFault, []string{"forgotten", "leave it out"}}, url + "/0?quarantine=off", none, none},
		{
			faultCase{"a master that they do not know", nil, "reach", driver.VerdictFault, []string{"it knows no master other", "SENTINEL MASTERS"}},
			strings.TrimSuffix(url, redisproc.GroupName) + "other", none, none,
		},
		{
			faultCase{"servers in place of Sentinels", nil, "reach", driver.VerdictFault, []string{"it is not a Sentinel", "port 26379"}},
			"redis+sentinel://" + b.servers[0].Addr() + "/" + redisproc.GroupName, none, none,
		},
		{
			faultCase{"a Sentinel in place of a server", nil, "reach", driver.VerdictFault, []string{"it is a Sentinel", "redis+sentinel://"}},
			"redis://" + b.group.Addrs()[0], none, none,
		},
		{
			faultCase{"a replica in place of the master", nil, "role", driver.VerdictFault, []string{"it is a replica of", "address of a master"}},
			"redis://" + b.servers[1].Addr(), none, none,
		},
		{
			faultCase{"a Sentinel that is down", nil, "sentinels", driver.VerdictWarning, []string{b.group.Addrs()[0], "more than half"}},
			"",
			func() { b.group.Sentinels[0].Kill() }, none,
		},
	} {
		c.fault()
		c.checkFindings(t, b.diagnoseNew(cmp.Or(c.url, url), nil))
		c.end()
	}
	b.group.Sentinels[1].Kill()
	b.servers[1].Kill()
	c := faultCase{"a master without replicas", nil, "replicas", driver.VerdictFault, []string{"takes no locks (NOREPLICAS)", "start its replicas"}}
	b.eventually("the master notices", func() bool { return b.infoField(0, "min_slaves_good_slaves") == "0" })
	c.checkFindings(t, slices.DeleteFunc(b.diagnoseNew(url, nil), func(f driver.Finding) bool { return f.Check == "sentinels" }))
}

// The test plants one fault at a time and removes it again.
func TestDoctorFindsEachFaultOfCluster(t *testing.T) {
	args := []string{"--min-replicas-to-write", "1", "--min-replicas-max-lag", "30", "--cluster-require-full-coverage", "no"}
	r := startCluster(t, &redisproc.ClusterOptions{
		Masters: 3, Replicas: 3, Timeout: 15 * time.Second, Server: redisproc.Options{AppendOnly: "everysec", Args: args},
	})
	one, _ := r.master("k")
	i := slices.Index(r.servers, one)
	url := "redis+cluster://" + r.servers[len(r.servers)-1].Addr()
	// Skips the quarantine of a new cluster, which takes a minute.
	found := func(url string) []driver.Finding { return r.diagnoseNew(url, &redis.Options{MaxTTL: time.Second}) }
	c := openURL(t, url+"?quarantine=off", &redis.Options{MaxTTL: time.Second, Timeout: busyTimeout()})
	c.Close()
	r.eventually("all is well", func() bool { return len(badFindings(found(url), "")) == 0 })
	set := func(args ...string) { r.do(i, append([]string{"CONFIG", "SET"}, args...)...) }
	none := func() {}
	for _, c := range []struct {
		faultCase
		url        string // empty: the default
		fault, end func()
	}{
		{
			faultCase{"a master that goes on alone", nil, "min-replicas", driver.VerdictWarning, []string{"min-replicas-to-write is 0"}},
			"",
			func() { set("min-replicas-to-write", "0") }, func() { set("min-replicas-to-write", "1") },
		},
		{
			faultCase{"a master that comes back empty", nil, "persistence", driver.VerdictWarning, []string{"has forgotten who holds what", "appendonly yes"}},
			"",
			func() { set("appendonly", "no") }, func() { set("appendonly", "yes") },
		},
		{
			faultCase{"eviction", nil, "eviction", driver.VerdictFault, []string{"allkeys-lru", "noeviction"}},
			"",
			func() { set("maxmemory-policy", "allkeys-lru") }, func() { set("maxmemory-policy", "noeviction") },
		},
		{
			faultCase{"a right that is missing", nil, "rights", driver.VerdictFault, []string{"ACL SETUSER", "+zcard", "+cluster|slots"}},
			"",
			func() { r.do(i, "ACL", "SETUSER", "default", "-zcard") }, func() { r.do(i, "ACL", "SETUSER", "default", "+zcard") },
		},
		{faultCase{"a quarantine that is off", nil, "quarantine", driver.VerdictFault, []string{"forgotten", "leave it out"}}, url + "?quarantine=off", none, none},
		{
			faultCase{"one of its servers alone", nil, "reach", driver.VerdictFault, []string{"part of a Redis Cluster", "redis+cluster://"}},
			"redis://" + one.Addr(), none, none,
		},
		{
			faultCase{"a server that is in no cluster", nil, "reach", driver.VerdictFault, []string{"not part of a Redis Cluster", "as redis://"}},
			"redis+cluster://" + redistest.Start(t, nil).Addr(), none, none,
		},
		{
			faultCase{"slots that nobody has", nil, "slots", driver.VerdictFault, []string{"1 of 16384 hash slots have no master", "--cluster fix"}},
			"",
			func() {
				for _, s := range r.servers {
					s.Do("CLUSTER", "DELSLOTS", "1") // fails after another master has done it
				}
			}, none,
		},
	} {
		c.fault()
		r.eventually(c.name+" is found", func() bool { return len(badFindings(found(cmp.Or(c.url, url)), c.check)) > 0 })
		c.checkFindings(t, found(cmp.Or(c.url, url)))
		c.end()
	}
}

// The file contains the writes of scripts to locks (SET) and to queues (ZADD). If either permission is missing,
// the server skips the whole transaction.
func TestReplayNeedsPermissionsForWholeFile(t *testing.T) {
	for _, right := range []string{"set", "zadd"} {
		t.Run(right, func(t *testing.T) {
			r := startWith(t, &redisproc.Options{
				AppendOnly: "always", ACL: []string{"default on nopass ~* &* +@all -" + right, "locker on >" + secretPassword + " ~* &* +@all"},
			})
			found, err := runDoctor(t.Context(), "redis://locker:"+secretPassword+"@"+r.servers[0].Addr()+"?timeout="+busyTimeout().String(), 0, nil)
			r.noError(err)
			if !slices.ContainsFunc(found, func(f driver.Finding) bool { return f.Check == "replay" && f.Verdict == driver.VerdictFault }) {
				t.Errorf("without permission for %s: %+v", right, found)
			}
		})
	}
}

func TestDoctorFindsQuarantineOffWithFailover(t *testing.T) {
	c := startReplicatedPair(t)
	url := fmt.Sprintf("redis+replicas://%s,%s/0?timeout="+busyTimeout().String()+"&quarantine=off", c.servers[0].Addr(), c.servers[1].Addr())
	found, err := runDoctor(t.Context(), url, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Check == "quarantine" && f.Verdict == driver.VerdictFault {
			return
		}
	}
	t.Errorf("found %+v, want quarantine=off reported", found)
}

// runDoctor returns the findings of the doctor for a URL.
func runDoctor(ctx context.Context, url string, ttl time.Duration, opts *redis.Options) ([]driver.Finding, error) {
	var o redis.Options
	if opts != nil {
		o = *opts
	}
	o.NoCheck = true
	d, err := redis.Open(ctx, url, &o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Diagnose(ctx, ttl), nil
}
