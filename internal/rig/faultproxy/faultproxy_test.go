package faultproxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

const (
	patience = 90 * time.Second      // for an event that happens
	moment   = 50 * time.Millisecond // for an event that does not happen
)

func startProxy(t *testing.T) (*redisproc.Server, *faultproxy.Proxy) {
	t.Helper()
	server := redistest.Start(t, nil)
	proxy, err := faultproxy.New(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	return server, proxy
}

type client struct {
	t    *testing.T
	conn net.Conn
	in   *resp.Reader
}

func dialClient(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{t, conn, resp.NewReader(conn)}
}

// sendBatch sends commands, each a line of words, in one batch.
func (c *client) sendBatch(commands ...string) {
	c.t.Helper()
	var batch []byte
	for _, command := range commands {
		batch = resp.AppendCommand(batch, strings.Fields(command)...)
	}
	if _, err := c.conn.Write(batch); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) wantReply(want any) {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(patience))
	v, err := c.in.ReadValue()
	if err != nil {
		c.t.Fatalf("%v, want %v", err, want)
	}
	if got := v.Decode(); fmt.Sprint(got) != fmt.Sprint(want) {
		c.t.Fatalf("read %v, want %v", got, want)
	}
}

func (c *client) wantsEnd() {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(patience))
	if v, err := c.in.ReadValue(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("read %q, %v, want the end of the connection", v.Raw, err)
	}
}

func (c *client) wantsSilence() {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(moment))
	if v, err := c.in.ReadValue(); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("read %q, %v, want neither data nor the end", v.Raw, err)
	}
}

// wantsReset checks that a new connection is reset, either while it is opened or afterwards.
func wantsReset(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer conn.Close()
	(&client{t, conn, resp.NewReader(conn)}).wantsEnd()
}

