package redis

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/socket"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/link"
	"github.com/holdfast-go/holdfast/redis/internal/place"
)

// withShards calls fn with a driver on a cluster of two masters, a and b, of which a has all slots.
func withShards(t *testing.T, fn func(t *testing.T, d *Driver, a, b net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := prepareDriver([]Node{{Addr: "a:6379"}}, &Options{Cluster: true})
		if err != nil {
			t.Fatal(err)
		}
		var fars []net.Conn
		var links []*connection
		for _, addr := range []string{"a:6379", "b:6379"} {
			n := newNode(&d.core, 0, Node{Addr: addr})
			n.engine, n.opened = d.engine, make(chan struct{})
			close(n.opened)
			clusterOf(d).shards = append(clusterOf(d).shards, n)
			near, far := net.Pipe()
			l := joinNode(n, near, report{})
			fars, links = append(fars, far), append(links, l)
		}
		for i := range clusterOf(d).slots {
			clusterOf(d).slots[i].Store(clusterOf(d).shards[0])
		}
		now := time.Now()
		clusterOf(d).looked.Store(&mapTime{at: now, client: now.UnixMicro(), node: now.UnixMicro()})
		fn(t, d, fars[0], fars[1])
		d.engine.Close()
		for i, l := range links {
			l.HangUp(errHungUp)
			fars[i].Close()
			<-l.Gone()
		}
		d.stop()
	})
}

// clusterOf returns the cluster of d.
func clusterOf(d *Driver) *cluster { return d.set.(*cluster) }

// recordScripts returns the names of the scripts that are called over a connection; for a commit also the last
// token.
func recordScripts(far net.Conn) chan string {
	names := make(chan string, 100)
	go func() {
		for r := resp.NewReader(far); ; {
			args, _, err := r.ReadCommand()
			if err != nil {
				return
			}
			name := string(args[0])
			if len(args) > 7 && string(args[1]) == wire.Commit.SHA {
				name = "commit " + string(args[7])
			}
			for script, s := range map[string]*wire.Script{"acquire": wire.Acquire, "release": wire.Release} {
				if len(args) > 1 && string(args[1]) == wire.Renew.SHA {
					name = "renew of " + string(args[3])
				}
				if len(args) > 6 && string(args[1]) == s.SHA {
					_, seq, _ := strings.Cut(string(args[6]), ".")
					name = script + " " + seq
					if script == "acquire" && len(args) > 10 {
						name += " " + string(args[10]) // the lowest token
					}
				}
			}
			names <- name
		}
	}()
	return names
}

// takeScripts waits until all goroutines are idle, and returns all names so far.
func takeScripts(names chan string) (all []string) {
	synctest.Wait()
	for len(names) > 0 {
		all = append(all, <-names)
	}
	return all
}

// startAttempt asks for the lock k until giveUp is called.
func startAttempt(t *testing.T, d *Driver) (giveUp func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.engine.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second, NoWait: true})
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-done
	}
}

func TestRequestsStayInOrderDuringSlotMove(t *testing.T) {
	t.Parallel()
	moved := fmt.Appendf(nil, "-MOVED %d b:6379\r\n", wire.Slot("lock:k"))
	withShards(t, func(t *testing.T, d *Driver, a, b net.Conn) {
		atA, atB := recordScripts(a), recordScripts(b)
		startAttempt(t, d)() // acquire and release have been sent
		first := takeScripts(atA)
		if len(first) != 2 || !strings.HasPrefix(first[0], "acquire") || !strings.HasPrefix(first[1], "release") {
			t.Fatalf("a was sent %q", first)
		}
		a.Write(moved)
		synctest.Wait()
		giveUp := startAttempt(t, d) // the slot is known to be b's, but a has not answered the release
		if early := takeScripts(atB); len(early) > 0 {
			t.Errorf("b received %q before a had answered everything", early)
		}
		a.Write(moved)
		second := takeScripts(atB)
		want := []string{fmt.Sprint(first[0], " ", firstToken()), first[1]} // tokens begin at the clock after a slot was found at another shard
		if len(second) != 3 || !slices.Equal(second[:2], want) || !strings.HasPrefix(second[2], "acquire") {
			t.Errorf("b received %q, want %q and an acquire", second, want)
		}
		b.Write([]byte("*3\r\n:5000\r\n$1\r\nx\r\n:0\r\n:1\r\n:1000\r\n"))
		giveUp()
	})
}

