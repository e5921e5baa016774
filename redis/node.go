package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/link"
	"github.com/holdfast-go/holdfast/redis/internal/place"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

const (
	probeLeast = 20 * time.Millisecond // first pause between attempts to reach a node
	probeMost  = time.Second
	watchEvery = 250 * time.Millisecond
	pingEvery  = 5 * time.Second
	// lookEvery is between two looks at what may change under an open connection. What lets a second holder in, as a policy that
	// evicts does, is noticed within it; INFO takes 13 µs of a server.
	lookEvery  = time.Second
	greetEvery = 2 * time.Minute
	greetKeep  = 5 * time.Minute // how long nodes remember who a client is
	owedMost   = 10_000          // releases kept for a node that cannot be reached
	owedBatch  = 256             // of them sent together
)

var (
	errNotOpen = errors.New("not connected yet")
	errHungUp  = errors.New("hung up")
	errSilent  = errors.New("no answer for too long")
	errServed  = errors.New("its quarantine is over")
	errMoved   = errors.New("another server is the master now")
	errSlept   = errors.New("this process stood still, and another server may be the master by now")
	// errOlder is why a token is not committed that was chosen before the node came back, perhaps with older data: it may
	// have been given to another since (trace C11).
	errOlder = errors.New("it has come back since it granted the lock")
	// errLow is why a grant does not count: its token may have been given to another before.
	errLow = errors.New("its token may have been given before it came back, or before the slot was found there")
)

// node is one server: the connection to it, and whether it may vote.
type node struct {
	d      *core
	engine *engine.Engine
	index  int
	addr   string

	net   *place.Net
	place place.Place // where its server is

	ctx    context.Context // ends with the driver, or when a cluster has taken its slots away
	stop   context.CancelFunc
	opened chan struct{} // of a cluster: closed after the first attempt to connect
	lane   engine.Lane   // of a shard: of the locks in its hash slots

	link      atomic.Pointer[session] // connected and checked; nil: down
	listening atomic.Bool             // wake-ups are wanted
	stalled   atomic.Bool             // connected, but does not answer
	trip      atomic.Int64            // smoothed round trip of link; 0: not measured yet

	// ill is why the node grants nothing for the time being, as its last answer said.
	ill atomic.Pointer[error]

	mu      sync.Mutex // guards what follows
	err     error      // why it is down, or why it was down last
	mute    error      // why it cannot wake waiters
	deaf    error      // why this client cannot subscribe
	defect  error      // what an operator should change, although it votes
	ordered bool       // its wake-ups come in their place among the replies
	warned  map[string]bool
	news    []error // defects that are not in the log yet
	server  string  // the address of the server that it is, or was last
	moved   bool    // which is not in the log yet
	owed    map[string]owed
}

// owed is a release that may not have reached its node: it is sent on the next
// checked connection, if that comes while the lock or its place in the queue may
// stand.
type owed struct {
	lock  engine.Lock
	ask   quorum.Ask
	until int64
}

func newNode(d *core, index int, cfg Node) *node {
	o := &d.opts
	credentials := o.Credentials
	if credentials == nil {
		user, password := cfg.Username, cfg.Password
		if user == "" && password == "" {
			user, password = o.Username, o.Password
		}
		credentials = func(context.Context, string) (string, string, error) { return user, password, nil }
	}
	n := &node{
		d: d, index: index, addr: cfg.Addr, ctx: d.ctx, err: errNotOpen, warned: make(map[string]bool), owed: make(map[string]owed),
		net: &place.Net{
			Dialer:  server.Dialer{Dial: o.Dial, TLS: o.TLS, Fresh: o.freshTLS, ClientName: o.ClientName, DB: o.DB},
			Timeout: o.Timeout, Credentials: credentials,
		},
	}
	switch fixed := (place.Fixed{Net: n.net, Addr: cfg.Addr}); {
	case o.Cluster:
		n.place = &place.Shard{Fixed: fixed}
	case cfg.Failover != nil:
		n.place = cfg.Failover.place(n.net)
	default:
		n.place = &fixed
	}
	return n
}