func getKey(t *testing.T, server *redisproc.Server, key string) any {
	t.Helper()
	value, err := server.Do("GET", key)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func awaitSignal(t *testing.T, what <-chan struct{}) {
	t.Helper()
	select {
	case <-what:
	case <-time.After(patience):
		t.Fatal("nothing was received")
	}
}

// readTranscript returns every byte that a server sends in answer to a batch that ends with QUIT.
func readTranscript(t *testing.T, addr, batch string) string {
	t.Helper()
	c := dialClient(t, addr)
	c.sendBatch(strings.Split(batch, "\n")...)
	c.conn.SetReadDeadline(time.Now().Add(patience))
	all, err := io.ReadAll(c.conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

func TestBytesPassUnchanged(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	batch := strings.Join([]string{
		"HELLO 3 SETNAME same", "SET big " + strings.Repeat("x", 3<<20), "GET big", "GET absent", "INCR n", "NOSUCH",
		"HSET h a 1 b 2", "HGETALL h", "SUBSCRIBE one two", "PUBLISH one hello", "UNSUBSCRIBE", "CONFIG GET save", "QUIT",
	}, "\n")
	direct := readTranscript(t, server.Addr(), "DEL n h\n"+batch)
	proxied := readTranscript(t, proxy.Addr(), "DEL n h\n"+batch)
	hide := func(s string) string { // the connection's number and the number of keys that DEL found differ
		_, s, _ = strings.Cut(s, "$4\r\nmode")
		return s
	}
	if hide(direct) == "" || hide(direct) != hide(proxied) {
		t.Errorf("through the proxy %.300q, directly %.300q", proxied, direct)
	}
}

func TestInlineCommandsPass(t *testing.T) {
	t.Parallel()
	_, proxy := startProxy(t)
	c := dialClient(t, proxy.Addr())
	io.WriteString(c.conn, "\r\nPING\r\n\r\nECHO hello\r\n")
	c.wantReply("PONG")
	c.wantReply("hello")
}

func TestDelayKeepsOrderAndPipelining(t *testing.T) {
	t.Parallel()
	_, proxy := startProxy(t)
	c := dialClient(t, proxy.Addr())
	const delay, n = 100 * time.Millisecond, 100
	proxy.SetDelay(delay)
	began := time.Now()
	for i := range n {
		c.sendBatch(fmt.Sprint("ECHO ", i))
	}
	for i := range n {
		c.wantReply(i)
	}
	if took := time.Since(began); took < delay || took > n*delay/2 {
		t.Errorf("%d replies took %v with %v delay", n, took, delay)
	}
	proxy.SetDelay(0)
	c.sendBatch("PING")
	c.wantReply("PONG")
}

func TestCutAfterLosesReplyAndConnection(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	lost := proxy.CutAfter(faultproxy.Command("set", "key"), 1)
	c := dialClient(t, proxy.Addr())
	c.sendBatch("ECHO before", "SET other 1", "SET key mine NX", "ECHO after")
	awaitSignal(t, lost)
	if got := getKey(t, server, "key"); got != "mine" {
		t.Errorf("key is %v: the request was not executed", got)
	}
	c.wantReply("before")
	c.wantReply("OK")
	c.wantsEnd()

	c = dialClient(t, proxy.Addr())
	c.sendBatch("SET key again")
	c.wantReply("OK")
}

func TestRewriteChangesRepliesUntilItIsStopped(t *testing.T) {
	t.Parallel()
	_, proxy := startProxy(t)
	c := dialClient(t, proxy.Addr())
	c.sendBatch("SET key true", "SET other true", "HELLO 3")
	c.wantReply("OK")
	c.wantReply("OK")
	if _, err := c.in.ReadValue(); err != nil {
		t.Fatal(err)
	}
	stop := proxy.Rewrite(faultproxy.Command("GET", "key"), func(text string) string { return "un" + text })
	c.sendBatch("GET key", "GET other", "GET none", "STRLEN key")
	for _, want := range []any{"untrue", "true", nil, 4} {
		c.wantReply(want)
	}
	defer proxy.Rewrite(faultproxy.Command("INFO"), func(text string) string { return text[:len("# Server")] })()
	c.sendBatch("INFO")
	c.wantReply("# Server") // the server sends it as a verbatim string
	stop()
	c.sendBatch("GET key")
	c.wantReply("true")
}

func TestRedirectLeadsNewConnectionsToAnotherServer(t *testing.T) {
	t.Parallel()
	first, proxy := startProxy(t)
	second := redistest.Start(t, nil)
	for server, name := range map[*redisproc.Server]string{first: "first", second: "second"} {
		if _, err := server.Do("SET", "name", name); err != nil {
			t.Fatal(err)
		}
	}
	old := dialClient(t, proxy.Addr())
	old.sendBatch("GET name")
	old.wantReply("first")
	proxy.Redirect(second.Addr())
	fresh := dialClient(t, proxy.Addr())
	fresh.sendBatch("GET name")
	fresh.wantReply("second")
	old.sendBatch("GET name")
	old.wantReply("first")
	proxy.Cut()
	old.wantsEnd()
}

func TestMuteAfterHangsConnection(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	lost := proxy.MuteAfter(faultproxy.Command("INCR"), 2)
	for _, want := range []string{"1", "2"} {
		c := dialClient(t, proxy.Addr())
		c.sendBatch("HELLO 3", "SUBSCRIBE news", "ECHO before", "INCR n", "ECHO after", "PUBLISH news x")
		awaitSignal(t, lost)
		c.conn.SetReadDeadline(time.Now().Add(patience))
		for range 2 {
			if _, err := c.in.ReadValue(); err != nil {
				t.Fatal(err)
			}
		}
		c.wantReply("before")
		c.wantsSilence()
		if got := getKey(t, server, "n"); got != want {
			t.Errorf("counter is %v, want %v", got, want)
		}
		c.sendBatch("SET still executed")
		if want == "2" {
			server.Kill()
			c.wantsSilence()
		}
	}
}

// The proxy loses the right reply only if it counted the values before it correctly.
func TestRepliesAreDistinguishedFromPushes(t *testing.T) {
	t.Parallel()
	_, proxy := startProxy(t)
	for name, commands := range map[string]string{
		"RESP3": "HELLO 3\nSUBSCRIBE a b a\nPUBLISH a x\nPUBLISH b y\nUNSUBSCRIBE b none\nPUBLISH a z\nLRANGE list 0 -1\nLOST",
		"RESP2": "LRANGE list 0 -1\nMULTI\nPING\nEXEC\nLOST",
	} {
		t.Run(name, func(t *testing.T) {
			setup := dialClient(t, proxy.Addr())
			setup.sendBatch("DEL list", "RPUSH list message a b")
			setup.in.ReadValue()
			setup.wantReply(3)

			direct := readTranscript(t, proxy.Addr(), commands+"\nQUIT")
			lost := proxy.CutAfter(faultproxy.Command("LOST"), 1)
			cut := readTranscript(t, proxy.Addr(), commands+"\nQUIT")
			awaitSignal(t, lost)

			want, _, _ := strings.Cut(direct, "-ERR unknown command 'LOST'")
			if withoutID(cut) != withoutID(want) {
				t.Errorf("up to the lost reply:\n%q\nwant\n%q", cut, want)
			}
		})
	}
}

// withoutID removes the client ID from the reply to HELLO.
func withoutID(transcript string) string {
	before, rest, ok := strings.Cut(transcript, "$2\r\nid\r\n:")
	if !ok {
		return transcript
	}
	_, after, _ := strings.Cut(rest, "\r\n")
	return before + after
}

func TestLostSubscriptionIsLostWhole(t *testing.T) {
	t.Parallel()
	_, proxy := startProxy(t)
	lost := proxy.CutAfter(faultproxy.Command("SUBSCRIBE"), 1)
	c := dialClient(t, proxy.Addr())
	c.sendBatch("HELLO 3", "PING", "SUBSCRIBE a b")
	c.in.ReadValue()
	c.wantReply("PONG")
	awaitSignal(t, lost)
	c.wantsEnd()
}

func TestHeldRequestArrivesAfterItsConnection(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*client, *faultproxy.Proxy){
		"client closes": func(c *client, _ *faultproxy.Proxy) { c.conn.Close() },
		"client resets": func(c *client, _ *faultproxy.Proxy) { c.conn.(*net.TCPConn).SetLinger(0); c.conn.Close() },
		"cut":           func(c *client, p *faultproxy.Proxy) { p.Cut(); c.wantsEnd() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, proxy := startProxy(t)
			hold := proxy.HoldRequest(faultproxy.Command("DEL", "lock"), 1)
			old := dialClient(t, proxy.Addr())
			old.sendBatch("SET lock a", "DEL lock")
			old.wantReply("OK")
			awaitSignal(t, hold.Caught())
			end(old, proxy)

			next := dialClient(t, proxy.Addr())
			next.sendBatch("SET lock b", "DEL nothing", "GET lock")
			next.wantReply("OK")
			next.wantReply(0)
			next.wantReply("b")
			hold.Release()
			if got := getKey(t, server, "lock"); got != nil {
				t.Errorf("lock is %v: the held request did not arrive", got)
			}
		})
	}
}

func TestHoldKeepsRequestOrder(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	hold := proxy.HoldRequest(faultproxy.Command("APPEND"), 1)
	c := dialClient(t, proxy.Addr())
	c.sendBatch("SET k 0", "APPEND k 1", "APPEND k 2", "GET k")
	c.wantReply("OK")
	awaitSignal(t, hold.Caught())
	c.wantsSilence()
	if got := getKey(t, server, "k"); got != "0" {
		t.Errorf("after the held request the server received %v", got)
	}
	hold.Release()
	hold.Release()
	c.wantReply(2)
	c.wantReply(3)
	c.wantReply("012")
}

func TestRequestIsHeldOnlyOnce(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	first := proxy.HoldRequest(faultproxy.Command("SET", "k"), 1)
	second := proxy.HoldRequest(faultproxy.Command("SET"), 1)
	c := dialClient(t, proxy.Addr())
	c.sendBatch("SET k v", "PING", "SET other v")
	awaitSignal(t, first.Caught())
	first.Release()
	c.wantReply("OK")
	c.wantReply("PONG")
	awaitSignal(t, second.Caught())
	if got := getKey(t, server, "other"); got != nil {
		t.Errorf("other = %v although the request is held", got)
	}
	second.Release()
	c.wantReply("OK")
}

func TestReleaseIgnoresDeadConnection(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	hold := proxy.HoldRequest(faultproxy.Command("SET"), 1)
	c := dialClient(t, proxy.Addr())
	c.sendBatch("PING", "SET k v")
	c.wantReply("PONG")
	awaitSignal(t, hold.Caught())
	server.Kill()
	c.wantsEnd()
	hold.Release()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := getKey(t, server, "k"); got != nil {
		t.Errorf("k = %v: delivered over a closed connection", got)
	}
}

func TestBlackholeDeliversLateOrNever(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	c := dialClient(t, proxy.Addr())
	c.sendBatch("PING")
	c.wantReply("PONG")

	proxy.Blackhole(true, false)
	c.sendBatch("SET up late")
	c.wantsSilence()
	if got := getKey(t, server, "up"); got != nil {
		t.Errorf("up = %v while the server is unreachable", got)
	}
	proxy.Blackhole(false, true)
	c.wantsSilence()
	if got := getKey(t, server, "up"); got != "late" {
		t.Errorf("up = %v, want the delayed value", got)
	}
	proxy.Blackhole(false, false)
	c.wantReply("OK")

	proxy.Blackhole(true, true)
	c.sendBatch("SET up never")
	c.wantsSilence()
	proxy.Cut()
	c.wantsEnd()
	proxy.Blackhole(false, false)
	c = dialClient(t, proxy.Addr())
	c.sendBatch("GET up")
	c.wantReply("late")
}

func TestBlackholeHidesEndOfServer(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	c := dialClient(t, proxy.Addr())
	c.sendBatch("PING")
	c.wantReply("PONG")
	proxy.Blackhole(false, true)
	server.Kill()
	c.wantsSilence()
	proxy.Blackhole(false, false)
	c.wantsEnd()
}

func TestRefuseKeepsOpenConnections(t *testing.T) {
	t.Parallel()
	_, proxy := startProxy(t)
	old := dialClient(t, proxy.Addr())
	old.sendBatch("PING")
	old.wantReply("PONG")
	proxy.Refuse(true)
	wantsReset(t, proxy.Addr())
	old.sendBatch("PING")
	old.wantReply("PONG")
	proxy.Refuse(false)
	fresh := dialClient(t, proxy.Addr())
	fresh.sendBatch("PING")
	fresh.wantReply("PONG")
}

func TestProxySurvivesServerRestart(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	c := dialClient(t, proxy.Addr())
	c.sendBatch("PING")
	c.wantReply("PONG")
	server.Kill()
	c.wantsEnd()
	wantsReset(t, proxy.Addr())
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	c = dialClient(t, proxy.Addr())
	c.sendBatch("PING")
	c.wantReply("PONG")
}

func TestClosedConnectionKeepsPlannedLoss(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	lost := proxy.CutAfter(faultproxy.Command("ECHO"), 1)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	c := dialClient(t, proxy.Addr())
	c.sendBatch("ECHO one")
	for deadline := time.Now().Add(patience); proxy.Stats().Requests == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server did not receive the request")
		}
	}
	server.Kill()
	c.wantsEnd()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	c = dialClient(t, proxy.Addr())
	c.sendBatch("ECHO two")
	awaitSignal(t, lost)
	c.wantsEnd()
}

