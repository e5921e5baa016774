package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redis"
)

// checkRejected checks that Open fails with want, names the node and the fix, and leaves no lock behind.
func (r *rig) checkRejected(nodes []redis.Node, opts *redis.Options, want error, words ...string) {
	r.Helper()
	d, err := r.open(nodes, opts)
	if err == nil {
		d.Close()
		r.Errorf("Open succeeded, want %v", want)
		return
	}
	if !errors.Is(err, want) {
		r.Errorf("%v does not match %v", err, want)
	}
	checkMentions(r, err, words...)
	r.checkCleared()
}

func TestOpenRejectsBadArguments(t *testing.T) {
	t.Parallel()
	r := &rig{T: t}
	many := make([]redis.Node, 10)
	for i := range many {
		many[i].Addr = fmt.Sprintf("127.0.0.1:%d", i+1)
	}
	for _, c := range []struct {
		nodes []redis.Node
		opts  redis.Options
		words []string
	}{
		{words: []string{"no node", "give the address"}},
		{nodes: []redis.Node{{}}, words: []string{"host:port"}},
		{nodes: []redis.Node{{Addr: "localhost"}}, words: []string{"node 1 of 1", "host:port"}},
		{nodes: []redis.Node{{Addr: "localhost:"}}, words: []string{"node 1 of 1", "host:port"}},
		{nodes: many, words: []string{"10 nodes", "at most 9"}},
		{nodes: []redis.Node{{Addr: "a:1"}, {Addr: "b:1"}, {Addr: "a:1"}}, words: []string{"a:1", "listed twice", "once"}},
		{nodes: []redis.Node{{Addr: "a:1"}}, opts: redis.Options{Prefix: "holdfast:x"}, words: []string{"prefix", "holdfast:"}},
		{nodes: []redis.Node{{Addr: "a:1"}}, opts: redis.Options{Prefix: "x:", BareKeys: true}, words: []string{"prefix", "x:", "bare"}},
		{nodes: []redis.Node{{Addr: "a:1"}}, opts: redis.Options{MaxTTL: time.Millisecond}, words: []string{"maxttl", "10ms"}},
		{nodes: []redis.Node{{Addr: "a:1"}}, opts: redis.Options{DB: -1}, words: []string{"db -1"}},
		{nodes: []redis.Node{{Addr: "a:1"}}, opts: redis.Options{Timeout: -1}, words: []string{"timeout -1"}},
	} {
		r.checkRejected(c.nodes, &c.opts, driver.ErrInvalid, c.words...)
	}
}

func TestOpenRejectsServerUnderTwoNames(t *testing.T) {
	r := startRig(t, 1)
	addr := r.servers[0].Addr()
	_, port, _ := net.SplitHostPort(addr)
	for range 10 { // both are dialed at once, and either may be first
		r.checkRejected([]redis.Node{{Addr: addr}, {Addr: "localhost:" + port}}, nil, driver.ErrConfig,
			"same server", addr, "localhost:"+port, "once")
		r.do(0, "FLUSHALL")
	}
}

func TestOpenRejectsReplica(t *testing.T) {
	r := startRig(t, 1)
	replica := redistest.Start(t, &redisproc.Options{Args: r.replicaOf(0)})
	r.checkRejected([]redis.Node{{Addr: replica.Addr()}}, nil, driver.ErrConfig, replica.Addr(), "replica of "+r.servers[0].Addr(), "master")
}

func TestOpenRejectsClusterNode(t *testing.T) {
	r := startWith(t, &redisproc.Options{Args: []string{"--cluster-enabled", "yes"}})
	r.checkRejected(r.nodes(), nil, driver.ErrConfig, r.servers[0].Addr(), "Cluster", "independent")
}

func TestOpenRejectsEvictingServer(t *testing.T) {
	r := startWith(t, &redisproc.Options{Args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}})
	r.checkRejected(r.nodes(), nil, driver.ErrConfig, r.servers[0].Addr(), "allkeys-lru", "CONFIG SET maxmemory-policy noeviction", "eviction=allow")

	log := new(logRecorder)
	d := r.openDriver(r.nodes(), &redis.Options{AllowEviction: true, Logger: slog.New(log)})
	defer d.Close()
	if !log.has("allkeys-lru", r.servers[0].Addr()) {
		t.Errorf("AllowEviction logs %q, want a warning", log.lines())
	}
}

func TestOpenRejectsSetWithOtherOptions(t *testing.T) {
	r := startRig(t, 3)
	d := r.openDriver(r.nodes(), nil)
	defer d.Close()
	addr := r.servers[0].Addr()
	r.checkRejected(r.nodes()[:1], nil, driver.ErrConfig, addr, "n=3", "n=1", "DEL holdfast:set")
	r.checkRejected(r.nodes(), &redis.Options{MaxTTL: 30 * time.Second}, driver.ErrConfig, "maxttl=60000", "maxttl=30000", "same nodes and maxttl",
		fmt.Sprintf("nodes %s, %s, %s: ", addr, r.servers[1].Addr(), r.servers[2].Addr()))
}

