package redis_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// disguiseServer replaces words in the replies to one command.
func (r *rig) disguiseServer(command string, words ...string) route {
	r.Helper()
	way := newRoute(r, r.servers)
	for _, p := range way {
		r.Cleanup(p.Rewrite(faultproxy.Command(command), strings.NewReplacer(words...).Replace))
	}
	return way
}

// Without a run id, a restart of the server goes unnoticed.
func TestServerWithoutRunIDVotesOnlyAlone(t *testing.T) {
	r := startRig(t, 3)
	way := r.disguiseServer("INFO", "run_id:", "other_id:")
	r.checkRejected(way.nodes(), nil, driver.ErrConfig, way[0].Addr(), "run_id", "Redis or Valkey")
	c := r.clientOf(r.openDriver(way.nodes()[:1], nil), nil)
	r.release(r.acquire(c, "k", nil))
}

// Valkey 8 uses other names than Redis for some of its fields.
func TestClusterNodeIsKnownByAllNames(t *testing.T) {
	r := startRig(t, 1)
	for _, words := range [][]string{
		{"redis_mode:standalone", "server_mode:cluster", "server_mode:standalone", "server_mode:cluster"},
		{"redis_mode:standalone", "redis_mode:cluster", "server_mode:standalone", "redis_mode:cluster"},
		{"cluster_enabled:0", "cluster_enabled:1"},
	} {
		way := r.disguiseServer("INFO", words...)
		r.checkRejected(way.nodes(), nil, driver.ErrConfig, "Cluster", "independent")
	}
	other := newRelay(t, r.servers[0].Addr())
	other.edit = func(words []string, reply []byte) []byte {
		reply = bytes.Replace(reply, []byte("cluster_enabled:"), []byte("cluster_unknown:"), 1) // or INFO denies what HELLO reports
		return bytes.Replace(reply, []byte("$10\r\nstandalone"), []byte("$7\r\ncluster"), 1)
	}
	r.checkRejected([]redis.Node{other.start().node()}, nil, driver.ErrConfig, "Cluster", "independent")
}

func TestOpenRejectsSentinel(t *testing.T) {
	r := startWith(t, &redisproc.Options{Args: []string{"--sentinel"}})
	r.checkOpenRejected(r.nodes(), nil, driver.ErrConfig, "Sentinel", "address of a Redis server")
	r.checkOpenRejected(r.nodes(), &redis.Options{DB: 1}, driver.ErrConfig, "Sentinel", "address of a Redis server")
}

// checkOpenRejected is checkRejected for servers that have no keys.
func (r *rig) checkOpenRejected(nodes []redis.Node, opts *redis.Options, want error, words ...string) {
	r.Helper()
	_, err := r.open(nodes, opts)
	if !errors.Is(err, want) {
		r.Errorf("%v does not match %v", err, want)
	}
	checkMentions(r, err, words...)
}

func TestErrorNamesRenamedCommand(t *testing.T) {
	t.Parallel()
	for command, words := range map[string][]string{
		"INFO": {"INFO"}, "TIME": {"TIME"}, "EVALSHA": {"EVALSHA"}, "SCRIPT": {"SCRIPT"}, "INCRBY": {"INCRBY"}, "ZRANGEBYSCORE": {"ZRANGEBYSCORE"},
	} {
		t.Run(command, func(t *testing.T) {
			r := startWith(t, &redisproc.Options{Args: []string{"--rename-command", command, "HIDDEN"}})
			r.checkOpenRejected(r.nodes(), nil, driver.ErrConfig, append(words, "renamed", "under its own name")...)
		})
	}
}

// A proxy may support only RESP2. Then waiters poll, and everything else works.
func TestServerWithoutRESP3Polls(t *testing.T) {
	r := startRig(t, 1)
	old := newRelay(t, r.servers[0].Addr())
	old.answer = func(words []string, _ bool) []byte {
		if words[0] == "HELLO" {
			return []byte("-NOPROTO unsupported protocol version\r\n")
		}
		return nil
	}
	r.checkPolls([]redis.Node{old.start().node()})
}

// Without PUBLISH waiters poll, and everything else works.
func TestNodeWithoutPublishPolls(t *testing.T) {
	r := startWith(t, &redisproc.Options{Args: []string{"--rename-command", "PUBLISH", "HIDDEN"}})
	r.checkPolls(r.nodes())
}

// Some servers and proxies accept no commands over a subscribed connection, or support only RESP2. The client
// must not fail at its first wait.
func TestNodeWithoutSubscriptionPolls(t *testing.T) {
	r := startRig(t, 1)
	narrow, old := newRelay(t, r.servers[0].Addr()), newRelay(t, r.servers[0].Addr())
	narrow.answer = answerWhileSubscribed
	r.checkPolls([]redis.Node{narrow.start().node()})
	old.edit, old.answer = answerInRESP2, answerWhileSubscribed
	r.checkPolls([]redis.Node{old.start().node()})
}