func TestCountersCountTraffic(t *testing.T) {
	t.Parallel()
	_, proxy := startProxy(t)
	c := dialClient(t, proxy.Addr())
	up := string(resp.AppendCommand(nil, "PING")) + "PING\r\n\r\n"
	io.WriteString(c.conn, up)
	c.wantReply("PONG")
	c.wantReply("PONG")
	c.sendBatch("PING") // its reply shows that the empty line has been forwarded
	c.wantReply("PONG")
	want := faultproxy.Stats{Requests: 3, Replies: 3}
	if got := proxy.Stats(); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	hold := proxy.HoldRequest(faultproxy.Command("HELD"), 1)
	lost := proxy.MuteAfter(faultproxy.Command("MUTED"), 1)
	held, muted, stuck := dialClient(t, proxy.Addr()), dialClient(t, proxy.Addr()), dialClient(t, proxy.Addr())
	held.sendBatch("HELD")
	awaitSignal(t, hold.Caught())
	muted.sendBatch("MUTED")
	awaitSignal(t, lost)
	stuck.sendBatch("PING")
	stuck.wantReply("PONG")
	proxy.Blackhole(true, true)
	proxy.SetDelay(time.Hour)
	stuck.sendBatch("PING")
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := proxy.Close(); err != nil {
			t.Fatal(err)
		}
	}
	hold.Release()
	for _, c := range []*client{held, muted, stuck} {
		c.wantsEnd()
	}
	if _, err := net.Dial("tcp", proxy.Addr()); err == nil {
		t.Error("a closed proxy accepts connections")
	}
}

