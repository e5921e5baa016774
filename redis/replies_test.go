package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// faultyServer answers as Redis does, except that it answers each script with odd.
type faultyServer struct {
	listener net.Listener
	odd      atomic.Pointer[[]byte]
	set      atomic.Pointer[string] // value of the set's key
	old      atomic.Bool            // a server from before HELLO
	alike    atomic.Bool            // it calls itself part of a cluster, and has no scripts
}

func startFaultyServer(t testing.TB) *faultyServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &faultyServer{listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *faultyServer) serve(conn net.Conn) {
	defer conn.Close()
	in := resp.NewReader(conn)
	for {
		args, _, err := in.ReadCommand()
		if err != nil {
			return
		}
		words := make([]string, len(args))
		for i, a := range args {
			words[i] = string(a)
		}
		if _, err := conn.Write(s.reply(words)); err != nil {
			return
		}
	}
}

func (s *faultyServer) reply(words []string) []byte {
	bulk := func(text string) []byte {
		return []byte("$" + strconv.Itoa(len(text)) + "\r\n" + text + "\r\n")
	}
	switch strings.ToUpper(words[0]) {
	case "HELLO":
		if s.old.Load() {
			return []byte("-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n")
		}
		if s.alike.Load() {
			return []byte("%3\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n+mode\r\n+cluster\r\n")
		}
		return []byte("%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n")
	case "INFO":
		if s.old.Load() {
			return bulk("redis_version:5.0.14\r\n")
		}
		return bulk("redis_version:7.0.0\r\nrole:master\r\nrun_id:odd\r\nuptime_in_seconds:100000\r\ncluster_enabled:0\r\n")
	case "TIME":
		now := time.Now().UnixMicro()
		return resp.AppendCommand(nil, strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10))
	case "GET":
		if set := s.set.Load(); words[1] == wire.Set && set != nil {
			return bulk(*set)
		}
		return []byte("$-1\r\n")
	case "SCRIPT":
		if s.alike.Load() {
			return []byte("-ERR unknown command\r\n")
		}
		return bulk("loaded")
	case "SUBSCRIBE":
		return append([]byte(">3\r\n$9\r\nsubscribe\r\n"), append(bulk(words[1]), ":1\r\n"...)...)
	case "EVALSHA":
		if words[1] == wire.Probe.SHA {
			return []byte("*1\r\n$0\r\n\r\n")
		}
		if words[1] == wire.Admit.SHA {
			keys, _ := strconv.Atoi(words[2])
			s.set.Store(&words[3+keys+1])
			return []byte(":1\r\n")
		}
		return *s.odd.Load()
	}
	return []byte("+OK\r\n")
}

// replyRecipe makes a reply from bytes, so that a fuzzer's changes almost always give a valid reply.
type replyRecipe []byte

func (r *replyRecipe) next() (b byte) {
	if len(*r) > 0 {
		b, *r = (*r)[0], (*r)[1:]
	}
	return b
}

func (r *replyRecipe) text() string {
	n := min(int(r.next()), len(*r))
	text := string((*r)[:n])
	*r = (*r)[n:]
	return text
}

func (r *replyRecipe) reply(depth int) string {
	line := strings.NewReplacer("\r", "", "\n", "")
	switch r.next() % 12 {
	case 0:
		var n int64
		for range r.next() % 9 {
			n = n<<8 | int64(r.next())
		}
		return ":" + strconv.FormatInt(n, 10) + "\r\n"
	case 1:
		text := r.text()
		return "$" + strconv.Itoa(len(text)) + "\r\n" + text + "\r\n"
	case 2:
		return "+" + line.Replace(r.text()) + "\r\n"
	case 3:
		return "-" + line.Replace(r.text()) + "\r\n"
	case 4:
		return "$-1\r\n"
	case 5:
		return "_\r\n"
	case 6:
		return "#t\r\n"
	case 7:
		return ",1.5\r\n"
	case 8:
		return "*-1\r\n"
	case 9:
		return r.text()
	case 10: // a message such as a wake-up, and the reply after it
		return ">" + strings.TrimPrefix(r.list(depth), "*") + r.reply(depth+1)
	}
	return r.list(depth)
}

