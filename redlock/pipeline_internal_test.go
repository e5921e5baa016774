package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
)

// room is how many bytes a socket takes before its other end reads.
const room = 4096

// socket is a net.Pipe with room for what was written and not read yet.
type socket struct {
	net.Conn
	bytes chan byte
	done  chan struct{}
}

func newSocket(inner net.Conn) *socket {
	s := &socket{Conn: inner, bytes: make(chan byte, room), done: make(chan struct{})}
	go func() {
		for {
			select {
			case b := <-s.bytes:
				if _, err := inner.Write([]byte{b}); err != nil {
					return
				}
			case <-s.done:
				return
			}
		}
	}()
	return s
}

func (s *socket) Write(b []byte) (int, error) {
	for i, c := range b {
		select {
		case s.bytes <- c:
		case <-s.done:
			return i, net.ErrClosed
		}
	}
	return len(b), nil
}

func (s *socket) Close() error {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	return s.Conn.Close()
}

// linked has fn use a driver with a link, at whose other end is far.
func linked(t *testing.T, fn func(t *testing.T, d *Driver, l *link, far net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := prepare([]Node{{Addr: "far:6379"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		s := newSocket(near)
		l := newLink(d.nodes[0], resp.NewConn(s), report{})
		go l.reads()
		go l.writes()
		d.nodes[0].raise(l)
		fn(t, d, l, far)
		l.hangUp(errHungUp)
		far.Close()
		<-l.gone
	})
}

// try asks for a lock, and says how long that took.
func try(ctx context.Context, d *Driver) (time.Duration, error) {
	start := time.Now()
	_, err := d.engine.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true})
	return time.Since(start), err
}

func TestAnAnswerIsDeliveredAsItComes(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, time.Millisecond, 60 * time.Millisecond} {
		linked(t, func(t *testing.T, d *Driver, _ *link, far net.Conn) {
			go func() {
				resp.NewReader(far).ReadCommand()
				time.Sleep(after) // of virtual time
				far.Write([]byte(":1000\r\n"))
			}()
			if took, err := try(t.Context(), d); err != nil || took != after {
				t.Errorf("Acquire took %v, %v; the answer came after %v", took, err, after)
			}
		})
	}
}

// TestTheLastOfAGroupWritesIt, though much is under way and nobody else writes.
func TestTheLastOfAGroupWritesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := prepare([]Node{{Addr: "far:6379"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		l := newLink(d.nodes[0], resp.NewConn(newSocket(near)), report{})
		l.flight.push(entry{call: newCall(nil), size: directMost + 1})
		go l.reads()
		d.nodes[0].raise(l)
		arrived := 0
		go func() {
			for in := resp.NewReader(far); ; arrived++ {
				if _, _, err := in.ReadCommand(); err != nil {
					return
				}
			}
		}()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range groupMost {
			if synctest.Wait(); arrived > 0 {
				t.Errorf("%d requests are written when %d wait", arrived, i)
			}
			go try(ctx, d)
		}
		if synctest.Wait(); arrived != groupMost {
			t.Errorf("%d requests are written, want %d", arrived, groupMost)
		}
		cancel()
		l.hangUp(errHungUp)
		far.Close()
		<-l.gone
	})
}

// TestABatchOfLongNamesFitsIntoASocket, so that no caller waits for a node that does not read.
func TestABatchOfLongNamesFitsIntoASocket(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, d *Driver, l *link, _ net.Conn) {
		l.mu.Lock()
		l.writing = true // until all wait
		l.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range batchMost {
			key := strings.Repeat("x", 500) + strconv.Itoa(i)
			go d.engine.Acquire(ctx, driver.Request{Key: key, TTL: 10 * time.Second})
		}
		synctest.Wait()
		l.mu.Lock()
		late := l.load(l.n.engine.Now())
		if most := groupRoom + 2048; len(l.out) > most || len(late) > 0 || l.flight.len()+len(l.queue) != batchMost {
			t.Errorf("%d bytes, %d late, %d written, %d wait; want at most %d bytes and all of %d", len(l.out), len(late), l.flight.len(), len(l.queue), most, batchMost)
		}
		l.mu.Unlock()
		cancel()
	})
}

func TestTheEndOfAContextIsNoticedWhileReading(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, d *Driver, _ *link, far net.Conn) {
		const limit = 3 * time.Millisecond
		go resp.NewReader(far).ReadCommand() // and no answer
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		if took, err := try(ctx, d); !errors.Is(err, context.DeadlineExceeded) || took != limit {
			t.Errorf("Acquire ended after %v, %v; its context after %v", took, err, limit)
		}
	})
}

