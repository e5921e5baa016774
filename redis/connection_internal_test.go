package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/socket"
	"github.com/holdfast-go/holdfast/internal/session"
	"github.com/holdfast-go/holdfast/redis/internal/place"
)

// withLink calls fn with a driver and a connection whose other end is far.
func withLink(t *testing.T, fn func(t *testing.T, d *Driver, l *connection, far net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := prepareDriver([]Node{{Addr: "far:6379"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		l := joinNode(d.nodes[0], near, report{})
		fn(t, d, l, far)
		l.HangUp(errHungUp)
		far.Close()
		<-l.Gone()
	})
}

// joinNode gives n a connection over c.
func joinNode(n *node, c net.Conn, rep report) *connection {
	l := newConnection(n, resp.NewConn(socket.New(c)), rep)
	l.Start(func(fn func()) { go fn() })
	n.giveVote(l)
	return l
}

// watch watches l until it ends, and awaits the attempt to open another connection.
func watch(l *connection, report func()) {
	next := l.n.watchConnection(l, &session.Redial{Min: int64(minRedial), Max: int64(maxRedial)}, report)
	if next != nil {
		<-next
	}
}

// tryAcquire asks for a lock, and returns how long that took.
func tryAcquire(ctx context.Context, d *Driver) (time.Duration, error) {
	start := time.Now()
	_, err := d.engine.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true})
	return time.Since(start), err
}

// A node that cannot store a lock has a defect, even if its server wraps the error of a command in the error of
// the script.
func TestWriteRejectionsAreRecognized(t *testing.T) {
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
		n.noteRefusal(quorum.AskAcquire, resp.Value{Kind: '-', Text: []byte(text)})
		if got := n.ill.Load() != nil; got != want {
			t.Errorf("%q is a defect: %v, want %v", text, got, want)
		}
	}
}

// While a process is paused, answers of the node collect in its connection. The client reads them before it
// decides that the node is silent.
func TestPausedClientReadsAnswersBeforeDisconnecting(t *testing.T) {
	t.Parallel()
	withLink(t, func(t *testing.T, d *Driver, l *connection, far net.Conn) {
		const stopped = 10 * time.Second
		go io.Copy(io.Discard, far)
		d.nodes[0].measureTrip(l)
		running, ended := false, make(chan struct{})
		go func() {
			defer close(ended)
			watch(l, func() {
				if !running {
					running = true
					time.Sleep(stopped)
				}
			})
		}()
		time.Sleep(stopped + time.Millisecond) // it has looked at the link, but not read from it
		far.Write([]byte("+PONG\r\n"))
		time.Sleep(2 * watchEvery)
		if l.Ended() {
			t.Error("the client disconnected before it read the answer")
		}
		l.HangUp(errHungUp)
		<-ended
	})
}

// replaceablePlace is a place whose server can be replaced.
type replaceablePlace struct{ place.Place }

func (replaceablePlace) Replaced() bool { return true }

// A suspended machine stops both client and master, and the master may have a successor when they continue.
func TestSuspendedClientChecksItsMaster(t *testing.T) {
	t.Parallel()
	withLink(t, func(t *testing.T, d *Driver, l *connection, far net.Conn) {
		const stopped = session.Standstill + time.Second
		n := d.nodes[0]
		n.place = replaceablePlace{n.place}
		go io.Copy(io.Discard, far)
		running, ended := false, make(chan struct{})
		go func() {
			defer close(ended)
			watch(l, func() {
				if !running {
					running = true
					time.Sleep(stopped)
				}
			})
		}()
		time.Sleep(stopped - time.Millisecond)
		if err := l.prepareRequest(&engine.Request{Lock: new(engine.Lock), Ask: quorum.Ask{Kind: quorum.AskAcquire}}); !errors.Is(err, session.ErrSlept) {
			t.Errorf("prepareRequest to the old master = %v, want ErrSlept", err)
		}
		time.Sleep(2 * watchEvery)
		if !l.Ended() {
			t.Error("the client kept the connection to the old master")
		}
		l.HangUp(errHungUp)
		<-ended
	})
}

func TestIdleClientNoticesDeadPeer(t *testing.T) {
	t.Parallel()
	withLink(t, func(t *testing.T, d *Driver, l *connection, far net.Conn) {
		go io.Copy(io.Discard, far) // without an answer
		start := time.Now()
		watch(l, func() {})
		if took := time.Since(start); took > pingEvery+pace.SilenceTime()+2*watchEvery {
			t.Errorf("noticed after %v, want a ping every %v and %v for its answer", took, pingEvery, pace.SilenceTime())
		}
	})
}