// Name implements engine.Node.
func (n *node) Name() string { return n.addr }

// open connects for the first time. Even if that fails, keep looks after the node
// from then on.
func (n *node) open(ctx context.Context) error {
	l, err := n.dial(ctx)
	n.warn()
	n.d.work.Go(func() { n.keep(l) })
	return err
}

// keep looks after the connection l and, whenever there is none, makes the next,
// until the driver is closed. It alone reports the node's states.
func (n *node) keep(l *session) {
	told := n.event()
	report := func() {
		if e := n.event(); (e.State != told.State || cause(e.Err) != cause(told.Err)) && n.ctx.Err() == nil {
			told = e
			n.d.tell(e)
		}
	}
	var pause time.Duration // before the next attempt
	for n.ctx.Err() == nil {
		if l != nil {
			begin := time.Now()
			n.watch(l, report)
			report()
			if time.Since(begin) > probeMost {
				pause = 0 // it has worked: a connection that breaks as soon as it is made does not count
			}
		}
		if wait(n.ctx, pause/2+rand.N(pause/2+1)); n.ctx.Err() != nil { // a Dial of the user's may not look at it
			return
		}
		pause = min(max(2*pause, probeLeast), probeMost)
		if l, _ = n.dial(n.ctx); l == nil {
			report()
			n.expire()
		}
		n.d.logs.Go(n.warn) // a Logger may block
	}
	if l != nil { // the connection came as the driver was closed
		l.HangUp(errHungUp)
	}
}

// dial makes a connection that the gate has checked, and lets the node vote over
// it. With an error there is none, or one over which the node does not vote yet.
func (n *node) dial(ctx context.Context) (*session, error) {
	line, rep, err := n.d.gate.dial(ctx, n)
	if rep.skipped {
		n.mu.Lock()
		n.news = append(n.news, errSkipped)
		n.mu.Unlock()
	}
	if err != nil {
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
		n.d.set.lost(n)
		return nil, err
	}
	n.checked(rep)
	l := newSession(n, line, rep)
	l.Start(n.d.work.Go)
	n.settle(l)
	n.greet(l)
	n.raise(l)
	if l.stay != nil {
		return l, l.stay
	}
	return l, nil
}

// raise lets the node vote over l, unless that has broken already.
func (n *node) raise(l *session) {
	n.d.set.greeted(l)
	n.mu.Lock()
	if !l.Ended() {
		n.link.Store(l)
		n.d.admitted.Store(true)
		n.ill.Store(nil)
		n.deaf = nil
		n.trip.Store(0)
		n.stalled.Store(false)
		if l.stay != nil {
			n.err = l.stay
		}
	}
	n.mu.Unlock()
	if n.listening.Load() {
		n.listen(l)
	}
}

// broken takes the vote away: l has broken.
func (n *node) broken(l *session, err error) {
	n.mu.Lock()
	if n.link.CompareAndSwap(l, nil) {
		n.err = err
	}
	n.mu.Unlock()
	n.d.gate.leave(n.addr)
	n.d.set.lost(n)
}

// watch notices a node that is connected but does not answer, introduces this
// client to it again from time to time, and sends what is owed. It returns when l
// is gone.
func (n *node) watch(l *session, report func()) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for i := 1; ; i++ {
		report()
		select {
		case <-tick.C:
		case <-l.Gone():
			return
		case <-n.ctx.Done():
			l.HangUp(errHungUp)
			return
		}
		if l.stay != nil && n.engine.Now() >= l.votes {
			l.HangUp(errServed)
			continue
		}
		if l.hasSlept() {
			l.HangUp(errSlept)
			continue
		}
		l.awake.Store(n.engine.Now())
		silent := l.Silent(n.engine.Now())
		stalled := n.stalled.Swap(silent > int64(pace.Overdue()))
		switch {
		case stalled && silent > int64(n.patience(l)): // else this client has not run for a while itself, and may have answers to read
			l.HangUp(errSilent)
		case silent <= int64(pace.Overdue()):
			n.tend(l, time.Duration(i)*watchEvery)
		}
	}
}