// This also holds for a single node.
func TestOpenRejectsSetOfOtherVersion(t *testing.T) {
	for agreement, row := range map[string]struct {
		n    int
		mend string
	}{
		"n=1": {1, "DEL holdfast:set"}, "n=3 maxttl=60000": {3, "DEL holdfast:set"},
		"n=1 v=2":  {1, "DEL holdfast:set"},
		"n=1 v=10": {1, "update this program"}, "n=3 v=4 maxttl=60000": {3, "update this program"},
	} {
		t.Run(agreement, func(t *testing.T) {
			r := startRig(t, row.n)
			for i := range row.n {
				r.do(i, "SET", "holdfast:set", agreement+" run="+r.infoField(i, "run_id"))
			}
			r.checkRejected(r.nodes(), nil, driver.ErrConfig, "another version of Holdfast", strconv.Quote(agreement), " v=3", row.mend)
		})
	}
}

func TestOpenRejectsMissingDatabase(t *testing.T) {
	r := startRig(t, 1)
	r.checkRejected(r.nodes(), &redis.Options{DB: 99}, driver.ErrConfig, r.servers[0].Addr(), "DB index", "choose another DB")
}

func TestOpenNamesEveryDownNode(t *testing.T) {
	r := startRig(t, 3)
	nodes := r.nodes()
	r.servers[0].Kill()
	d := r.openDriver(nodes, nil) // two of three are enough
	d.Close()
	r.servers[1].Kill()
	_, err := r.open(nodes, nil)
	if !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%v does not match ErrUnavailable", err)
	}
	checkMentions(t, err, "need 2 nodes", nodes[0].Addr, nodes[1].Addr, "connection refused")
}

// A server that accepts connections and never answers does not block Open forever.
func TestOpenTakesBoundedTime(t *testing.T) {
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	r := &rig{T: t}
	nodes := []redis.Node{{Addr: mute.Addr().String()}}
	r.checkRejected(nodes, &redis.Options{Timeout: 200 * time.Millisecond}, driver.ErrUnavailable, mute.Addr().String(), "timeout")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = redis.New(ctx, nodes, &redis.Options{Timeout: 200 * time.Millisecond})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not match context.Canceled", err)
	}
}

func TestOpenRejectsOtherServices(t *testing.T) {
	t.Parallel()
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	go func() {
		for {
			c, err := web.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			c.Close()
		}
	}()
	r := &rig{T: t}
	r.checkRejected([]redis.Node{{Addr: web.Addr().String()}}, nil, driver.ErrUnavailable, web.Addr().String())
}

func TestTTLOverMaximumIsRejected(t *testing.T) {
	r := startRig(t, 1)
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{MaxTTL: 20 * time.Second}), nil)
	_, err := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: 21 * time.Second})
	if !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("%v does not match driver.ErrInvalid", err)
	}
	checkMentions(t, err, "21s", "20s", "maxttl")
	l := r.acquire(c, "k", nil)
	if err := l.Extend(t.Context(), 21*time.Second); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("Extend: %v does not match driver.ErrInvalid", err)
	}
	r.release(l)
	r.checkCleared()
}

func TestOpenWarnsOfEvenNodeCount(t *testing.T) {
	r := startRig(t, 4)
	for n, want := range map[int][]string{1: nil, 2: {"with 2 nodes as with 1, locks survive the loss of 0"}, 3: nil, 4: {"4 nodes as with 3", "loss of 1"}} {
		log := new(logRecorder)
		r.openDriver(r.nodes()[:n], &redis.Options{DB: n}).Close() // without it, each admission would be logged
		d := r.openDriver(r.nodes()[:n], &redis.Options{Logger: slog.New(log), DB: n})
		d.Close()
		if want == nil && len(log.lines()) != 0 || want != nil && !log.has(want...) {
			t.Errorf("%d nodes: logged %q, want %q", n, log.lines(), want)
		}
	}
}

func TestConnectionSetsClientNameAndDatabase(t *testing.T) {
	r := startRig(t, 1)
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{ClientName: "billing-7", DB: 3}), nil)
	l := r.acquire(c, "k", nil)
	if list, _ := r.do(0, "CLIENT", "LIST").(string); !strings.Contains(list, "name=billing-7") || !strings.Contains(list, "db=3") {
		t.Errorf("CLIENT LIST = %s, want name=billing-7 and db=3", list)
	}
	if space, _ := r.do(0, "INFO", "keyspace").(string); !strings.Contains(space, "db3:") || strings.Contains(space, "db0:") {
		t.Errorf("INFO keyspace = %s, want keys in db3 alone", space)
	}
	r.release(l)
}

// logRecorder is a slog.Handler that stores log lines.
type logRecorder struct {
	mu   sync.Mutex
	text []string
}

func (n *logRecorder) Enabled(context.Context, slog.Level) bool { return true }
func (n *logRecorder) WithAttrs([]slog.Attr) slog.Handler       { return n }
func (n *logRecorder) WithGroup(string) slog.Handler            { return n }

func (n *logRecorder) Handle(_ context.Context, rec slog.Record) error {
	line := rec.Message
	rec.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text = append(n.text, line)
	return nil
}

func (n *logRecorder) lines() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.text...)
}

// has reports whether one line contains all words.
func (n *logRecorder) has(words ...string) bool {
	for _, line := range n.lines() {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return true
		}
	}
	return false
}
