package console

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// memoryListener is a listener over connections in memory.
type memoryListener struct {
	net.Listener
	conns chan net.Conn
	end   func()
}

func (c memoryListener) Accept() (net.Conn, error) {
	conn, ok := <-c.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (c memoryListener) Close() error { c.end(); return nil }

// bufferRecorder records the size of its write buffer.
type bufferRecorder struct {
	net.Conn
	bytes int
}

func (b *bufferRecorder) SetWriteBuffer(bytes int) error { b.bytes = bytes; return nil }

// limitedListener opens connections to a limitListener in a bubble.
type limitedListener struct {
	t *testing.T
	l *limitListener
	c memoryListener
}

func newLimitedListener(t *testing.T, places int) *limitedListener {
	conns := make(chan net.Conn, 100)
	c := memoryListener{conns: conns, end: sync.OnceFunc(func() { close(conns) })}
	return &limitedListener{t: t, l: newLimitListener(c, places, time.Second), c: c}
}

// connect opens a connection. It returns the client's end and, once the console serves it, the console's end.
func (g *limitedListener) connect() (client net.Conn, served <-chan net.Conn) {
	client, far := net.Pipe()
	g.c.conns <- far
	got := make(chan net.Conn, 1)
	go func() {
		conn, _ := g.l.Accept() // nil: the listener has closed
		got <- conn
	}()
	synctest.Wait()
	return client, got
}

// isClosedByConsole reports whether the console has closed a connection.
func (g *limitedListener) isClosedByConsole(client net.Conn) bool {
	client.SetReadDeadline(time.Now())
	_, err := client.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

func inBubble(t *testing.T, places int, test func(g *limitedListener)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newLimitedListener(t, places)
		test(g)
		g.l.Close()
	})
}

// A new connection waits until another has been idle for patience, and then replaces it.
func TestIdlestConnectionMakesRoom(t *testing.T) {
	inBubble(t, 2, func(g *limitedListener) {
		idle, at := g.connect()
		go io.Copy(io.Discard, <-at)
		synctest.Wait()
		time.Sleep(600 * time.Millisecond)
		younger, at := g.connect()
		go io.Copy(io.Discard, <-at)
		synctest.Wait()
		_, next := g.connect()
		if len(next) > 0 || g.isClosedByConsole(idle) {
			t.Error("a connection was closed before its time limit")
		}
		time.Sleep(401 * time.Millisecond)
		synctest.Wait()
		if conn := <-next; !g.isClosedByConsole(idle) || g.isClosedByConsole(younger) {
			t.Error("another connection than the idlest was closed")
		} else {
			conn.Close()
		}
		younger.Close()
	})
}

// The delay is the console's, not the client's.
func TestUnreadConnectionKeepsItsPlace(t *testing.T) {
	inBubble(t, 1, func(g *limitedListener) {
		honest, at := g.connect()
		conn := <-at
		_, next := g.connect()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(next) > 0 || g.isClosedByConsole(honest) {
			t.Fatal("a connection that was not read yet was closed")
		}
		go io.Copy(io.Discard, conn)
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		if !g.isClosedByConsole(honest) {
			t.Error("a connection that sends nothing was kept")
		}
		(<-next).Close()
	})
}

// A closed connection wakes a waiting one. So does the end of the console.
func TestClosedConnectionFreesPlaceAtOnce(t *testing.T) {
	inBubble(t, 1, func(g *limitedListener) {
		_, at := g.connect()
		conn := <-at
		_, next := g.connect()
		begun := time.Now()
		conn.Close()
		if conn = <-next; !time.Now().Equal(begun) { // virtual time
			t.Errorf("the place was taken after %v", time.Since(begun))
		}
		last, refused := g.connect()
		g.l.Close()
		if <-refused != nil || !g.isClosedByConsole(last) {
			t.Error("a waiting connection was accepted after the console ended")
		}
		conn.Close()
	})
}

// By default the kernel would buffer 4 MB for each connection.
func TestKernelBuffersFewUnreadAnswers(t *testing.T) {
	inBubble(t, 1, func(g *limitedListener) {
		_, far := net.Pipe()
		b := &bufferRecorder{Conn: far}
		g.c.conns <- b
		conn, err := g.l.Accept()
		if err != nil || b.bytes != writeBuffer {
			t.Errorf("write buffer of %d bytes, %v", b.bytes, err)
		}
		conn.Close()
	})
}

// BenchmarkPageBesideHostileClients measures one page load beside 1,000 connections that read nothing and
// reconnect every other second, half of which send requests, and beside 1,000 wrong tokens a second. The first
// page is loaded right after all have connected.
func BenchmarkPageBesideHostileClients(b *testing.B) {
	c := startConsole(b, true, nil)
	over := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-c.refused:
			case <-over:
				return
			}
		}
	})
	var open sync.WaitGroup
	for i := range 1000 {
		open.Add(1)
		connected := sync.OnceFunc(open.Done)
		all.Go(func() {
			for ended := false; !ended; {
				conn, err := net.Dial("tcp", c.addr)
				if connected(); err != nil {
					return
				}
				if i%2 == 0 {
					go io.WriteString(conn, strings.Repeat("GET /console.js HTTP/1.1\r\nHost: localhost\r\n\r\n", 100)) // until it is closed
				}
				select {
				case <-over:
					ended = true
				case <-time.After(2 * time.Second): // reconnect: the console may have closed it
				}
				conn.Close()
			}
		})
	}
	open.Wait()
	for range 8 {
		all.Go(func() {
			body, headers := c.forceRequest()
			wrong := fmt.Sprintf("POST /force HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n%sx\r\n\r\n%s",
				c.addr, len(body), strings.Join(headers, "\r\n"), body)
			for tick := time.NewTicker(8 * time.Millisecond); ; {
				if conn, err := net.Dial("tcp", c.addr); err == nil {
					io.WriteString(conn, wrong)
					conn.Close()
				}
				select {
				case <-tick.C:
				case <-over:
					tick.Stop()
					return
				}
			}
		})
	}
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var first, longest time.Duration
	for b.Loop() {
		begun := time.Now()
		resp, err := browser.Get("http://" + c.addr + "/")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
		took := time.Since(begun)
		longest = max(longest, took)
		if first == 0 {
			first = took
		}
	}
	b.ReportMetric(first.Seconds(), "s/first")
	b.ReportMetric(longest.Seconds(), "s/longest")
	close(over)
	all.Wait()
}