// Under all faults, a client never reads the reply to another request.
func TestRepliesMatchRequestsUnderFaults(t *testing.T) {
	t.Parallel()
	server, proxy := startProxy(t)
	deadline := time.Now().Add(2 * time.Second)
	var clients sync.WaitGroup
	for id := range 8 {
		clients.Go(func() {
			for n := 0; time.Now().Before(deadline); n++ {
				askUntilCut(t, proxy.Addr(), fmt.Sprintf("%d.%d", id, n), deadline)
			}
		})
	}
	for round := 0; time.Now().Before(deadline); round++ {
		lost := proxy.CutAfter(faultproxy.Command("ECHO"), 1)
		hold := proxy.HoldRequest(faultproxy.Command("ECHO"), 1)
		proxy.SetDelay(time.Duration(round%3) * time.Millisecond)
		select {
		case <-lost:
		case <-time.After(moment):
		}
		proxy.Blackhole(round%2 == 0, round%3 == 0)
		if round%4 == 0 {
			proxy.Cut()
		}
		proxy.Refuse(round%5 == 0)
		proxy.Blackhole(false, false)
		hold.Release()
		proxy.Refuse(false)
	}
	proxy.SetDelay(0)
	proxy.Cut()
	clients.Wait()
	if _, err := server.Do("PING"); err != nil {
		t.Error(err)
	}
}

