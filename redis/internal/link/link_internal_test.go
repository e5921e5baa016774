package link

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/socket"
)

// errOver ends a link at the end of a test.
var errOver = errors.New("the test is over")

// node is the only node of an engine. It encodes a request as a command with the kind and the key.
type node struct {
	*engine.Engine
	l              *Link
	failedReleases []*engine.Request // releases that have failed
	mu             sync.Mutex        // guards owed
}

func newNode(c net.Conn) *node {
	n := &node{}
	n.Engine = engine.New(engine.Config{
		Nodes: []engine.Node{n}, Keys: func(name string) engine.Lock { return engine.Lock{Name: name, Key: name} },
	})
	n.l = New(Config{
		Conn: resp.NewConn(c), Now: n.Now, Sole: true,
		Encode: func(dst []byte, r *engine.Request) []byte {
			return resp.AppendCommand(dst, r.Kind.String(), r.Lock.Key)
		},
		Loads:        func() [][]string { return [][]string{{"SCRIPT", "LOAD"}} },
		SessionError: func(resp.Value) error { return nil },
	}, n)
	return n
}

func (n *node) Name() string           { return "far" }
func (n *node) Send(r *engine.Request) { n.l.Send(Entry{Req: r, At: r.Sent}) }
func (n *node) Subscribe()             {}
func (n *node) Push(resp.Value)        {}
func (n *node) Broken(error)           {}
func (n *node) CanBeSpared() bool      { return false }

func (n *node) Answer(e Entry, v resp.Value) {
	switch number, ok := v.Int(); {
	case !ok:
		e.Req.Fail(engine.Failure{Err: v.Err()})
	case e.Frees():
		e.Req.Freed()
	default:
		e.Req.Granted(number)
	}
}

func (n *node) Fail(e Entry, f engine.Failure) {
	if e.Call != nil {
		e.Call.End(f.Err)
		return
	}
	if e.Frees() {
		n.mu.Lock()
		n.failedReleases = append(n.failedReleases, e.Req)
		n.mu.Unlock()
	}
	e.Req.Fail(f)
}

// start starts to read and write.
func (n *node) start() { n.l.Start(func(fn func()) { go fn() }) }

// waitUntilEnded ends the link and waits for it.
func (n *node) waitUntilEnded(far net.Conn) {
	n.l.HangUp(errOver)
	far.Close()
	<-n.l.Gone()
}

// runLinked calls fn with a node with a link; far is the other end.
func runLinked(t *testing.T, fn func(t *testing.T, n *node, far net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		n := newNode(socket.New(near))
		n.start()
		fn(t, n, far)
		n.waitUntilEnded(far)
	})
}

// tryAcquire asks for a lock, and returns how long that took.
func (n *node) tryAcquire(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	_, err := n.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true})
	return time.Since(start), err
}

func TestAnswersAreDeliveredOneByOne(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, time.Millisecond, 60 * time.Millisecond} {
		runLinked(t, func(t *testing.T, n *node, far net.Conn) {
			go func() {
				resp.NewReader(far).ReadCommand()
				time.Sleep(after) // virtual time
				far.Write([]byte(":1000\r\n"))
			}()
			if took, err := n.tryAcquire(t.Context()); err != nil || took != after {
				t.Errorf("Acquire took %v, %v; the answer came after %v", took, err, after)
			}
		})
	}
}

// The last caller writes although many requests are pending and no goroutine writes.
func TestLastCallerWritesBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		n := newNode(socket.New(near))
		n.l.pending.push(Entry{Call: NewCall(nil, nil), size: maxDirectBytes + 1})
		go n.l.readLoop()
		arrived := 0
		go func() {
			for in := resp.NewReader(far); ; arrived++ {
				if _, _, err := in.ReadCommand(); err != nil {
					return
				}
			}
		}()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range maxGroup {
			if synctest.Wait(); arrived > 0 {
				t.Errorf("%d requests were written while %d waited", arrived, i)
			}
			go n.tryAcquire(ctx)
		}
		if synctest.Wait(); arrived != maxGroup {
			t.Errorf("%d requests were written, want %d", arrived, maxGroup)
		}
		cancel()
		n.waitUntilEnded(far)
	})
}