// patience returns for how long the node may answer nothing on l. A lease that waits for its renewal has time for another
// attempt over the next connection then: this one may be dead, behind a firewall that has forgotten it.
func (n *node) patience(l *session) time.Duration {
	limit := pace.Silence()
	l.EachUnderWay(func(r *engine.Request) {
		if r.Kind == quorum.AskRenew {
			limit = min(limit, pace.RequestTime(time.Duration(r.TTL), pace.Alone))
		}
	})
	return limit
}

// tend does what a working connection needs from time to time.
func (n *node) tend(l *session, age time.Duration) {
	n.settle(l) // requests that came while the node was coming up, or was cut off again
	if age%greetEvery == 0 {
		n.greet(l)
	}
	if age%deafPause == 0 && n.event().State == driver.NodePolling {
		n.listen(l) // the right may have been granted
	}
	if age%probeMost == 0 {
		n.d.channels.Leave(l.Link)
		n.lookForBare(l)
	}
	if age%pingEvery == 0 {
		n.ping(l) // otherwise this client would not notice that the other end is gone
	}
	if age%lookEvery == 0 {
		n.lookAgain(l)
	}
	if n.place.Replaced() && age%pingEvery == 0 {
		n.d.work.Go(func() { // a master that is cut off cannot know that another was promoted
			if n.place.Moved(n.d.ctx, l.server) {
				l.HangUp(errMoved)
			}
		})
	}
}