// A redirected request must not be executed after a later one: an acquire would take effect
// after its release, and a give-back would free a lock that was granted in between.
func TestOvertakenRequestIsNotResent(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, a, b net.Conn) {
		atA, atB := recordScripts(a), recordScripts(b)
		startAttempt(t, d)()
		if first := takeScripts(atA); len(first) != 2 {
			t.Fatalf("a was sent %q", first)
		}
		a.Write([]byte("-TRYAGAIN Multiple keys request during rehashing of slot\r\n:0\r\n"))
		time.Sleep(5 * time.Second)
		if late := append(takeScripts(atA), takeScripts(atB)...); len(late) > 0 {
			t.Errorf("sent again: %q", late)
		}
	})
}

func TestShardReceivesAskingOnRedirection(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, a, b net.Conn) {
		atA, atB := recordScripts(a), recordScripts(b)
		giveUp := startAttempt(t, d)
		takeScripts(atA)
		a.Write(fmt.Appendf(nil, "-ASK %d b:6379\r\n", wire.Slot("lock:k")))
		if at := takeScripts(atB); len(at) != 2 || at[0] != "ASKING" || !strings.HasPrefix(at[1], "acquire") {
			t.Errorf("b was sent %q", at)
		}
		b.Write([]byte("+OK\r\n-TRYAGAIN later\r\n"))
		time.Sleep(splitKeysPause)
		if again := takeScripts(atA); len(again) != 1 {
			t.Errorf("a received %q, want the acquire again", again)
		}
		a.Write([]byte("*3\r\n:5000\r\n$1\r\nx\r\n:0\r\n"))
		giveUp()
	})
}

// Only the waiting requests whose keys are known to be on the importing shard go there. It would deny a renewal
// of a lock that the old shard still has.
func TestOnlyRedirectedKeysGoToImportingShard(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, a, b net.Conn) {
		atA, atB := recordScripts(a), recordScripts(b)
		ask := fmt.Appendf(nil, "-ASK %d b:6379\r\n", wire.Slot("{k}"))
		grants := make(chan driver.Grant, 1)
		go func() {
			g, err := d.engine.Acquire(t.Context(), driver.Request{Key: "{k}held", TTL: 10 * time.Second, NoWait: true})
			if err != nil {
				t.Error(err)
			}
			grants <- g
		}()
		takeScripts(atA)
		a.Write([]byte(":4000000000000000\r\n"))
		g := <-grants
		if at := takeScripts(atA); len(at) != 1 || at[0] != "SUBSCRIBE" {
			t.Fatalf("a was sent %q", at)
		}
		a.Write([]byte(">3\r\n$9\r\nsubscribe\r\n$1\r\nw\r\n:1\r\n"))
		takeScripts(atB) // also a subscription
		b.Write([]byte(">3\r\n$9\r\nsubscribe\r\n$1\r\nw\r\n:1\r\n"))
		var giveUp []func()
		for _, name := range []string{"{k}x", "{k}y"} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				d.engine.Acquire(ctx, driver.Request{Key: name, TTL: 10 * time.Second, NoWait: true})
			}()
			giveUp = append(giveUp, func() { cancel(); <-done })
			synctest.Wait()
		}
		if first := takeScripts(atA); len(first) != 2 {
			t.Fatalf("a was sent %q", first)
		}
		a.Write(ask)
		synctest.Wait()
		renewed := make(chan error, 1)
		go func() { renewed <- d.engine.Renew(t.Context(), []driver.Grant{g})[0].Err }()
		synctest.Wait()
		a.Write(ask)
		if at := takeScripts(atB); len(at) != 4 || at[0] != "ASKING" || at[2] != "ASKING" {
			t.Errorf("b received %q, want only the acquires", at)
		}
		b.Write([]byte("+OK\r\n-TRYAGAIN later\r\n+OK\r\n*3\r\n:5000\r\n$1\r\nx\r\n:0\r\n"))
		time.Sleep(splitKeysPause)
		at := takeScripts(atA)
		if !slices.Contains(at, "renew of lock:{k}held") {
			t.Errorf("a received %q, want the renewal among them", at)
		}
		replyTo(a, at)
		select {
		case err := <-renewed:
			if err != nil {
				t.Errorf("the renewal: %v", err)
			}
		case <-time.After(time.Second):
			t.Error("the renewal got no answer")
		}
		for _, end := range giveUp {
			end()
		}
	})
}