// checkPolls checks that locks and waits work over the nodes, and that an event reports that waiters poll.
func (r *rig) checkPolls(nodes []redis.Node) {
	r.Helper()
	events := make(chan driver.NodeEvent, 100)
	c := r.clientOf(r.openDriver(nodes, nil), &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) { events <- e }}})
	r.awaitState(events, nodes[0].Addr, driver.NodePolling)
	other := r.clientOf(r.openDriver(nodes, nil), nil)
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL})
	next := r.waitAndRelease(other, "k", &holdfast.AcquireOptions{TTL: longTTL})
	time.Sleep(100 * time.Millisecond) // it waits by now; otherwise the test shows less
	if err := l.Extend(r.Context(), longTTL); err != nil {
		r.Errorf("Extend() = %v", err)
	}
	r.release(l)
	if err := <-next; err != nil {
		r.Errorf("the waiter: %v", err)
	}
	r.checkCleared()
}

// If the server may reorder messages and replies, a wake-up is not a grant.
func TestWakeUpGrantsOnlyInOrder(t *testing.T) {
	r := startRig(t, 1)
	for _, c := range []struct {
		words  []string
		grants bool
	}{
		{words: []string{"arch_bits:", "arch_bits:"}, grants: true},
		{words: []string{"redis_version:", "dragonfly_version:df-v1\r\nredis_version:"}},
		{words: []string{"lru_clock:", "mvcc_depth:0\r\nlru_clock:"}},
		{words: []string{"gcc_version:", "other:"}},
	} {
		way := r.disguiseServer("INFO", c.words...)
		var asked atomic.Int32
		way[0].CutAfter(func(args [][]byte) bool { // it cuts nothing, and counts
			if callsOf(wire.Acquire)(args) {
				asked.Add(1)
			}
			return false
		}, 1)
		first, waiter := r.newClient(), r.clientOf(r.openDriver(way.nodes(), nil), nil)
		granted := false
		for i := 0; i < 3 || c.grants && !granted && i < 50; i++ { // a late wake-up makes the waiter ask all nodes
			key := fmt.Sprintf("k%q%d", c.words, i)
			l := r.acquire(first, key, &holdfast.AcquireOptions{TTL: longTTL})
			next := make(chan *holdfast.Lease, 1)
			go func() {
				l, err := waiter.Acquire(r.boundedContext(), key, &holdfast.AcquireOptions{TTL: longTTL})
				if err != nil {
					t.Error(err)
				}
				next <- l
			}()
			r.awaitWaiters(first, key, 1)
			r.eventually("the waiter has its last answer", func() bool { return way[0].Stats().Replies == way[0].Stats().Requests })
			before := asked.Load()
			r.release(l)
			if l := <-next; l != nil {
				r.release(l)
			}
			granted = granted || asked.Load() == before
		}
		if granted != c.grants {
			t.Errorf("%q: a wake-up grants the lock: %v, want %v", c.words, granted, c.grants)
		}
	}
}

// Servers differ in how they report a missing permission inside a script.
func TestNewerServersNameMissingPermission(t *testing.T) {
	for _, name := range redistest.NewerServers {
		t.Run(name, func(t *testing.T) {
			program := redistest.Program(t, name)
			var users []string
			for i := range permissions {
				less := append(append([]string(nil), permissions[:i]...), permissions[i+1:]...)
				users = append(users, aclUser(fmt.Sprintf("user%d", i), less...))
			}
			r := startWith(t, &redisproc.Options{Program: program, ACL: append(users, aclUser("all", permissions...))})
			r.release(r.acquire(r.clientOf(r.openDriver(r.nodes(), &redis.Options{Username: "all", Password: secretPassword}), nil), "k", nil))
			for i, right := range permissions {
				switch right {
				case "+auth", "+hello", "+ping", "+client|setname", "+publish", "+pubsub|numsub", "+subscribe", "+unsubscribe":
					continue
				}
				command, _, _ := strings.Cut(strings.TrimPrefix(right, "+"), "|")
				r.checkRejected(r.nodes(), &redis.Options{Username: fmt.Sprintf("user%d", i), Password: secretPassword}, driver.ErrAuth,
					"docs/operations.md", command)
			}
		})
	}
}

// The documented permissions suffice for bare keys.
func TestDocumentedPermissionsSufficeForBareKeys(t *testing.T) {
	bare := strings.Replace(aclUser("bare", permissions...), "~lock:*", "~job:*", 1)
	r := startWith(t, &redisproc.Options{ACL: []string{bare}})
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{BareKeys: true, Username: "bare", Password: secretPassword}), nil)
	r.release(r.acquire(c, "job:1", nil))
	if denied := r.deniedCommands(); len(denied) != 0 {
		t.Errorf("ACL LOG = %v, want nothing denied", denied)
	}
}