func TestANodeThatDoesNotReadBlocksNobody(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, d *Driver, l *link, _ net.Conn) {
		start := time.Now()
		l.tell("SET", "large", string(make([]byte, 2*room)))
		l.tell("PING")
		if took := time.Since(start); took != 0 {
			t.Errorf("tell blocked for %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 50 { // more than fits in any case
			if took, err := try(ctx, d); err == nil || took > time.Second {
				t.Fatalf("Acquire took %v, %v", took, err)
			}
		}
	})
}

// One node alone cannot be spared: who may wait is queued behind what it has not
// answered, and who does not wait hears at once.
func TestAHungNodeIsSkippedOnlyWhereItCanBeSpared(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, d *Driver, l *link, far net.Conn) {
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
		l.tell("PING")
		<-read
		time.Sleep(2 * time.Duration(stallAfter)) // of virtual time
		if took, err := try(ctx, d); !errors.Is(err, errStalled) || took != 0 {
			t.Errorf("a try took %v, %v", took, err)
		}
		go d.engine.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second})
		synctest.Wait()
		if len(read) == 0 || <-read != "EVALSHA" { // and not what comes once it has failed
			t.Error("a request that waits was not queued behind the node")
		}
	})
}

func TestOnlyWhatSomebodyMustMendIsFatal(t *testing.T) {
	t.Parallel()
	const hidden = "ERR Error running script (call to f_0): @user_script:2: @user_script: 2: -"
	for text, want := range map[string]struct{ fatal, outdated bool }{
		"ERR unknown command 'EVALSHA', with args":                                {true, false},
		"ERR ACL failure in script: No permissions to access a key":               {true, false},
		"ERR Error running script (call to f_0): @user_script:2: attempt to call": {true, false},
		"ERR The user executing the script can't run this command or subcommand":  {true, false},
		hidden + "NOPERM this user has no permissions":                            {true, false},
		"NOPERM this user has no permissions to run the 'evalsha' command":        {true, false},
		"NOAUTH Authentication required.":                                         {true, false},
		"WRONGPASS invalid username-password pair or user is disabled.":           {true, false},
		"DENIED Redis is running in protected mode":                               {true, false},
		"WRONGTYPE Operation against a key holding the wrong kind of value":       {true, false},
		"LOADING Redis is loading the dataset in memory":                          {},
		"BUSY Redis is busy running a script.":                                    {},
		"TRYAGAIN Multiple keys request during rehashing of slot":                 {},
		"NOSCRIPT No matching script.":                                            {},
		"CLOCK the node's clock is 3600 s ahead":                                  {},
		"CLUSTERDOWN The cluster is down":                                         {},
		"OOM command not allowed when used memory > 'maxmemory'.":                 {},
		hidden + "OOM command not allowed when used memory > 'maxmemory'.":        {},
		"MISCONF Redis is configured to save RDB snapshots":                       {},
		"NOREPLICAS Not enough good replicas to write.":                           {},
		"READONLY You can't write against a read only replica.":                   {false, true},
		hidden + "READONLY You can't write against a read only replica.":          {false, true},
		"MASTERDOWN Link with MASTER is down":                                     {false, true},
		"UNADMITTED":                                                              {false, true},
	} {
		v := resp.Value{Kind: '-', Text: []byte(text)}
		if f, o := fatal(code(v.Text)), outdated(v); f != want.fatal || (o != nil) != want.outdated {
			t.Errorf("%q: fatal %v, outdated %v, want %+v", text, f, o, want)
		}
	}
}

// A server that closes its way to us ends the link, also where TLS would let ours go on:
// nothing that is sent would be answered.
func TestAServerThatClosesItsSideEndsTheLink(t *testing.T) {
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
			d, err := prepare([]Node{{Addr: "far:6379"}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			near, far := dress(tcp(t))
			l := newLink(d.nodes[0], resp.NewConn(near), report{})
			go l.reads()
			go l.writes()
			d.nodes[0].raise(l)
			ended := make(chan error, 1)
			go func() {
				_, err := try(t.Context(), d)
				ended <- err
			}()
			if _, _, err := resp.NewReader(far).ReadCommand(); err != nil {
				t.Fatal(err)
			}
			if err := far.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; !errors.Is(err, io.EOF) {
				t.Errorf("the try = %v, want EOF", err)
			}
			<-l.gone
			if d.nodes[0].link.Load() != nil {
				t.Error("the node votes still")
			}
		})
	}
}

// tcp returns the ends of a connection.
func tcp(t *testing.T) (near, far net.Conn) {
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

// TestARefusalToStoreIsKnownInEveryForm holds that a node which cannot store a lock has
// a defect, also where its server hides the error of a command in that of the script.
func TestARefusalToStoreIsKnownInEveryForm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"OOM command not allowed when used memory > 'maxmemory'.":                                                            true,
		"MISCONF Redis is configured to save RDB snapshots":                                                                  true,
		"ERR Error running script (call to f_1): @user_script:9: -OOM command not allowed when used memory > 'maxmemory'. ":  true,
		"ERR Error running script (call to f_1): @user_script:9: -MISCONF Redis is configured to save RDB snapshots, but it": true,
		"ERR unknown command 'OOM'": false,
		"OOMPH":                     false,
	} {
		n := &node{}
		n.note(quorum.AskAcquire, resp.Value{Kind: '-', Text: []byte(text)})
		if got := n.ill.Load() != nil; got != want {
			t.Errorf("%q is a defect: %v, want %v", text, got, want)
		}
	}
}

