package redis_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

func TestServerThatInterleavesScriptsIsRejected(t *testing.T) {
	t.Parallel()
	for answer, words := range map[string][]string{
		"$11\r\nINTERLEAVED\r\n":                           {"not atomic", "two clients", "give Redis or Valkey"},
		"-ERR value is not an integer or out of range\r\n": {"lost what a script wrote", "give Redis or Valkey"}, // GET finds nothing
	} {
		fake := &hostileServer{step: []byte(answer), turn: 1 << 20}
		d, err := redis.New(t.Context(), []redis.Node{{Addr: "server:6379"}}, &redis.Options{Dial: fake.dial, Timeout: busyTimeout()})
		if err == nil {
			d.Close()
		}
		if checkMentions(t, err, words...); !errors.Is(err, driver.ErrConfig) {
			t.Errorf("%v, want an ErrConfig", err)
		}
	}
}

// The check leaves no keys behind.
func TestScriptsAreCheckedOnceForEachRun(t *testing.T) {
	r := startRig(t, 1)
	r.do(0, "CONFIG", "SET", "slowlog-log-slower-than", "0")
	r.do(0, "CONFIG", "SET", "slowlog-max-len", "100000")
	tries := func() (n int) {
		for _, entry := range r.do(0, "SLOWLOG", "GET", "-1").([]any) {
			if words := entry.([]any)[3].([]any); len(words) > 1 && words[0] == "EVALSHA" && words[1] == wire.Step.SHA {
				n++
			}
		}
		return n
	}
	var conns connections
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{Dial: conns.dial}), nil)
	first := tries()
	if first == 0 {
		t.Error("no attempts on the first connection, want some")
	}
	before := conns.count()
	conns.closeAll()
	r.eventually("the client is connected again", func() bool {
		l, err := c.TryAcquire(r.Context(), "k", nil)
		if err == nil {
			r.release(l)
		}
		return err == nil && conns.count() > before
	})
	if n := tries(); n != first {
		t.Errorf("%d more attempts after a second connection to the same run, want 0", n-first)
	}
	for _, key := range r.keys() {
		if strings.Contains(key, "probe") {
			t.Errorf("%s was not deleted", key)
		}
	}
}

// lateDel is a network that cuts the first connection over which a client deletes the keys of a check. The server
// gets that DEL late: after the script of the next check, before its answer.
type lateDel struct {
	t *testing.T

	mu      sync.Mutex   // guards the fields below
	addr    string       // of the server; empty: no connection is cut yet
	deliver func()       // sends the DEL; nil: there is none
	next    *lateDelConn // connection of the next check; nil: the DEL is still held
	closed  bool         // next was closed
}

func (w *lateDel) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &lateDelConn{Conn: conn, w: w, addr: addr}, err
}

type lateDelConn struct {
	net.Conn
	w    *lateDel
	addr string
	cut  atomic.Bool
}

func (c *lateDelConn) Write(b []byte) (int, error) {
	if i := bytes.Index(b, []byte("$3\r\nDEL\r\n")); i >= 0 && bytes.Contains(b, []byte("probe:")) {
		late := append([]byte("*3\r\n"), b[i:]...)
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		if c.w.addr == "" {
			c.w.addr = c.addr
			c.cut.Store(true)
			c.Conn.SetDeadline(time.Unix(1, 0)) // ends a read
			c.w.deliver = func() {
				c.Conn.SetDeadline(time.Time{})
				if _, err := c.Conn.Write(late); err != nil {
					c.w.t.Error(err)
				}
				io.CopyN(io.Discard, c.Conn, 4) // its answer
			}
		}
		if c.cut.Load() {
			return len(b), nil
		}
	}
	return c.Conn.Write(b)
}

func (c *lateDelConn) Read(b []byte) (int, error) {
	if c.cut.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(b)
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.addr == c.w.addr && c.w.deliver != nil && bytes.Contains(b[:n], []byte("not an integer")) {
		c.w.deliver()
		c.w.deliver, c.w.next = nil, c
	}
	return n, err
}

// Close leaves the connection open if it is cut.
func (c *lateDelConn) Close() error {
	if c.cut.Load() {
		return nil
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.closed = c.w.closed || c == c.w.next
	return c.Conn.Close()
}

func TestLateCheckSpoilsNoOther(t *testing.T) {
	r := startRig(t, 3)
	w := &lateDel{t: t}
	d := r.openDriver(r.nodes(), &redis.Options{Dial: w.dial})
	defer d.Close()
	r.eventually("the DEL came late, and all nodes vote", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.next != nil && !slices.ContainsFunc(d.Nodes(), func(e driver.NodeEvent) bool { return e.State != driver.NodeUp })
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		t.Error("the late end of a check has spoiled another, whose connection was closed")
	}
}