// If the other end is writing an answer while this end writes, neither end reads.
func TestPipeReaderDoesNotWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		n := newNode(near)
		n.start()
		go func() {
			in := resp.NewReader(far)
			in.ReadCommand()
			in.ReadCommand()
			far.Write([]byte("-held\r\n")) // the claim then sends a release
			far.Write([]byte("-held\r\n"))
			for {
				if _, _, err := in.ReadCommand(); err != nil {
					return
				}
				far.Write([]byte(":1\r\n"))
			}
		}()
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if took, _ := n.tryAcquire(t.Context()); took > 0 {
					t.Errorf("answered after %v with no time left", took)
				}
			})
		}
		both.Wait()
		n.waitUntilEnded(far)
	})
}

// No caller may wait for a node that does not read.
func TestLongNamesFitIntoOneWrite(t *testing.T) {
	t.Parallel()
	runLinked(t, func(t *testing.T, n *node, _ net.Conn) {
		n.l.mu.Lock()
		n.l.writing = true // until all requests wait
		n.l.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range maxBatch {
			key := strings.Repeat("x", 500) + strconv.Itoa(i)
			go n.Acquire(ctx, driver.Request{Key: key, TTL: 10 * time.Second})
		}
		synctest.Wait()
		n.l.mu.Lock()
		late := n.l.loadBatch(n.Now())
		if most := maxBatchBytes + 2048; len(n.l.out) > most || len(late) > 0 || n.l.pending.len()+len(n.l.queue) != maxBatch {
			t.Errorf("%d bytes, %d late, %d written, %d waiting; want at most %d bytes and all of %d",
				len(n.l.out), len(late), n.l.pending.len(), len(n.l.queue), most, maxBatch)
		}
		n.l.mu.Unlock()
		cancel()
	})
}

// Other requests are not written after their deadline, because their callers have given up.
func TestLateReleaseIsStillSent(t *testing.T) {
	t.Parallel()
	runLinked(t, func(t *testing.T, n *node, _ net.Conn) {
		n.l.mu.Lock()
		defer n.l.mu.Unlock()
		kinds := []quorum.AskKind{quorum.AskAcquire, quorum.AskRelease, quorum.AskRenew, quorum.AskGiveBack}
		for _, k := range kinds {
			n.l.queue = append(n.l.queue, Entry{Req: &engine.Request{Ask: quorum.Ask{Kind: k}, Lock: &engine.Lock{Key: "k"}, Deadline: n.Now() - 1}})
		}
		var late []quorum.AskKind
		for _, e := range n.l.loadBatch(n.Now()) {
			late = append(late, e.Req.Kind)
		}
		if want := []quorum.AskKind{quorum.AskAcquire, quorum.AskRenew}; !slices.Equal(late, want) || n.l.pending.len() != len(kinds)-len(want) {
			t.Errorf("%v were too late and %d were written, want %v and 2", late, n.l.pending.len(), want)
		}
		n.l.pending = entryQueue{}
	})
}

func TestContextEndIsNoticedWhileReading(t *testing.T) {
	t.Parallel()
	runLinked(t, func(t *testing.T, n *node, far net.Conn) {
		const limit = 3 * time.Millisecond
		go resp.NewReader(far).ReadCommand() // without an answer
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		if took, err := n.tryAcquire(ctx); !errors.Is(err, context.DeadlineExceeded) || took != limit {
			t.Errorf("Acquire ended after %v, %v; its context after %v", took, err, limit)
		}
	})
}