// replyTo answers the requests with these names: renewals succeed, and otherwise another owner has the lock.
func replyTo(far net.Conn, names []string) {
	for _, name := range names {
		if strings.HasPrefix(name, "acquire") {
			far.Write([]byte("*3\r\n:5000\r\n$1\r\nx\r\n:0\r\n"))
		} else {
			far.Write([]byte(":0\r\n"))
		}
	}
}

// A request with ASKING that its shard can execute does not wait for one that it cannot execute yet.
func TestAskingRequestDoesNotWaitForOthers(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, a, b net.Conn) {
		atA, atB := recordScripts(a), recordScripts(b)
		var giveUp []func()
		for _, name := range []string{"{k}x", "{k}y"} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				d.engine.Acquire(ctx, driver.Request{Key: name, TTL: 10 * time.Second, NoWait: true})
			}()
			giveUp = append(giveUp, func() { cancel(); <-done })
			synctest.Wait()
		}
		first := takeScripts(atA)
		a.Write(fmt.Appendf(nil, "-TRYAGAIN later\r\n-ASK %d b:6379\r\n", wire.Slot("{k}")))
		if at := takeScripts(atB); len(at) != 2 || at[1] != first[1] {
			t.Errorf("b received %q, want ASKING and %q", at, first[1])
		}
		b.Write([]byte("+OK\r\n*3\r\n:5000\r\n$1\r\nx\r\n:0\r\n"))
		time.Sleep(splitKeysPause)
		at := takeScripts(atA)
		if len(at) == 0 || at[0] != first[0] {
			t.Errorf("a received %q, want %q again", at, first[0])
		}
		replyTo(a, at)
		for _, end := range giveUp {
			end()
		}
	})
}

// The map may be read from a node that does not know of a move yet, so a redirection counts for an inspection
// too.
func TestInspectFollowsItsSlot(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, a, b net.Conn) {
		atA, atB := recordScripts(a), recordScripts(b)
		seen := make(chan engine.View, 1)
		go func() { seen <- clusterOf(d).fetchViews(t.Context(), []engine.Lock{d.opts.lockKeys("k")})[0][0] }()
		takeScripts(atA)
		a.Write(fmt.Appendf(nil, "-MOVED %d b:6379\r\n", wire.Slot("lock:k")))
		time.Sleep(splitKeysPause)
		if at := takeScripts(atB); len(at) != 1 {
			t.Fatalf("b received %q, want the read; a %q", at, takeScripts(atA))
		}
		b.Write([]byte("*4\r\n$1\r\nx\r\n:5000\r\n$1\r\n7\r\n:0\r\n"))
		if v := <-seen; v.Err != nil || v.Owner != "x" {
			t.Errorf("the read returned %+v", v)
		}
	})
}