func TestAWriteThatWaitsForTheNodeHoldsUpNoAnswer(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, d *Driver, l *link, far net.Conn) {
		calls := [3]*call{newCall([][]string{{"PING"}}), newCall([][]string{{"PING"}}), newCall([][]string{{"PING"}})}
		calls[0].then = func() { l.tell("SET", "large", string(make([]byte, 2*room))) }
		in := resp.NewReader(far)
		for _, c := range calls {
			l.send(entry{call: c, at: d.engine.Now()})
			if _, _, err := in.ReadCommand(); err != nil {
				t.Fatal(err)
			}
		}
		far.Write([]byte("+PONG\r\n+PONG\r\n"))
		synctest.Wait() // the node does not read what the first answer has set off
		go far.Write([]byte("+PONG\r\n"))
		select {
		case <-calls[2].done:
		case <-time.After(time.Second):
			t.Error("an answer is not read while a write waits for the node")
		}
	})
}

func TestAnIdleClientNoticesThatTheOtherEndIsGone(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, d *Driver, l *link, far net.Conn) {
		go io.Copy(io.Discard, far) // and no answer
		start := time.Now()
		d.nodes[0].watch(l, func() {})
		if took := time.Since(start); took > pingEvery+time.Duration(breakAfter)+2*lookEvery {
			t.Errorf("noticed after %v, want a ping each %v and %v for its answer", took, pingEvery, time.Duration(breakAfter))
		}
	})
}

// TestNoTokenIsCommittedThatIsOlderThanTheConnection holds that a node accepts no token from before its floor rose. Any
// other may have it since.
func TestNoTokenIsCommittedThatIsOlderThanTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := prepare([]Node{{Addr: "a:1"}, {Addr: "b:1"}, {Addr: "c:1"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		open := func(node int, floor int64) (l *link, commands chan string, far net.Conn) {
			near, far := net.Pipe()
			l, commands = newLink(d.nodes[node], resp.NewConn(newSocket(near)), report{floor: floor}), make(chan string, 10)
			go l.reads()
			d.nodes[node].raise(l)
			go func() {
				defer close(commands)
				for in := resp.NewReader(far); ; {
					args, _, err := in.ReadCommand()
					if err != nil {
						return
					}
					commands <- string(args[1])
				}
			}()
			return l, commands, far
		}
		first, asked, far := open(0, 0)
		var others []*link
		var fars []net.Conn
		for node := 1; node < 3; node++ {
			l, _, far := open(node, 0)
			others, fars = append(others, l), append(fars, far)
		}
		done := make(chan error, 1)
		go func() {
			_, err := try(t.Context(), d)
			done <- err
		}()
		<-asked
		far.Write([]byte(":100\r\n"))
		synctest.Wait()
		first.hangUp(errHungUp)
		<-first.gone
		second, asked, _ := open(0, 5000)
		for _, far := range fars {
			far.Write([]byte(":132\r\n"))
		}
		if err := <-done; err != nil {
			t.Errorf("the other two have granted: %v", err)
		}
		synctest.Wait()
		for len(asked) > 0 {
			if sha := <-asked; sha == d.opts.format().Commit.SHA {
				t.Error("the token is committed")
			}
		}
		for _, l := range append(others, second) {
			l.hangUp(errHungUp)
			<-l.gone
		}
	})
}

// TestANodeThatWorksThroughItsRequestsIsNotSilent, however long the last of them takes.
func TestANodeThatWorksThroughItsRequestsIsNotSilent(t *testing.T) {
	t.Parallel()
	linked(t, func(t *testing.T, d *Driver, l *link, far net.Conn) {
		const requests, each = 30, 200 * time.Millisecond // together longer than breakAfter
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		for range requests {
			asking.Go(func() { l.do(ctx, []string{"PING"}) })
		}
		in := resp.NewReader(far)
		for range requests / 2 {
			if _, _, err := in.ReadCommand(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(each)
			if silent := l.silent(d.engine.Now()); silent > int64(each) {
				t.Errorf("the node is said to be silent for %v", time.Duration(silent))
			}
			far.Write([]byte("+PONG\r\n"))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		if silent := l.silent(d.engine.Now()); silent != int64(time.Second) {
			t.Errorf("after a second without an answer the node is said to be silent for %v", time.Duration(silent))
		}
		cancel()
		asking.Wait()
	})
}