func TestUnreadConnectionDoesNotBlockCallers(t *testing.T) {
	t.Parallel()
	runLinked(t, func(t *testing.T, n *node, _ net.Conn) {
		start := time.Now()
		n.l.SendCommand("SET", "large", string(make([]byte, 2*socket.Room)))
		n.l.SendCommand("PING")
		if took := time.Since(start); took != 0 {
			t.Errorf("SendCommand blocked for %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 50 { // more than fits in any buffer
			if took, err := n.tryAcquire(ctx); err == nil || took > time.Second {
				t.Fatalf("Acquire took %v, %v", took, err)
			}
		}
	})
}

// A single node cannot be spared: a caller that may wait is queued behind the unanswered requests, and a
// caller that does not wait fails at once.
func TestHungNodeIsSkippedOnlyWhenSpare(t *testing.T) {
	t.Parallel()
	runLinked(t, func(t *testing.T, n *node, far net.Conn) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		read := make(chan string, 10)
		go func() {
			in := resp.NewReader(far)
			for {
				args, _, err := in.ReadCommand()
				if err != nil {
					return
				}
				read <- string(args[0])
			}
		}()
		n.l.SendCommand("PING")
		<-read
		time.Sleep(2 * pace.OverdueTime()) // virtual time
		if took, err := n.tryAcquire(ctx); !errors.Is(err, ErrStalled) || took != 0 {
			t.Errorf("a try took %v, %v", took, err)
		}
		go n.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second})
		synctest.Wait()
		if len(read) == 0 || <-read != "acquire" { // not the request that follows its failure
			t.Error("a waiting request was not queued behind the silent node")
		}
	})
}

// A server that closes its side ends the link, even if TLS would let the other side go
// on: no request would be answered.
func TestServerClosingItsSideEndsLink(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil) // for its certificate
	defer server.Close()
	for name, dress := range map[string]func(near, far net.Conn) (net.Conn, net.Conn){
		"TCP": func(near, far net.Conn) (net.Conn, net.Conn) { return near, far },
		"TLS": func(near, far net.Conn) (net.Conn, net.Conn) {
			return tls.Client(near, &tls.Config{InsecureSkipVerify: true}), tls.Server(far, server.TLS)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := dress(tcpPair(t))
			n := newNode(near)
			n.start()
			ended := make(chan error, 1)
			go func() {
				_, err := n.tryAcquire(t.Context())
				ended <- err
			}()
			if _, _, err := resp.NewReader(far).ReadCommand(); err != nil {
				t.Fatal(err)
			}
			if err := far.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; !errors.Is(err, io.EOF) {
				t.Errorf("TryAcquire = %v, want EOF", err)
			}
			<-n.l.Gone()
		})
	}
}

func TestBlockedWriteDoesNotDelayAnswers(t *testing.T) {
	t.Parallel()
	runLinked(t, func(t *testing.T, n *node, far net.Conn) {
		ping := [][]string{{"PING"}}
		calls := [3]*Call{NewCall(ping, func(*Call) { n.l.SendCommand("SET", "large", string(make([]byte, 2*socket.Room))) }), NewCall(ping, nil), NewCall(ping, nil)}
		in := resp.NewReader(far)
		for _, c := range calls {
			n.l.Call(c)
			if _, _, err := in.ReadCommand(); err != nil {
				t.Fatal(err)
			}
		}
		far.Write([]byte("+PONG\r\n+PONG\r\n"))
		synctest.Wait() // the node does not read the request after the first answer
		go far.Write([]byte("+PONG\r\n"))
		select {
		case <-calls[2].done:
		case <-time.After(time.Second):
			t.Error("an answer was not read while a write waits for the node")
		}
	})
}