// lookAgain hangs up once the gate would not let the server in any more: one that was demoted or may evict locks now
// says so, also to a client that writes nothing.
func (n *node) lookAgain(l *session) {
	l.Call(link.NewCall([][]string{{"INFO"}}, func(c *link.Call) {
		if c.Err != nil {
			return
		}
		defects, err := n.d.gate.recheck(l, c.Replies[0])
		if err != nil {
			l.HangUp(err)
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if defects != nil && n.link.Load() == l {
			l.defects = defects
			n.blemish(l.report)
			if len(n.news) > 0 {
				n.d.logs.Go(n.warn) // a Logger may block
			}
		}
	}))
}

// greet tells the node which process this client is.
func (n *node) greet(l *session) {
	me := n.d.holder.me()
	if me == (driver.Holder{}) {
		return
	}
	if text, err := json.Marshal(me); err == nil {
		l.Tell("SET", wire.Client+n.engine.Client(), string(text), "PX", format.Millis(int64(greetKeep)))
	}
}

// lookForBare looks for a key that is a bare name.
func (n *node) lookForBare(l *session) {
	d := n.d
	if !d.opts.format().BareBeside(d.opts.Prefix) || !d.set.beside() {
		return // the name is the key; or it may be in another shard
	}
	// A user of its own may not have the right, and each try would be in the server's log.
	if d.opts.Credentials != nil {
		return // it is asked at new connections alone
	}
	if user, _, _ := n.net.Credentials(n.ctx, l.server); user != "" {
		return
	}
	taken := d.bare.name.Swap(nil)
	if taken == nil {
		return
	}
	name := *taken
	l.Call(link.NewCall([][]string{{"PTTL", name}}, func(c *link.Call) {
		if c.Err != nil {
			return // nobody may be waiting for the Logger any more
		}
		if left, _ := c.Replies[0].(int64); left > 0 && d.bare.first(name) {
			d.logs.Go(func() { // a Logger may block
				d.opts.Logger.Warn(fmt.Sprintf("there is a key %q, which expires, beside %q: if another library locks that name by its bare key, "+
					"it and this client do not exclude one another; give both the same key (bare=true)", name, d.opts.keys(name).Key), "node", n.addr)
			})
		}
	}))
}

// ping sends a PING, which waits in line as every request does, and takes the time.
func (n *node) ping(l *session) {
	sent := n.engine.Now()
	l.Call(link.NewCall([][]string{{"PING"}}, func(c *link.Call) {
		if took := max(n.engine.Now()-sent, 1); c.Err == nil {
			last := cmp.Or(n.trip.Load(), took)
			n.trip.Store(last + (took-last)/4)
		}
	}))
}

// Send implements engine.Node.
func (n *node) Send(r *engine.Request) { n.send(link.Entry{Req: r, At: r.Sent}) }

func (n *node) send(e link.Entry) {
	r, l := e.Req, n.link.Load()
	if l != nil && l.stay != nil && r.Kind.Frees() {
		r.HandOver = 0 // a hand-over is a grant
	}
	if l != nil {
		if err := l.vain(r); err != nil {
			n.fail(e, engine.Failure{Err: err, Unsent: true})
			return
		}
	}
	if l != nil && (l.stay == nil || r.Kind == quorum.AskRenew || r.Kind.Frees()) {
		l.Send(e)
		return
	}
	err := n.why()
	n.fail(e, engine.Failure{Err: err, Unsent: true, Fatal: server.Lasting(err) && !n.d.admitted.Load()})
}

// fail answers a request that the node has not answered and never will.
func (n *node) fail(e link.Entry, f engine.Failure) {
	f.Err = n.d.set.blame(n, f.Err)
	if e.Call != nil {
		e.Call.End(f.Err)
		return
	}
	n.d.set.over(e, nil)
	if e.Frees() {
		n.d.set.keeper(e.Req.Lock, n).owe(e.Req)
	}
	f.Unsent = f.Unsent && !e.Repeated()
	e.Req.Fail(f)
}

// do sends commands to the node, outside of locks.
func (n *node) do(ctx context.Context, cmds ...[]string) ([]any, error) {
	l := n.link.Load()
	switch {
	case n.d.ctx.Err() != nil:
		return nil, driver.ErrClosed
	case l == nil || l.stay != nil:
		return nil, n.why()
	}
	return l.Do(ctx, cmds...)
}

// owe keeps a release for the next connection.
func (n *node) owe(r *engine.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.owed) < owedMost {
		n.owed[r.Owner] = owed{
			lock: *r.Lock, until: n.engine.Now() + max(r.TTL, r.MinHold, quorum.QueueKeep*int64(time.Millisecond)),
			ask: r.Ask,
		}
	}
}

// expire forgets what was owed and has lapsed by itself.
func (n *node) expire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.engine.Now()
	maps.DeleteFunc(n.owed, func(_ string, o owed) bool { return o.until <= now })
}

// settle sends what is owed, and keeps what gets no answer again: the ids are
// dead, so a release may be sent as often as needed.
func (n *node) settle(l *session) {
	n.expire()
	n.mu.Lock()
	due := n.owed
	n.owed = make(map[string]owed)
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(n.d.ctx, pace.AskTime())
	defer cancel()
	for chunk := range slices.Chunk(slices.Collect(maps.Keys(due)), owedBatch) {
		cmds := slices.Clone(n.d.opts.format().Loads())
		for _, owner := range chunk {
			ask := due[owner].ask
			if l.stay != nil {
				ask.HandOver = 0 // a hand-over is a grant
			}
			ask.Least, _ = l.least()
			cmds = append(cmds, l.proof.Call(n.d.opts.format().Release, due[owner].lock, format.ReleaseArgs(&ask)...))
		}
		replies, err := l.Do(ctx, cmds...)
		if err != nil {
			break
		}
		for i, owner := range chunk {
			if reply := replies[len(n.d.opts.format().Loads())+i]; !resp.Says(reply, "NOSCRIPT") && !resp.Says(reply, "UNADMITTED") && settled(reply) {
				delete(due, owner)
			}
		}
	}
	n.d.set.inherit(n, due)
}