// askUntilCut sends requests until its connection ends.
func askUntilCut(t *testing.T, addr, name string, deadline time.Time) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer conn.Close()
	in := resp.NewReader(conn)
	for n := 0; time.Now().Before(deadline); n++ {
		first, second := fmt.Sprintf("%s.%d.a", name, n), fmt.Sprintf("%s.%d.b", name, n)
		batch := resp.AppendCommand(resp.AppendCommand(nil, "ECHO", first), "ECHO", second)
		conn.SetDeadline(deadline)
		if _, err := conn.Write(batch); err != nil {
			return
		}
		for _, want := range []string{first, second} {
			v, err := in.ReadValue()
			if err != nil {
				return
			}
			if !bytes.Equal(v.Text, []byte(want)) {
				t.Errorf("read %q, want %q", v.Raw, want)
				return
			}
		}
	}
}

func TestOpaqueProxyPassesAnyProtocol(t *testing.T) {
	t.Parallel()
	socket := t.TempDir() + "/s"
	upstream, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer upstream.Close()
	proxy, err := faultproxy.NewOpaque(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	client := dialClient(t, proxy.Addr()).conn
	server, err := upstream.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	carries := func(from, to net.Conn) {
		t.Helper()
		text := []byte("\x00*no\r\nRESP $")
		if _, err := from.Write(text); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(text))
		to.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, text) {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	carries(client, server)
	carries(server, client)

	proxy.Blackhole(true, false)
	client.Write([]byte("late"))
	server.SetReadDeadline(time.Now().Add(moment))
	if n, err := server.Read(make([]byte, 9)); err == nil {
		t.Errorf("%d bytes passed the black hole", n)
	}
	carries(server, client)
	proxy.Blackhole(false, false)
	server.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(server, make([]byte, 4)); err != nil {
		t.Errorf("the delayed request: %v", err)
	}

	proxy.Cut()
	for side, conn := range map[string]net.Conn{"client": client, "server": server} {
		conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 9)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after a cut the %s read: %v", side, err)
		}
	}
}