// A node that answers its requests is not silent, however long the last one takes.
func TestBusyNodeIsNotSilent(t *testing.T) {
	t.Parallel()
	runLinked(t, func(t *testing.T, n *node, far net.Conn) {
		const requests, each = 30, 200 * time.Millisecond // together longer than pace.SilenceTime
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		for range requests {
			asking.Go(func() { n.l.Do(ctx, []string{"PING"}) })
		}
		in := resp.NewReader(far)
		for range requests / 2 {
			if _, _, err := in.ReadCommand(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(each)
			if silent := n.l.SilentFor(n.Now()); silent > int64(each) {
				t.Errorf("the node counts as silent for %v", time.Duration(silent))
			}
			far.Write([]byte("+PONG\r\n"))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		if silent := n.l.SilentFor(n.Now()); silent != int64(time.Second) {
			t.Errorf("after a second without an answer the node counts as silent for %v", time.Duration(silent))
		}
		cancel()
		asking.Wait()
	})
}

// tcpPair returns the two ends of a connection.
func tcpPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// queueAcquire makes an acquire wait in the queue of a link that writes nothing. It returns the cancel function of the caller, and a
// channel that is closed when the acquire has returned.
func (n *node) queueAcquire(t *testing.T) (leave context.CancelFunc, ended chan struct{}) {
	t.Helper()
	n.l.mu.Lock()
	n.l.paused = true
	n.l.mu.Unlock()
	ctx, leave := context.WithCancel(t.Context())
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		n.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second})
	}()
	synctest.Wait()
	if len(n.l.queue) != 1 {
		t.Fatalf("%d requests are queued, want the acquire", len(n.l.queue))
	}
	return leave, ended
}

// An acquire is queued when the connection breaks, and then its caller leaves. If the acquire were written
// after its release, which goes over the next connection, it would leave a lock without a holder for a TTL.
func TestReconnectKeepsRequestBeforeRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		n := newNode(socket.New(near))
		n.start()
		wrote := make(chan error, 1)
		go func() {
			_, err := io.ReadAll(far)
			wrote <- err
		}()
		leave, ended := n.queueAcquire(t)
		n.waitUntilEnded(far)
		leave()
		<-ended
		if <-wrote; len(n.l.queue) > 0 {
			t.Error("the acquire can still be written")
		}
	})
}

// An acquire is sent again, because the server did not have its script, and meanwhile its caller leaves. If it
// were sent after its release, it would leave a lock without a holder.
func TestResentRequestGoesBeforeRelease(t *testing.T) {
	t.Parallel()
	runLinked(t, func(t *testing.T, n *node, far net.Conn) {
		leave, ended := n.queueAcquire(t)
		n.l.mu.Lock()
		n.l.resend, n.l.queue = n.l.queue, nil
		n.l.mu.Unlock()
		leave()
		synctest.Wait()
		var sent []string
		go func() {
			in := resp.NewReader(far)
			for {
				args, _, err := in.ReadCommand()
				if err != nil {
					return
				}
				sent = append(sent, string(args[0]))
				far.Write([]byte(":1\r\n"))
			}
		}()
		n.l.resendAll()
		<-ended
		synctest.Wait()
		if want := []string{"SCRIPT", "acquire", "release"}; !slices.Equal(sent, want) {
			t.Errorf("sent %v, want %v", sent, want)
		}
	})
}

// panickingSink is a Sink that panics on one kind of message.
type panickingSink struct {
	*node
	broke chan error
}

func (p panickingSink) Push(resp.Value)  { panic("unforeseen") }
func (p panickingSink) Broken(err error) { p.broke <- err }

// The panic ends the link, and the pending requests fail.
func TestPanicInHandlerEndsOnlyItsLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		n := newNode(socket.New(near))
		sink := panickingSink{n, make(chan error, 1)}
		n.l.sink = sink
		n.start()
		tried := make(chan error, 1)
		go func() {
			_, err := n.tryAcquire(t.Context())
			tried <- err
		}()
		resp.NewReader(far).ReadCommand()
		go far.Write([]byte(">1\r\n+odd\r\n"))
		<-n.l.Gone()
		if err := <-sink.broke; !strings.Contains(err.Error(), "unforeseen (link_internal_test.go:") {
			t.Errorf("the connection ended with %v, want the panic and its place", err)
		}
		if err := <-tried; err == nil {
			t.Error("a pending request was answered")
		}
		far.Close()
	})
}