// A connection that loses a renewal stays open while the client opens another one, in time to renew the lease.
func TestDeadConnectionLeavesTimeToRenew(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	withLink(t, func(t *testing.T, d *Driver, l *connection, far net.Conn) {
		ctx, cancel := context.WithCancel(t.Context())
		granted := make(chan driver.Grant, 1)
		go func() {
			g, err := d.engine.Acquire(ctx, driver.Request{Key: "k", TTL: ttl, NoWait: true})
			if err != nil {
				t.Error(err)
			}
			granted <- g
		}()
		if _, _, err := resp.NewReader(far).ReadCommand(); err != nil {
			t.Fatal(err)
		}
		far.Write([]byte(":4000000000000000\r\n"))
		g := <-granted
		go io.Copy(io.Discard, far) // without an answer
		var renewing sync.WaitGroup
		renewing.Go(func() { d.engine.Renew(ctx, []driver.Grant{g}) })
		start, opened := time.Now(), make(chan time.Duration, 100)
		d.nodes[0].net.Dialer.Dial = func(context.Context, string, string) (net.Conn, error) {
			if len(opened) == 0 && l.Ended() {
				t.Error("the connection was closed before the client dialed another one")
			}
			opened <- time.Since(start)
			return nil, syscall.ECONNREFUSED
		}
		watch(l, func() {})
		if took := <-opened; took >= ttl/2 { // the renewal is sent after a third of the TTL
			t.Errorf("dialed another connection after %v, with a lease TTL of %v", took, ttl)
		}
		cancel()
		renewing.Wait()
	})
}

// A server does not get a second vote while the client opens another connection to its node.
func TestFailedReplacementLeavesNodeListed(t *testing.T) {
	t.Parallel()
	withLink(t, func(t *testing.T, d *Driver, _ *connection, _ net.Conn) {
		const run = "run"
		if err := d.gate.noteArrival(d.nodes[0].addr, run); err != nil {
			t.Fatal(err)
		}
		d.nodes[0].net.Dialer.Dial = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			far.Close()
			return near, nil
		}
		if _, _, err := d.gate.dialNode(t.Context(), d.nodes[0]); err == nil {
			t.Fatal("a server that closed the connection was admitted")
		}
		if err := d.gate.noteArrival("other:6379", run); err == nil {
			t.Error("the same server votes under another address")
		}
	})
}

