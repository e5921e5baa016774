package redis_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/resp"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// hostileServer answers as Redis does, as a shard of a Cluster and as a Sentinel, until it has received turn
// commands over all connections. Then it sends its hostile bytes once: before the next answer, or in place of
// it.
type hostileServer struct {
	cluster bool
	bytes   []byte
	instead bool

	mu   sync.Mutex // guards the fields below
	turn int
	sent bool
	set  string // the marker of the nodes
	info string // last lines of INFO

	ahead time.Duration // of the server's clock
	late  time.Duration // delay of each answer
	mute  bool          // true: no answers
	step  []byte        // answer to the script that checks whether scripts are atomic; nil: that of an atomic server

	locked bool // a client acquired a lock
}

func (s *hostileServer) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	go s.serve(far)
	return near, nil
}

func (s *hostileServer) serve(far net.Conn) {
	defer far.Close()
	for in := resp.NewReader(far); ; {
		args, _, err := in.ReadCommand()
		if err != nil {
			return
		}
		words := make([]string, len(args))
		for i, a := range args {
			words[i] = string(a)
		}
		if time.Sleep(s.late); s.mute {
			continue
		}
		if _, err := far.Write(s.answer(words)); err != nil {
			return
		}
	}
}

func (s *hostileServer) answer(words []string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := s.usualAnswer(words)
	if s.turn--; s.turn >= 0 || s.sent {
		return answer
	}
	s.sent = true
	if s.instead {
		return s.bytes
	}
	return append(slices.Clone(s.bytes), answer...)
}

// usualAnswer returns the answer of a healthy server.
func (s *hostileServer) usualAnswer(words []string) []byte {
	bulk := func(text string) []byte { return fmt.Appendf(nil, "$%d\r\n%s\r\n", len(text), text) }
	switch strings.ToUpper(words[0]) {
	case "HELLO":
		mode := "standalone"
		if s.cluster {
			mode = "cluster"
		}
		return []byte("%4\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n+mode\r\n+" + mode + "\r\n+role\r\n+master\r\n")
	case "INFO":
		return bulk("redis_version:7.0.0\r\ngcc_version:12\r\nrole:master\r\nrun_id:odd\r\nuptime_in_seconds:100000\r\nconnected_slaves:0\r\n" + s.info)
	case "TIME":
		now := time.Now().Add(s.ahead).UnixMicro()
		return resp.AppendCommand(nil, strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10))
	case "GET":
		if strings.HasPrefix(words[1], wire.Set) && s.set != "" {
			return bulk(s.set)
		}
		return []byte("$-1\r\n")
	case "SCRIPT":
		return bulk("loaded")
	case "SCAN":
		return []byte("*2\r\n$1\r\n0\r\n*1\r\n$6\r\nlock:k\r\n")
	case "ZRANGEBYSCORE":
		return resp.AppendCommand(nil, "somebody.1")
	case "ZSCORE":
		return bulk("-9000000000000")
	case "HSCAN":
		return []byte("*2\r\n$1\r\n0\r\n*0\r\n")
	case "PTTL":
		return []byte(":-1\r\n")
	case "CONFIG":
		return resp.AppendCommand(nil, words[len(words)-1], "yes")
	case "SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE":
		kind := strings.ToLower(words[0])
		return fmt.Appendf(nil, ">3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n:1\r\n", len(kind), kind, len(words[1]), words[1])
	case "CLUSTER":
		switch words[1] {
		case "MYID":
			return bulk("shard-1")
		case "INFO":
			return bulk("cluster_state:ok\r\n")
		}
		return []byte("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$6\r\nserver\r\n:6379\r\n$7\r\nshard-1\r\n")
	case "SENTINEL":
		if words[1] == "MASTER" {
			return []byte("%1\r\n+down-after-milliseconds\r\n+5000\r\n")
		}
		return resp.AppendCommand(nil, "server", "6379")
	case "EVALSHA":
		return s.script(words[1], words[3:])
	}
	return []byte("+OK\r\n")
}

func (s *hostileServer) script(sha string, args []string) []byte {
	format := wire.Plain
	if sha == wire.Redisson.Probe.SHA || slices.ContainsFunc(wire.Redisson.Scripts(), func(s *wire.Script) bool { return s.SHA == sha }) {
		format = wire.Redisson
	}
	switch sha {
	case wire.Step.SHA:
		if s.step != nil {
			return s.step
		}
	case wire.Admit.SHA:
		s.set = args[2]
	case format.Probe.SHA:
		return []byte("*1\r\n$0\r\n\r\n")
	case format.Inspect.SHA:
		return []byte("*4\r\n$10\r\nsomebody.1\r\n:5000\r\n$2\r\n32\r\n:1\r\n")
	case format.Acquire.SHA:
		if strings.HasSuffix(args[0], "busy") {
			return []byte("*4\r\n:5000\r\n$10\r\nsomebody.1\r\n:1\r\n:1\r\n")
		}
		return fmt.Appendf(nil, ":%d\r\n", time.Now().UnixMicro()<<2)
	}
	return []byte(":1\r\n")
}

// hostileKinds are the kinds of servers for a client.
var hostileKinds = []struct {
	node    redis.Node
	opts    redis.Options
	cluster bool
}{
	{node: redis.Node{Addr: "server:6379"}},
	{node: redis.Node{Addr: "server:6379"}, opts: redis.Options{Format: redis.FormatRedisson}},
	{node: redis.Node{Addr: "server:6379"}, opts: redis.Options{Cluster: true, NoQuarantine: true}, cluster: true},
	{
		node: redis.Node{Failover: &redis.Failover{Sentinels: []string{"one:26379", "two:26379", "three:26379"}, Master: "mymaster"}},
		opts: redis.Options{NoQuarantine: true},
	},
}

