package redis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redis"
)

// startSockets starts n servers that also listen on unix sockets. It returns the sockets by names that no
// resolver knows.
func startSockets(t *testing.T, n int) (*rig, []redis.Node, map[string]string) {
	t.Helper()
	t.Parallel()
	dir, err := os.MkdirTemp("", "sockets") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r, paths := &rig{T: t}, make(map[string]string)
	var nodes []redis.Node
	for i := range n {
		name, path := fmt.Sprintf("node-%d.invalid:1", i), filepath.Join(dir, fmt.Sprint(i))
		r.servers = append(r.servers, redistest.Start(t, &redisproc.Options{Args: []string{"--unixsocket", path}}))
		nodes, paths[name] = append(nodes, redis.Node{Addr: name}), path
	}
	return r, nodes, paths
}

func dialUnix(paths map[string]string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network != "tcp" || paths[addr] == "" {
			return nil, fmt.Errorf("asked for %s %s", network, addr)
		}
		return new(net.Dialer).DialContext(ctx, "unix", paths[addr])
	}
}

func TestDialOpensEveryConnection(t *testing.T) {
	r, nodes, paths := startSockets(t, 3)
	opts := &redis.Options{Dial: dialUnix(paths)}
	first, second := r.clientOf(r.openDriver(nodes, opts), nil), r.clientOf(r.openDriver(nodes, opts), nil)
	l := acquire(t, first, "k", nil)
	woken := make(chan *holdfast.Lease)
	go func() {
		l, err := second.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Error(err)
		}
		woken <- l
	}()
	r.release(l)
	if l := <-woken; l != nil {
		r.release(l)
	}
}

// Each answer comes late, as on an overloaded machine.
func TestEachAnswerRestartsLoginTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 2 * time.Second
		slow := &hostileServer{turn: 1 << 30, late: 3 * limit / 10} // there are more than four answers
		node := []redis.Node{{Addr: "server:6379"}}
		begun := time.Now()
		d := newDriver(t, node, &redis.Options{Dial: slow.dial, Timeout: limit})
		d.Close()
		if took := time.Since(begun); took < limit {
			t.Errorf("the login took %v, want more than the timeout of one answer", took)
		}
		mute := &hostileServer{turn: 1 << 30, mute: true}
		_, err := redis.New(t.Context(), node, &redis.Options{Dial: mute.dial, Timeout: limit})
		checkMentions(t, err, "no answer to", "before the timeout")
	})
}

// resettingConn is a connection that its other end resets, as proxies do, and TLS servers do for clients
// without TLS.
type resettingConn struct{ net.Conn }

func (resettingConn) Read([]byte) (int, error) { return 0, syscall.ECONNRESET }

func TestTLSHintComesOnlyBeforeFirstReply(t *testing.T) {
	r := startRig(t, 1)
	var cut atomic.Bool
	var conns connections
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := conns.dial(ctx, network, addr)
		if err == nil && cut.Load() {
			conn = resettingConn{conn}
		}
		return conn, err
	}
	opts := &redis.Options{Dial: dial}
	c := r.clientOf(r.openDriver(r.nodes(), opts), nil)
	cut.Store(true)
	conns.closeAll()
	r.eventually("the node reports the reset", func() bool {
		n := c.Nodes()[0]
		return n.State == holdfast.NodeDown && errors.Is(n.Err, syscall.ECONNRESET)
	})
	if err := c.Nodes()[0].Err; strings.Contains(err.Error(), "TLS") {
		t.Errorf("the error suggests TLS although the server answered in plain text: %v", err)
	}
	r.checkRejected(r.nodes(), opts, driver.ErrUnavailable, "if it speaks TLS on this port")
}

func TestFailedDialMakesNodeUnreachable(t *testing.T) {
	r, nodes, paths := startSockets(t, 3)
	boom := errors.New("the tunnel is down")
	var mu sync.Mutex
	down := map[string]bool{nodes[0].Addr: true}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if down[addr] {
			return nil, boom
		}
		return dialUnix(paths)(ctx, network, addr)
	}
	told := make(chan driver.NodeEvent, 100)
	d := r.openDriver(nodes, &redis.Options{Dial: dial})
	c := r.clientOf(d, &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) { told <- e }}})
	if first := c.Nodes()[0]; first.State != holdfast.NodeDown || !errors.Is(first.Err, boom) {
		t.Errorf("the node whose dial fails is %+v", first)
	}
	l := acquire(t, c, "k", nil)
	r.release(l)
	mu.Lock()
	clear(down)
	mu.Unlock()
	r.awaitState(told, nodes[0].Addr, driver.NodeUp)

	for name, fails := range map[string]func(context.Context, string, string) (net.Conn, error){
		boom.Error(): func(context.Context, string, string) (net.Conn, error) { return nil, boom },
		"neither":    func(context.Context, string, string) (net.Conn, error) { return nil, nil },
	} {
		r.checkRejected(nodes, &redis.Options{Dial: fails}, driver.ErrUnavailable, nodes[0].Addr, nodes[2].Addr, name)
	}
}