func (r *replyRecipe) list(depth int) string {
	n := int(r.next() % 6)
	if depth >= 3 {
		n = 0
	}
	var out strings.Builder
	out.WriteString("*" + strconv.Itoa(n) + "\r\n")
	for range n {
		out.WriteString(r.reply(depth + 1))
	}
	return out.String()
}

// FuzzReplies checks that no reply makes the driver panic or hang, and that only a number is a grant.
func FuzzReplies(f *testing.F) {
	for _, r := range []replyRecipe{
		{0, 1, 7},
		{0, 8, 255, 255, 255, 255, 255, 255, 255, 249},
		{0, 8, 127, 255, 255, 255, 255, 255, 255, 255},
		{1, 1, '7'},
		{2, 2, 'O', 'K'},
		{3, 11, 'N', 'O', 'S', 'C', 'R', 'I', 'P', 'T', ' ', 'n', 'o'},
		{3, 6, 'E', 'R', 'R', ' ', 'n', 'o'},
		{4},
		{5},
		{6},
		{7},
		{8},
		{9, 9, '>', '1', '\r', '\n', ':', '1', '\r', '\n', '\r'},
		{10, 3, 1, 7, 'm', 'e', 's', 's', 'a', 'g', 'e', 1, 1, 'c', 1, 1, 'o', 0, 1, 7},
		{10, 1, 1, 9, 's', 'u', 'b', 's', 'c', 'r', 'i', 'b', 'e', 0, 1, 7},
		{11, 3, 0, 1, 5, 1, 3, 'a', '.', '1', 0, 0},
		{11, 3, 1, 1, 'x', 11, 0, 5},
		{11, 4, 1, 3, 'a', '.', '1', 0, 1, 5, 1, 2, '3', '1', 0, 0},
		{11, '9', '9', 'M'}, // an unfinished list
		{11, 4, 1, 0, 0, 8, 255, 255, 255, 255, 255, 255, 255, 254, 1, 1, '0', 0, 0},
	} {
		f.Add([]byte(r))
	}
	s := startFaultyServer(f)
	odd := []byte("+OK\r\n")
	s.odd.Store(&odd)
	d, err := redis.New(context.Background(), []redis.Node{{Addr: s.listener.Addr().String()}}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { d.Close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		r := replyRecipe(data)
		reply := []byte(r.reply(0))
		s.odd.Store(&reply)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the client waits that long for the rest of an unfinished reply
		defer cancel()
		defer time.AfterFunc(time.Minute, func() { panic(fmt.Sprintf("%q: a call goes on after the end of its context", reply)) }).Stop()
		g, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true})
		if err == nil {
			if want := fmt.Sprintf(":%d\r\n", g.Token); !bytes.Contains(reply, []byte(want)) {
				t.Errorf("%q granted token %d", reply, g.Token)
			}
			d.Renew(ctx, []driver.Grant{g})
			d.Release(ctx, g, 0)
		}
		d.Inspect(ctx, "k")
		d.Force(ctx, "k", 1, "")
	})
}

func TestOldServerIsNamed(t *testing.T) {
	t.Parallel()
	server := startFaultyServer(t)
	server.old.Store(true)
	d, err := redis.New(t.Context(), []redis.Node{{Addr: server.listener.Addr().String()}}, nil)
	if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "older than Redis 6") {
		t.Errorf("Open = %v, %v", d, err)
	}
}

// Infinispan reports mode cluster in HELLO, and cluster_enabled:0 in INFO.
func TestServerWithoutScriptsIsNotCluster(t *testing.T) {
	t.Parallel()
	server := startFaultyServer(t)
	server.alike.Store(true)
	d, err := redis.New(t.Context(), []redis.Node{{Addr: server.listener.Addr().String()}}, nil)
	if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "it only speaks the protocol of Redis, and has no scripts") {
		t.Errorf("Open = %v, %v", d, err)
	}
}