// An isolated node may claim all slots long after another took its place.
func TestMapOfIsolatedNodeIsIgnored(t *testing.T) {
	t.Parallel()
	for state, believed := range map[string]bool{"cluster_state:ok": true, "cluster_state:fail": false} {
		withShards(t, func(t *testing.T, d *Driver, a, _ net.Conn) {
			atA := recordScripts(a)
			read := make(chan error, 1)
			go func() {
				_, err := clusterOf(d).askForMap(t.Context(), clusterOf(d).shards[0])
				read <- err
			}()
			if at := takeScripts(atA); len(at) != len(mapCommands) {
				t.Fatalf("a was sent %q", at)
			}
			a.Write([]byte("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$1\r\na\r\n:6379\r\n$2\r\nid\r\n")) // all slots belong to a
			a.Write(fmt.Appendf(nil, "$%d\r\n%s\r\n*2\r\n$10\r\n1767355200\r\n$1\r\n0\r\n", len(state), state))
			if err := <-read; (err == nil) != believed {
				t.Errorf("%s: %v", state, err)
			}
		})
	}
}

// Otherwise the lock would stay held for its TTL on the shard that has its slot now.
func TestReleaseOwedToRetiredShardGoesToSuccessor(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, a, b net.Conn) {
		atA, atB := recordScripts(a), recordScripts(b)
		startAttempt(t, d)()
		first := takeScripts(atA)
		if len(first) != 2 {
			t.Fatalf("a was sent %q", first)
		}
		a.Close()
		synctest.Wait()
		old, next := clusterOf(d).shards[0], clusterOf(d).shards[1]
		old.stop = func() {}
		now := time.Now()
		clusterOf(d).applyMap(slotMap{
			mapTime: mapTime{at: now, client: now.UnixMicro(), node: now.UnixMicro()},
			spans:   []place.Span{{First: 0, Last: wire.Slots - 1, ID: "b", Addr: "b:6379"}},
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			next.sendDebts(next.link.Load())
		}()
		if at := takeScripts(atB); !slices.Contains(at, first[1]) {
			t.Errorf("b received %q, want the %s", at, first[1])
		}
		<-done
	})
}

// No caller waits for the answer, but the lock stays held until the release is executed.
func TestReleaseSearchesShardAfterItsDeadline(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, a, _ net.Conn) {
		atA := recordScripts(a)
		startAttempt(t, d)()
		first := takeScripts(atA)
		if len(first) != 2 {
			t.Fatalf("a was sent %q", first)
		}
		time.Sleep(time.Second + 100*time.Millisecond) // the longest time of a request is over
		a.Write([]byte("*3\r\n:5000\r\n$1\r\nx\r\n:0\r\n-TRYAGAIN later\r\n"))
		time.Sleep(2 * splitKeysPause)
		if again := takeScripts(atA); !slices.Equal(again, first[1:]) {
			t.Errorf("a received %q again, want the release", again)
		}
	})
}

// shardWithID is a shard with a known id.
type shardWithID struct{ place.Place }

func (shardWithID) Shard() string { return "a" }

// The client asks a shard for its role each second, and only once if a ping is due at the same time.
func TestShardRoleIsCheckedEachSecond(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, a, _ net.Conn) {
		n := clusterOf(d).shards[0]
		n.place = shardWithID{n.place}
		var asked []string
		go func() {
			for in := resp.NewReader(a); ; {
				args, _, err := in.ReadCommand()
				if err != nil {
					return
				}
				asked = append(asked, string(args[0]))
			}
		}()
		for age := time.Second; age <= pingEvery; age += watchEvery {
			n.tendConnection(n.link.Load(), age-watchEvery, age)
		}
		synctest.Wait()
		count := 0
		for _, name := range asked {
			if name == "INFO" {
				count++
			}
		}
		if want := int(pingEvery / time.Second); count != want {
			t.Errorf("received %d requests in %v, want %d: %q", count, pingEvery, want, asked)
		}
	})
}

