package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"hash/maphash"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/engine"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
)

const (
	probeLeast = 20 * time.Millisecond // first pause between attempts to reach a node
	probeMost  = time.Second
	lookEvery  = 250 * time.Millisecond
	bufferSize = 32 << 10 // of a connection, each way
	owedMost   = 10_000   // releases kept for a node that cannot be reached

	// queueKeep is how long a node keeps a place in a queue that nobody asks for.
	queueKeep = int64(time.Minute)
)

var (
	errNotOpen = errors.New("not connected yet")
	errStalled = errors.New("skipped: it does not answer")
	errBroke   = errors.New("the connection broke before it was sent")
	seed       = maphash.MakeSeed()
)

// node is one server: its connection, whether it may vote, and the senders that
// carry requests to it.
type node struct {
	d      *Driver
	engine *engine.Engine
	index  int
	addr   string
	user   string
	pass   string

	client  rueidis.Client
	senders [senders]*sender
	usable  atomic.Bool  // connected and checked; mirrors state
	breaks  atomic.Int64 // how often the vote was taken

	mu      sync.Mutex // guards what follows
	state   driver.NodeState
	err     error
	warned  map[string]bool
	mute    error // why it cannot wake waiters
	probing bool
	closed  bool
	owed    map[string]owed
}

// owed is a release that may not have reached its node: it is sent on the next
// checked connection, if that comes while the lock or its place in the queue may
// stand.
type owed struct {
	lock  engine.Lock
	args  []string
	until int64
}

func newNode(d *Driver, index int, cfg Node) *node {
	n := &node{
		d: d, index: index, addr: cfg.Addr, user: cfg.Username, pass: cfg.Password,
		state: driver.NodeDown, err: errNotOpen, warned: make(map[string]bool), owed: make(map[string]owed),
	}
	if n.user == "" && n.pass == "" {
		n.user, n.pass = d.opts.Username, d.opts.Password
	}
	for i := range n.senders {
		n.senders[i] = newSender(n)
	}
	return n
}

// Name implements engine.Node.
func (n *node) Name() string { return n.addr }

// credentials are what the server is told at login.
func (n *node) credentials(ctx context.Context) (user, pass string, err error) {
	if n.d.opts.Credentials != nil {
		return n.d.opts.Credentials(ctx, n.addr)
	}
	return n.user, n.pass, nil
}

// open connects for the first time. Whatever comes of it, the node is looked
// after from then on.
func (n *node) open(ctx context.Context) error {
	done := make(chan error, 1)
	n.d.work.Go(func() {
		client, err := rueidis.NewClient(n.options())
		n.client = client
		done <- err
	})
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = <-done // soon: dialling is bounded by Timeout
	}
	if n.client == nil {
		return err
	}
	for _, s := range n.senders {
		n.d.work.Go(s.loop)
	}
	n.d.work.Go(n.lookAfter)
	if err != nil {
		n.broken(err)
		return err
	}
	n.up()
	return nil
}

func (n *node) options() rueidis.ClientOption {
	o := n.d.opts
	return rueidis.ClientOption{
		InitAddress: []string{n.addr},
		DialCtxFn: func(ctx context.Context, _ string, dialer *net.Dialer, cfg *tls.Config) (net.Conn, error) {
			return n.d.gate.dial(ctx, n, dialer, cfg)
		},
		AuthCredentialsFn: func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			user, pass, err := n.credentials(n.d.ctx)
			return rueidis.AuthCredentials{Username: user, Password: pass}, err
		},
		TLSConfig: o.TLS, SelectDB: o.DB, ClientName: o.ClientName,
		Dialer:           net.Dialer{Timeout: o.Timeout, KeepAlive: time.Second},
		ConnWriteTimeout: time.Second,
		DisableRetry:     true, DisableCache: true, ForceSingleClient: true,
		AlwaysPipelining:  true, // otherwise a deadline closes the connection
		PipelineMultiplex: -1, RingScaleEachConn: 8,
		ReadBufferEachConn: bufferSize, WriteBufferEachConn: bufferSize,
		ClientSetInfo: rueidis.DisableClientSetInfo,
	}
}

// Send implements engine.Node.
func (n *node) Send(r *engine.Request) {
	release := r.Kind == quorum.AskRelease || r.Kind == quorum.AskGiveBack
	s := n.senders[maphash.String(seed, r.Lock.Key)%senders]
	breaks := n.breaks.Load() // first: whatever breaks from here on overtakes r
	switch {
	case !n.usable.Load():
		n.refuse(r)
	case !release && s.stalled(n.engine.Now()):
		r.Fail(engine.Failure{Err: errStalled, Unsent: true})
	default:
		s.push(r, breaks)
	}
}

// refuse answers a request that cannot be sent.
func (n *node) refuse(r *engine.Request) {
	n.mu.Lock()
	err := n.err
	n.mu.Unlock()
	n.owe(r)
	r.Fail(engine.Failure{Err: err, Unsent: true})
}