// An address may be the path of a socket, with and without Dial.
func TestNodeMayBeUnixSocket(t *testing.T) {
	r, nodes, paths := startSockets(t, 2)
	socket, other := paths[nodes[0].Addr], paths[nodes[1].Addr]
	dialled := make(chan string, 10)
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialled <- network + " " + addr
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	at := []redis.Node{{Addr: socket}}
	first, second := r.clientOf(r.openDriver(at, nil), nil), r.clientOf(r.openDriver(at, &redis.Options{Dial: dial}), nil)
	if got, want := <-dialled, "unix "+socket; got != want {
		t.Errorf("Dial received %q, want %q", got, want)
	}
	l := r.acquire(first, "k", nil)
	if _, err := second.TryAcquire(t.Context(), "k", nil); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("TryAcquire of a held lock = %v", err)
	}
	r.release(l)

	d := openURL(t, "unix://"+socket+"?timeout=5", nil)
	r.release(r.acquire(r.clientOf(d, nil), "k", nil))

	r.checkRejected([]redis.Node{{Addr: other}, {Addr: r.servers[1].Addr()}}, nil, driver.ErrConfig, "same server", "once")
	r.checkRejected(at, &redis.Options{TLS: &tls.Config{}}, driver.ErrInvalid, socket, "give servername", "no TLS")
	r.checkRejected([]redis.Node{{Addr: socket + "x"}}, nil, driver.ErrUnavailable, socket+"x", "no such file")
	r.checkRejected([]redis.Node{{Addr: "/a\nb"}}, nil, driver.ErrInvalid, "node 1 of 1", "path of a socket")
}

func TestServersOfOwnDialAreChecked(t *testing.T) {
	r, nodes, paths := startSockets(t, 2)
	paths[nodes[1].Addr] = paths[nodes[0].Addr]
	r.checkRejected(nodes, &redis.Options{Dial: dialUnix(paths)}, driver.ErrConfig, "same server", "once")
}

func TestTLSGoesOverDial(t *testing.T) {
	t.Parallel()
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	client, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	server := redistest.Start(t, &redisproc.Options{TLS: cert})
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Addr())
	}
	for name, works := range map[string]bool{"localhost:1": true, "elsewhere.invalid:1": false} { // the certificate is for localhost
		opts := &redis.Options{Timeout: busyTimeout(), Dial: dial, TLS: client}
		d, err := redis.New(t.Context(), []redis.Node{{Addr: name}}, opts)
		if (err == nil) != works {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			d.Close()
		}
	}
}

// Dial or Credentials hangs and ignores its context, for the first or for the second connection.
func TestHangingDialDoesNotBlockNewOrClose(t *testing.T) {
	for name, deafFrom := range map[string]struct{ dial, credentials int }{
		"Dial": {1, 9}, "the second Dial": {2, 9}, "Credentials": {9, 1}, "the second Credentials": {9, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, hangs := &hostileServer{turn: 1 << 30}, make(chan struct{})
				var conns connections
				var dials, logins atomic.Int32
				opts := &redis.Options{
					Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
						if int(dials.Add(1)) >= deafFrom.dial {
							<-hangs
							return nil, errors.New("too late")
						}
						conn, err := server.dial(ctx, network, addr)
						conns.note(conn)
						return conn, err
					},
					Credentials: func(context.Context, string) (user, password string, err error) {
						if int(logins.Add(1)) >= deafFrom.credentials {
							<-hangs
						}
						return "", "", nil
					},
				}
				ended := make(chan error, 1)
				go func() {
					d, err := redis.New(t.Context(), []redis.Node{{Addr: "server:6379"}}, opts)
					if err == nil {
						conns.closeAll()
						time.Sleep(10 * time.Second)
						d.Close()
					}
					ended <- err
				}()
				time.Sleep(time.Minute)
				select {
				case err := <-ended:
					if atOnce := min(deafFrom.dial, deafFrom.credentials) == 1; atOnce != errors.Is(err, driver.ErrUnavailable) {
						t.Errorf("New() = %v", err)
					}
				default:
					t.Error("New or Close still waits for the dial after a minute")
				}
				close(hangs)
			})
		})
	}
}