// A node rejects tokens from before its floor rose, because another client may have them since.
func TestTokenOlderThanConnectionIsNotCommitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := prepareDriver([]Node{{Addr: "a:1"}, {Addr: "b:1"}, {Addr: "c:1"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		open := func(node int, floor int64) (l *connection, commands chan string, far net.Conn) {
			near, far := net.Pipe()
			l, commands = joinNode(d.nodes[node], near, report{floor: floor}), make(chan string, 10)
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
		var others []*connection
		var fars []net.Conn
		for node := 1; node < 3; node++ {
			l, _, far := open(node, 0)
			others, fars = append(others, l), append(fars, far)
		}
		done := make(chan error, 1)
		go func() {
			_, err := tryAcquire(t.Context(), d)
			done <- err
		}()
		<-asked
		far.Write([]byte(":100\r\n"))
		synctest.Wait()
		first.HangUp(errHungUp)
		<-first.Gone()
		second, asked, _ := open(0, 5000)
		for _, far := range fars {
			far.Write([]byte(":132\r\n"))
		}
		if err := <-done; err != nil {
			t.Errorf("Acquire() on the other two nodes = %v", err)
		}
		synctest.Wait()
		for len(asked) > 0 {
			if sha := <-asked; sha == d.opts.format().Commit.SHA {
				t.Error("the token was committed")
			}
		}
		for _, l := range append(others, second) {
			l.HangUp(errHungUp)
			<-l.Gone()
		}
	})
}

// serveScripts answers each script over far with the result of answer, and confirms subscriptions, until the
// connection ends.
func serveScripts(far net.Conn, answer func(args []string) int64) {
	defer far.Close()
	for in := resp.NewReader(far); ; {
		command, _, err := in.ReadCommand()
		if err != nil {
			return
		}
		var args []string
		for _, arg := range command {
			args = append(args, string(arg))
		}
		if args[0] == "SUBSCRIBE" {
			fmt.Fprintf(far, ">3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(args[1]), args[1])
		} else {
			fmt.Fprintf(far, ":%d\r\n", answer(args))
		}
	}
}

// Over each connection, requests for a lock carry the lowest allowed token, until a grant shows that the
// counter is above it. After a token below it, which does not count, requests carry it again: the counter may
// have been lost while the clock was set back.
func TestRequestsNameFloorUntilCounterIsAbove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := prepareDriver([]Node{{Addr: "far:6379"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		tokens, asked := make(chan int64, 1), make(chan []string, 2)
		connect := func() *connection {
			near, far := net.Pipe()
			go serveScripts(far, func(args []string) int64 {
				answer := int64(1)
				if args[1] == d.opts.format().Acquire.SHA {
					answer = <-tokens
				}
				asked <- args[7:]
				return answer
			})
			return joinNode(d.nodes[0], near, report{floor: 5000})
		}
		l := connect()
		for i, step := range []struct {
			key        string
			token      int64
			anew, said bool
		}{
			{key: "k", token: 5000, said: true},
			{key: "k", token: 5032},
			{key: "j", token: 5000, said: true}, // another counter
			{key: "j", token: 4999},
			{key: "j", token: 4999, said: true},
			{key: "j", token: 5064, said: true},
			{key: "j", token: 5096},
			{key: "k", token: 5064},
			{key: "k", token: 5096, anew: true, said: true},
		} {
			if step.anew {
				l.HangUp(errHungUp)
				<-l.Gone()
				l = connect()
			}
			tokens <- step.token
			g, err := d.engine.Acquire(t.Context(), driver.Request{Key: step.key, TTL: 10 * time.Second, NoWait: true})
			if (err == nil) != (step.token >= 5000) || err != nil && !errors.Is(err, session.ErrLow) {
				t.Errorf("%d: a token of %d: %v", i, step.token, err)
			}
			if got := slices.Contains(<-asked, "5000"); got != step.said {
				t.Errorf("%d: the acquire carries the floor: %v, want %v", i, got, step.said)
			}
			if err == nil {
				if err := d.engine.Release(t.Context(), g, 0); err != nil {
					t.Errorf("%d: its release: %v", i, err)
				}
			}
			if got := slices.Contains(<-asked, "5000"); got != (step.token < 5000) {
				t.Errorf("%d: the release carries the floor: %v", i, got)
			}
		}
		l.HangUp(errHungUp)
		<-l.Gone()
	})
}

// An open connection does not ask for credentials: each request may create a token that somebody has to sign,
// and the goroutine that watches the node waits for it.
func TestOnlyConnectionsRequestCredentials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		d, err := prepareDriver([]Node{{Addr: "far:6379"}}, &Options{Credentials: func(context.Context, string) (string, string, error) {
			asked++
			return "", "secret", nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		l := joinNode(d.nodes[0], near, report{})
		go io.Copy(io.Discard, far)
		d.bare.noteName("k")
		d.nodes[0].tendConnection(l, 0, lookEvery)
		if asked > 0 {
			t.Errorf("Credentials was called %d times", asked)
		}
		l.HangUp(errHungUp)
		far.Close()
		<-l.Gone()
	})
}

// A client subscribes to a node only when the node votes: otherwise a release on the node would hand the lock
// to a waiter.
func TestWakeUpsInQuarantineAreIgnored(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stay    *member.QuarantineError
		listens bool
	}{{stay: &member.QuarantineError{Left: time.Minute}}, {listens: true}} {
		synctest.Test(t, func(t *testing.T) {
			d, err := prepareDriver([]Node{{Addr: "far:6379"}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			near, far := net.Pipe()
			listens := false
			go func() {
				for in := resp.NewReader(far); ; {
					args, _, err := in.ReadCommand()
					if err != nil {
						return
					}
					listens = listens || string(args[0]) == "SUBSCRIBE"
				}
			}()
			d.nodes[0].Subscribe() // before the connection, and after it
			l := joinNode(d.nodes[0], near, report{stay: c.stay})
			d.nodes[0].Subscribe()
			synctest.Wait()
			if listens != c.listens {
				t.Errorf("with the quarantine %v the client subscribes: %v", c.stay, listens)
			}
			l.HangUp(errHungUp)
			far.Close()
			<-l.Gone()
		})
	}
}

// A panic in code that parses answers for an inspection ends the connection to that node, not the program. A
// node that was not read does not count as one without the lock.
func TestPanicInListEndsItsConnection(t *testing.T) {
	t.Parallel()
	withLink(t, func(t *testing.T, d *Driver, l *connection, far net.Conn) {
		eachNode(t.Context(), d.nodes, func(context.Context, *node) { panic("unforeseen") })
		if !l.Ended() {
			t.Error("the connection is still open")
		}
		far.Close()
		<-l.Gone()
		d.nodes[0].link.Store(nil)
		if st, err := d.Inspect(t.Context(), "k"); err == nil {
			t.Errorf("Inspect = %+v", st)
		}
	})
}

// The doctor names a server by its own name and version. Forks also report the version of Redis that they
// imitate.
func TestDoctorNamesForks(t *testing.T) {
	t.Parallel()
	for fork, field := range map[string]string{"Redis": "redis_version", "Valkey": "valkey_version", "Redict": "redict_version"} {
		e := &nodeExam{hello: map[string]string{"server": "redis"}, info: map[string]string{"gcc_version": "1", "redis_version": "7.2.4"}}
		e.info[field] = "7.3.6"
		if err := e.checkVersion(t.Context()); err != nil || len(e.Found) != 1 || e.Found[0].Text != fork+" 7.3.6" {
			t.Errorf("%s: %v, %+v", fork, err, e.Found)
		}
	}
}