// owe keeps a release for the next connection.
func (n *node) owe(r *engine.Request) {
	if r.Kind != quorum.AskRelease && r.Kind != quorum.AskGiveBack {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.owed) < owedMost {
		n.owed[r.Owner] = owed{
			lock: *r.Lock, until: n.engine.Now() + max(r.TTL, queueKeep),
			args: []string{r.Owner, "", millis(r.HandOver), keep(r.TTL)},
		}
	}
}

// settle sends what is owed, and keeps what gets no answer again: the ids are
// dead, so a release may be sent as often as needed.
func (n *node) settle(ctx context.Context) {
	n.mu.Lock()
	due := n.owed
	n.owed = make(map[string]owed)
	n.mu.Unlock()
	now := n.engine.Now()
	maps.DeleteFunc(due, func(_ string, o owed) bool { return o.until <= now })
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for chunk := range slices.Chunk(slices.Collect(maps.Keys(due)), batchMost) {
		cmds := n.loads(nil)
		for _, owner := range chunk {
			cmds = append(cmds, n.call(wire.Release, due[owner].lock, due[owner].args...))
		}
		results := n.client.DoMulti(ctx, cmds...)[len(wire.Scripts):]
		for i, owner := range chunk {
			if !broken(results[i]) && !noScript(results[i]) {
				delete(due, owner)
			}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.Copy(n.owed, due)
}

// call builds a call of a script on the keys of a lock.
func (n *node) call(s *wire.Script, lock engine.Lock, args ...string) rueidis.Completed {
	return n.client.B().Evalsha().Sha1(s.SHA).Numkeys(3).Key(lock.Key, lock.Fence, lock.Queue).Arg(args...).Build()
}

// checked notes what the check of a new connection has found.
func (n *node) checked(rep report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mute = rep.mute
	for _, w := range rep.warns {
		if text := w.Error(); !n.warned[text] {
			n.warned[text] = true
			n.d.opts.Logger.Warn("node has a defect", "node", n.addr, "defect", text)
		}
	}
}

// set changes the state and tells of it.
func (n *node) set(state driver.NodeState, err error) {
	n.mu.Lock()
	changed := n.become(state, err)
	n.mu.Unlock()
	if changed {
		n.d.tell(n.event())
	}
}

// become changes the state and says whether it was another. The caller holds mu.
func (n *node) become(state driver.NodeState, err error) (changed bool) {
	changed = n.state != state
	n.state, n.err = state, err
	n.usable.Store(state != driver.NodeDown)
	return changed
}

func (n *node) event() driver.NodeEvent {
	n.mu.Lock()
	defer n.mu.Unlock()
	return driver.NodeEvent{Node: n.addr, State: n.state, Err: n.err}
}

// up lets the node vote.
func (n *node) up() {
	n.settle(n.d.ctx)
	n.greet(n.d.ctx)
	n.mu.Lock()
	mute := n.mute
	n.mu.Unlock()
	if mute != nil {
		n.set(driver.NodePolling, mute)
		return
	}
	n.set(driver.NodeUp, nil)
}

// broken takes the vote away until a probe succeeds. Both happen at once: were
// the vote taken after a probe that is about to end, nothing would give it back.
func (n *node) broken(err error) {
	n.mu.Lock()
	start := !n.probing && !n.closed
	n.probing = n.probing || start
	n.breaks.Add(1)
	changed := n.become(driver.NodeDown, err)
	n.mu.Unlock()
	if changed {
		n.d.tell(n.event())
	}
	if start {
		n.d.work.Go(n.probe)
	}
}

// probe tries to reach the node until it can. The connection that it makes is
// checked by the gate.
func (n *node) probe() {
	pause := probeLeast
	for {
		err := n.client.Do(n.d.ctx, n.client.B().Ping().Build()).Error()
		if err == nil {
			break
		}
		if n.d.ctx.Err() != nil {
			return
		}
		n.set(driver.NodeDown, err)
		select {
		case <-time.After(pause):
		case <-n.d.ctx.Done():
			return
		}
		pause = min(2*pause, probeMost)
	}
	n.mu.Lock()
	n.probing = false
	n.mu.Unlock()
	n.up()
}

// lookAfter watches for a node that is connected but does not answer, and keeps
// what it knows of this client fresh.
func (n *node) lookAfter() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for i := 1; ; i++ {
		select {
		case <-tick.C:
		case <-n.d.ctx.Done():
			return
		}
		switch e := n.event(); {
		case e.State == driver.NodeDown:
		case n.stalled() && e.State != driver.NodeStalled:
			n.set(driver.NodeStalled, errStalled)
		case !n.stalled() && e.State == driver.NodeStalled:
			n.up()
		case time.Duration(i)*lookEvery%greetEvery == 0:
			n.greet(n.d.ctx)
		}
		if n.usable.Load() && !n.stalled() {
			n.d.gate.seen(n.addr)
			n.settle(n.d.ctx) // what came while the node was on its way up, or was cut off again
		}
	}
}

func (n *node) stalled() bool {
	now := n.engine.Now()
	return slices.ContainsFunc(n.senders[:], func(s *sender) bool { return s.stalled(now) })
}

// close lets what is queued go out, for at most a second, and hangs up.
func (n *node) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	if n.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(n.d.ctx, time.Second)
	defer cancel()
	for _, s := range n.senders {
		s.finish(ctx)
	}
	n.client.Close()
}