// mend is server.Mend for a connection to addr. A server that has answered speaks what this client does: that it resets a
// connection later has another reason.
func (n *node) mend(addr string, err error, secure bool) error {
	n.mu.Lock()
	known := n.server == addr
	n.mu.Unlock()
	if known && !secure && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)) {
		return err
	}
	return server.Mend(err, secure)
}

// checked notes what the check of a new connection has found.
func (n *node) checked(rep report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mute, n.ordered = rep.Mute, rep.ordered
	n.moved = n.server != "" && n.server != rep.server
	n.server = rep.server
	n.blemish(rep)
}

// blemish notes the defects of the node, and those that are news. The caller holds mu.
func (n *node) blemish(rep report) {
	n.defect = nil
	all := make(map[string]error)
	maps.Copy(all, rep.warns)
	maps.Copy(all, rep.defects)
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		err := all[kind]
		if n.defect == nil {
			n.defect = err
		} else {
			n.defect = fmt.Errorf("%w; %w", n.defect, err)
		}
		if !n.warned[kind] {
			n.warned[kind] = true
			n.news = append(n.news, err)
		}
	}
}

// warn logs each defect once.
func (n *node) warn() {
	n.mu.Lock()
	news, moved, server := n.news, n.moved, n.server
	n.news, n.moved = nil, false
	n.mu.Unlock()
	if moved {
		n.d.opts.Logger.Info("node has moved to another server", "node", n.addr, "server", server)
	}
	for _, err := range news {
		n.d.opts.Logger.Warn("node has a defect", "node", n.addr, "defect", err.Error())
	}
}

// why is the reason why the node is down, or was until now.
func (n *node) why() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

func (n *node) event() driver.NodeEvent {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ill, l := driver.NodeEvent{Node: n.addr, State: driver.NodeUp, RoundTrip: time.Duration(n.trip.Load())}, n.ill.Load(), n.link.Load()
	switch {
	case l == nil || l.stay != nil:
		e.State, e.Err, e.RoundTrip = driver.NodeDown, n.err, 0
	case n.stalled.Load():
		e.State, e.Err = driver.NodeStalled, link.ErrStalled
	case n.mute != nil || n.deaf != nil:
		e.State, e.Err = driver.NodePolling, cmp.Or(n.mute, n.deaf)
	case ill != nil:
		e.State, e.Err = driver.NodeDegraded, *ill
	case n.defect != nil:
		e.State, e.Err = driver.NodeDegraded, n.defect
	}
	return e
}

// note checks whether the node refuses to store anything, for instance because its
// memory is full. The defect stands until the node grants a lock again, or its
// connection ends.
func (n *node) note(asked quorum.AskKind, v resp.Value) {
	switch {
	case v.IsError() && slices.Contains([]string{"OOM", "MISCONF", "NOREPLICAS"}, format.Code(v.Text)):
		err := server.Mend(v.Err(), false)
		n.ill.Store(&err)
	case asked == quorum.AskAcquire && v.Kind == ':' && n.ill.Load() != nil:
		n.ill.Store(nil)
	}
}

// cause is the text of err without the parts that change from one attempt to the
// next: the port of a connection, and how long a quarantine still takes.
func cause(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op + " " + op.Err.Error()
	}
	if _, ok := errors.AsType[*member.QuarantineError](err); ok {
		return "quarantine"
	}
	return fmt.Sprint(err)
}

// drain waits until what was sent is answered, for at most a second. It also waits
// for a node that seems silent, because on a busy machine every node does, and a
// release that is not sent leaves its lock for a TTL.
func (n *node) drain() {
	l := n.link.Load()
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(n.d.ctx, pace.AskTime())
	defer cancel()
	l.Do(ctx, []string{"PING"})
}

// wait blocks for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