// While few requests are pending, the caller writes to a shard itself, as to a single server: it asks no other
// node meanwhile.
func TestCallerWritesToIdleShardItself(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, _, _ net.Conn) {
		near, far := net.Pipe()
		near = socket.New(near)
		s := newConnection(clusterOf(d).shards[0], resp.NewConn(near), report{}) // no goroutine writes for it
		at := recordScripts(far)
		lock := d.opts.lockKeys("k")
		const sent = 4 // more bytes than callers write themselves if each request goes to several nodes
		for i := range sent {
			s.Send(link.Entry{At: d.engine.Now(), Req: &engine.Request{
				Ask: quorum.Ask{Kind: quorum.AskRenew, Owner: fmt.Sprint("owner", i), TTL: int64(time.Second)}, Lock: &lock, Deadline: d.engine.Now() + int64(time.Second),
			}})
		}
		if got := takeScripts(at); len(got) != sent {
			t.Errorf("%d of %d requests were written: %q", len(got), sent, got)
		}
		near.Close()
		far.Close()
	})
}

// If a shard's stale report were delivered last, waiters would poll forever, without a place in the queue.
func TestLastSubscriptionReportWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all reportOrder
		var both atomic.Bool // wake-ups arrive from both shards
		var said []bool
		slow := make(chan struct{})
		var first sync.WaitGroup
		first.Go(func() {
			all.publishState(both.Load, func(yes bool) {
				if !yes {
					<-slow
				}
				said = append(said, yes)
			})
		})
		synctest.Wait()
		both.Store(true)
		all.publishState(both.Load, func(yes bool) { said = append(said, yes) })
		close(slow)
		first.Wait()
		if want := []bool{true, false, true}; !slices.Equal(said, want) {
			t.Errorf("said %v, want %v", said, want)
		}
	})
}

// Each shard has its own lane, so waiters for a hung shard do not delay claims on another shard.
func TestHungShardDoesNotDelayOtherShards(t *testing.T) {
	t.Parallel()
	withShards(t, func(t *testing.T, d *Driver, a, b net.Conn) {
		c := clusterOf(d)
		var mine, others []string
		for i := 0; len(mine) < 300 || len(others) < 300; i++ {
			name := fmt.Sprint("crowd/", i)
			if slot := wire.Slot(d.opts.lockKeys(name).Key); slot%2 == 0 {
				mine = append(mine, name)
			} else {
				c.slots[slot].Store(c.shards[1])
				others = append(others, name)
			}
		}
		go io.Copy(io.Discard, a)
		go serveScripts(b, func([]string) int64 { return 1 << 52 })
		acquire := func(all *sync.WaitGroup, ctx context.Context, names []string) {
			for _, name := range names {
				all.Go(func() {
					if g, err := d.engine.Acquire(ctx, driver.Request{Key: name, TTL: 10 * time.Second}); err == nil {
						d.engine.Release(ctx, g, 0)
					} else if ctx.Err() == nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var blocked, free sync.WaitGroup
		acquire(&blocked, ctx, mine)
		synctest.Wait()
		start := time.Now()
		acquire(&free, t.Context(), others)
		free.Wait()
		if took := time.Since(start); took != 0 {
			t.Errorf("locks of the healthy shard took %v", took)
		}
		cancel()
		blocked.Wait()
	})
}

// A server that redirects each request to another address costs at most twice as many connections as a cluster
// has masters.
func TestRedirectionsOpenFewConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := prepareDriver([]Node{{Addr: "a:6379"}}, &Options{Cluster: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		if err != nil {
			t.Fatal(err)
		}
		c := clusterOf(d)
		n := newNode(&d.core, 0, Node{Addr: "a:6379"})
		for i := range 3 * place.MaxShards {
			c.followMoved(n, fmt.Sprintf("%d h:%d", i%wire.Slots, 1+i))
		}
		if got := len(c.members()); got != 2*place.MaxShards {
			t.Errorf("%d shards", got)
		}
		d.stop()
		d.work.Wait()
	})
}