// The bytes arrive after the end of their connection, in any protocol, while new connections work.
func TestStrandedBytesArriveLate(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		start func(string) (*faultproxy.Proxy, error)
		end   func(*client, *faultproxy.Proxy)
	}{
		"client closes":         {faultproxy.New, func(c *client, _ *faultproxy.Proxy) { c.conn.Close() }},
		"client closes, opaque": {faultproxy.NewOpaque, func(c *client, _ *faultproxy.Proxy) { c.conn.Close() }},
		"cut":                   {faultproxy.New, func(c *client, p *faultproxy.Proxy) { p.Cut(); c.wantsEnd() }},
		"cut, opaque":           {faultproxy.NewOpaque, func(c *client, p *faultproxy.Proxy) { p.Cut(); c.wantsEnd() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, nil)
			proxy, err := row.start(server.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer proxy.Close()
			strand := func(pause time.Duration) (late any) {
				old := dialClient(t, proxy.Addr())
				old.sendBatch("SET lock a")
				old.wantReply("OK")
				deliver := proxy.Strand()
				old.sendBatch("SET lock late")
				time.Sleep(pause) // the proxy may or may not read it meanwhile
				row.end(old, proxy)
				next := dialClient(t, proxy.Addr())
				next.sendBatch("SET lock b", "GET lock")
				next.wantReply("OK")
				next.wantReply("b")
				deliver()
				deliver()
				for settled := time.Now().Add(moment); time.Now().Before(settled) && late != "late"; {
					late = getKey(t, server, "lock")
				}
				return late
			}
			// The proxy may be cut before it has read anything: then there is nothing to deliver.
			end := time.Now().Add(patience)
			for pause := time.Duration(0); strand(pause) != "late"; pause = 2*pause + time.Millisecond {
				if time.Now().After(end) {
					t.Fatal("the stranded bytes did not arrive")
				}
			}
		})
	}
}

// Neither side notices the other until the end, and new connections work.
func TestForgottenConnectionsDropAllBytes(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(string) (*faultproxy.Proxy, error){"RESP": faultproxy.New, "opaque": faultproxy.NewOpaque} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, nil)
			proxy, err := start(server.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer proxy.Close()
			old := dialClient(t, proxy.Addr())
			old.sendBatch("SET lock a", "CLIENT ID")
			old.wantReply("OK")
			v, err := old.in.ReadValue()
			if err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprint(v.Decode())
			end := proxy.Forget()
			old.sendBatch("SET lock forgotten")
			old.wantsSilence()
			next := dialClient(t, proxy.Addr())
			next.sendBatch("GET lock", "CLIENT KILL ID "+id)
			next.wantReply("a")
			next.wantReply(1)
			old.wantsSilence() // the server has closed
			end()
			end()
			old.wantsEnd()
			next.sendBatch("GET lock")
			next.wantReply("a")
		})
	}
}
