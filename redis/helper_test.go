package redis_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redis"
)

// helperVariable makes the test binary wait for a lock instead of running tests. Its value is the addresses of
// the nodes.
const helperVariable = "HOLDFAST_TEST_WAITER"

// runHelper waits for the lock "k", reports its progress on standard output, and keeps the lock until its
// standard input ends.
func runHelper(nodes string) int {
	var list []redis.Node
	for addr := range strings.SplitSeq(nodes, ",") {
		list = append(list, redis.Node{Addr: addr})
	}
	d, err := redis.New(context.Background(), list, &redis.Options{NoQuarantine: true, Timeout: busyTimeout()})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	c, err := holdfast.New(d, nil)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	l, err := c.Acquire(context.Background(), "k", nil)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("held", l.Token())
	bufio.NewReader(os.Stdin).ReadByte()
	if err := l.Release(context.Background()); err != nil {
		fmt.Println("error", err)
		return 1
	}
	c.Close()
	return 0
}

// waiter is a running helper process.
type waiter struct {
	*exec.Cmd
	said chan string
	quit func()
}

func (r *rig) startWaiter() *waiter {
	r.Helper()
	var addrs []string
	for _, s := range r.servers {
		addrs = append(addrs, s.Addr())
	}
	w := &waiter{Cmd: exec.Command(os.Args[0]), said: make(chan string, 10)}
	w.Env = append(os.Environ(), helperVariable+"="+strings.Join(addrs, ","))
	w.Stderr = os.Stderr
	in, err := w.StdinPipe()
	r.noError(err)
	out, err := w.StdoutPipe()
	r.noError(err)
	r.noError(w.Start())
	w.quit = func() { in.Close() }
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.said <- lines.Text()
		}
	}()
	r.Cleanup(func() {
		w.Process.Kill()
		<-done
		w.Wait()
	})
	return w
}

func (w *waiter) awaitHeld(t testing.TB, r *rig) {
	t.Helper()
	select {
	case line := <-w.said:
		if !strings.HasPrefix(line, "held ") {
			t.Errorf("the waiter printed %q, want held", line)
		}
	case <-r.boundedContext().Done():
		t.Error("the waiter did not acquire the lock")
	}
}

// connections dials, and keeps track of its connections. It is safe for concurrent use.
type connections struct {
	mu   sync.Mutex // guards list
	list []net.Conn
}

func (c *connections) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		c.note(conn)
	}
	return conn, err
}

func (c *connections) note(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, conn)
}

// count returns the number of connections so far, including closed ones.
func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.list)
}

func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.list {
		conn.Close()
	}
}