// useClient uses the public API with a server that sends hostile bytes, and fails if a call hangs.
func (s *hostileServer) useClient(t *testing.T, kind int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		opts := hostileKinds[kind].opts
		opts.Dial = s.dial
		d, err := redis.New(t.Context(), []redis.Node{hostileKinds[kind].node}, &opts)
		if err != nil {
			opts.NoCheck = true
			if d, err = redis.New(t.Context(), []redis.Node{hostileKinds[kind].node}, &opts); err != nil {
				t.Fatal(err)
			}
		}
		d.Notify(func(driver.NodeEvent) {})
		d.Alert(func(string, string) {})
		call := func(what string, fn func(ctx context.Context)) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			at := time.Now()
			if fn(ctx); time.Since(at) > 10*time.Second { // virtual time
				t.Errorf("%s took %v of 3s", what, time.Since(at))
			}
		}
		call("Acquire", func(ctx context.Context) {
			if g, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true}); err == nil {
				s.locked = true
				d.Renew(ctx, []driver.Grant{g})
				d.Check(ctx, g)
				d.Adopt(ctx, g)
				d.Release(ctx, g, 0)
			}
		})
		call("waiting", func(ctx context.Context) { d.Acquire(ctx, driver.Request{Key: "busy", TTL: 10 * time.Second}) })
		time.Sleep(6 * time.Second) // the client checks an idle connection
		call("Inspect", func(ctx context.Context) { d.Inspect(ctx, "k") })
		call("Queue", func(ctx context.Context) { d.Queue(ctx, "k", 10) })
		call("List", func(ctx context.Context) { d.List(ctx, "", func(driver.Status) bool { return true }) })
		call("Leaks", func(ctx context.Context) {
			for l, err := range d.Leaks(ctx, nil) {
				if err == nil {
					d.DeleteLeak(ctx, l)
				}
			}
		})
		call("Force", func(ctx context.Context) { d.Force(ctx, "k", 32, "") })
		call("Diagnose", func(ctx context.Context) { d.Diagnose(ctx, 10*time.Second) })
		d.Close()
		if time.Since(begin) > 2*time.Minute {
			t.Errorf("all took %v", time.Since(begin))
		}
	})
}

// hostileBytes replace answers. They are no valid answer to any command.
var hostileBytes = []string{
	">0\r\n", ">-1\r\n", ">1\r\n_\r\n", ">3\r\n_\r\n_\r\n_\r\n", ">3\r\n+message\r\n*0\r\n*-1\r\n", ">4\r\n+pmessage\r\n*0\r\n_\r\n:1\r\n",
	">3\r\n+message\r\n+c\r\n+:::\r\n", "*0\r\n", "*-1\r\n", "*1\r\n*0\r\n", "*4\r\n_\r\n_\r\n_\r\n_\r\n", "%0\r\n", "%1\r\n_\r\n_\r\n", "_\r\n",
	"$-1\r\n", "$0\r\n\r\n", ":-9223372036854775808\r\n", ":9223372036854775807\r\n", "-\r\n", "-MOVED\r\n", "-MOVED 1\r\n", "-MOVED 1 :\r\n",
	"-MOVED 99999 a:1\r\n", "-MOVED -1 a:1\r\n", "-MOVED 1 [:1\r\n", "-ASK 1 ?:1\r\n", "-ASK\r\n", "-TRYAGAIN\r\n", "-CLUSTERDOWN\r\n",
	"-UNADMITTED\r\n", "-READONLY\r\n", "-NOSCRIPT\r\n", "-NOAUTH\r\n", "|1\r\n+a\r\n+b\r\n", "~2\r\n+a\r\n:1\r\n", "\r\n", "hello\r\n",
}

// Unexpected bytes, in place of an answer or without a request, end at most their connection: nothing panics,
// and no call takes much longer than its context. The test tries some of the positions.
func TestHostileBytesDoNotPanic(t *testing.T) {
	t.Parallel()
	testHostileServers(t, 61)
}

// The test tries all positions.
func TestHostileBytesAtAnyPointDoNotPanic(t *testing.T) {
	gates.Nightly(t, "sizes")
	t.Parallel()
	testHostileServers(t, 1)
}

// testHostileServers tries each message at each stride-th position, for each kind of server.
func testHostileServers(t *testing.T, stride int) {
	for kind := range hostileKinds {
		well := &hostileServer{cluster: hostileKinds[kind].cluster, turn: 1 << 30}
		if well.useClient(t, kind); !well.locked {
			t.Fatalf("kind %d: no lock from a healthy server", kind)
		}
		turns := 1<<30 - well.turn
		for i, raw := range hostileBytes {
			for _, instead := range []bool{false, true} {
				for turn := i % stride; turn < turns; turn += stride {
					s := &hostileServer{cluster: hostileKinds[kind].cluster, bytes: []byte(raw), instead: instead, turn: turn}
					if s.useClient(t, kind); t.Failed() {
						t.Fatalf("kind %d, %q in turn %d instead of an answer: %v", kind, raw, turn, instead)
					}
				}
			}
		}
	}
}

// FuzzHostileServer runs the same test with the bytes of a fuzzer.
func FuzzHostileServer(f *testing.F) {
	for i, raw := range hostileBytes {
		f.Add(byte(i), byte(7*i), i%2 == 0, []byte(raw))
	}
	f.Fuzz(func(t *testing.T, kind, turn byte, instead bool, raw []byte) {
		k := int(kind) % len(hostileKinds)
		s := &hostileServer{cluster: hostileKinds[k].cluster, bytes: raw, instead: instead, turn: int(turn)}
		s.useClient(t, k)
	})
}
