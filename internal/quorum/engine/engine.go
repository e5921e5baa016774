// Package engine gives the protocol core of package quorum what it lacks: time,
// randomness, names for its ids, and a way to send its requests. It decides
// nothing about votes, tokens, validity or the queue. Packages memory and
// redis are two kinds of nodes under one engine.
//
// The way of an Acquire to a server, file by file:
//
//	acquire.go               Client.Acquire
//	internal/holder          call.go: Call.Obtain (its turn in this process), askService
//	redis/redis.go       Driver.Acquire, the driver.Driver of the client
//	calls.go                 Calls.Acquire, which names the holder in what comes back
//	engine.go                Engine.Acquire makes a claim, which takes its turn (lane.go), and posts the event Start
//	claim.go                 post calls step (Claim.Step, and request for each of its Asks), then Send of each node
//	redis/node.go          Send, sendEntry: over the present connection, if internal/session lets it pass
//	redis/cluster.go       or Send of a Cluster: to the shard of the name, by sendEntry of its node
//	redis/internal/link    write.go: Send, write, load, which has format encode the request
//
// The answer comes back by read.go of the link, Answer in redis/connection.go, Deliver in format, Request.Answer, and post again.
//
// Lock order: claim.mu before Engine.mu. Neither is held while a request is sent or
// an outcome reported. The mutex of a Lane is locked alone.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Node carries requests to one node.
type Node interface {
	// Name is how errors and events call the node.
	Name() string
	// Send hands r on and returns at once. The node answers r exactly once,
	// from any goroutine. Requests of one lock are executed in the order sent.
	Send(r *Request)
	// Subscribe lets wake-ups reach Engine.Wake, at once or later, and calls
	// Engine.Hears whenever they begin or cease to. It does not block and is
	// called once.
	Subscribe()
}

// Config configures an Engine.
type Config struct {
	Nodes []Node // 1 to quorum.MaxNodes
	// Keys names a lock's keys on the nodes; nil where names are not needed.
	Keys func(name string) Lock
	// Shared says that others take these locks who know neither queue nor wake-ups.
	Shared bool
	// Lane is where the claims to a lock take their turn; nil: in one for all locks. It is for
	// nodes that do not answer all locks alike.
	Lane func(Lock) *Lane
	// Noted is how long nodes know at least from whom a lock was taken by force or adoption: see quorum.Noted. 0: for as
	// long as the owner had it, which suffices for a node that is the only one.
	Noted time.Duration
	// Client is the first part of every owner id. Default quorum.NewClient().
	Client string
}

// Engine takes, keeps and frees locks over a fixed set of nodes.
type Engine struct {
	nodes  []Node
	keys   func(string) Lock
	client string
	noted  time.Duration
	clock  *pace.Clock
	shared *chances // nil: locks are taken by clients of this protocol alone
	lane   func(Lock) *Lane
	seq    atomic.Int64

	requests sync.Pool // of *Request

	heard      atomic.Uint32 // quorum.Set of the nodes whose wake-ups reach us
	subscribed atomic.Bool

	mu     sync.Mutex        // guards what follows
	claims map[string]*claim // by owner id
	closed bool

	closing chan struct{} // closed once closed is true

	spawned sync.WaitGroup // goroutines of spawn; none begins once closed
}

// New returns an Engine.
func New(cfg Config) *Engine {
	if cfg.Keys == nil {
		cfg.Keys = func(name string) Lock { return Lock{Name: name} }
	}
	e := &Engine{
		nodes: cfg.Nodes, keys: cfg.Keys, client: cmp.Or(cfg.Client, quorum.NewClient()), noted: cfg.Noted, clock: pace.NewClock(),
		lane: cfg.Lane, claims: make(map[string]*claim), closing: make(chan struct{}),
	}
	if e.lane == nil {
		all := new(Lane)
		e.lane = func(Lock) *Lane { return all }
	}
	if cfg.Shared {
		e.shared = new(chances)
	}
	return e
}

// Client is the first part of every owner id of this engine.
func (e *Engine) Client() string { return e.client }

// Noted is that of the Config.
func (e *Engine) Noted() time.Duration { return e.noted }

// Now is the engine's time, in the unit of Request.Deadline.
func (e *Engine) Now() int64 { return e.clock.Now() }

// nextOwner makes an owner id for c that was never used.
func (e *Engine) nextOwner(c *claim, now time.Time) string {
	for {
		last := e.seq.Load()
		next := max(last+1, now.UnixMicro())
		if !e.seq.CompareAndSwap(last, next) {
			continue
		}
		owner := quorum.Owner(e.client, next, c.note)
		if c.adoptable {
			owner = driver.Adoptable(owner)
		}
		return owner
	}
}

func (e *Engine) newClaim(lock Lock, lane *Lane, ttl time.Duration) *claim {
	c := &claim{engine: e, lock: lock, lane: lane}
	c.out, c.inbox, c.errs = c.firstOut[:0], c.firstIn[:0], c.firstErr[:]
	if len(e.nodes) > 1 {
		c.errs = make([]error, len(e.nodes))
	}
	c.state.N, c.state.TTL = int8(len(e.nodes)), int64(ttl)
	return c
}

// add registers c under owner, so that wake-ups and later calls find it.
func (e *Engine) add(owner string, c *claim) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return driver.ErrClosed
	}
	c.owner = owner
	e.claims[owner] = c
	return nil
}

// rename registers c under a fresh id instead of owner, unless c is forgotten.
// The caller holds c.mu.
func (e *Engine) rename(c *claim, owner string) string {
	fresh := e.nextOwner(c, time.Now())
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.claims, owner)
	if !e.closed && !c.gone {
		e.claims[fresh] = c
	}
	return fresh
}

func (e *Engine) find(owner string) *claim {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.claims[owner]
}

// remove forgets c, whatever id it goes by now.
func (e *Engine) remove(c *claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true // an event in its inbox may still rename it
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.claims[c.owner] == c {
		delete(e.claims, c.owner)
	}
}

// Acquire takes the lock; see driver.Driver.
func (e *Engine) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if e.shared != nil && !req.NoWait {
		e.shared.await(ctx, req.Key)
	}
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	came, lock, patience := time.Now(), e.keys(req.Key), time.Duration(0)
	if req.NoWait {
		patience = time.Duration(quorum.RequestTimeout(int64(req.TTL)))
	}
	lane := e.lane(lock)
	if err := e.await(ctx, lane, patience); err != nil {
		return driver.Grant{}, err
	}
	c := e.newClaim(lock, lane, req.TTL)
	c.note, c.adoptable, c.places = req.Holder.Note, req.Adoptable, 1
	if !req.NoWait {
		c.state.Stamp, c.state.Renews, c.report = came.UnixMicro(), req.Renews, req.Obstacle
	}
	if err := e.add(e.nextOwner(c, time.Now()), c); err != nil {
		lane.leave(exit{})
		return driver.Grant{}, err
	}
	if c.report != nil {
		defer c.endReports()
	}
	done := make(chan quorum.Outcome, 1)
	c.begin(quorum.Event{Kind: quorum.Start}, func(o quorum.Outcome) { done <- o })
	select {
	case o := <-done:
		if o == quorum.Won {
			if grant, ok := c.grant(); ok {
				return grant, nil
			}
			o = quorum.Lost // it was over before its outcome was read
		}
		e.remove(c)
		return driver.Grant{}, c.failure(o)
	case <-ctx.Done():
		err := c.gaveUp(ctx.Err())
		lane.Withdraw(&c.turn)
		// The claim may have won meanwhile: releasing covers both.
		c.depart(0, nil)
		c.flush()
		e.remove(c)
		return driver.Grant{}, err
	}
}

// grant describes a held lock; ok is false when it is no longer held.
func (c *claim) grant() (g driver.Grant, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return driver.Grant{
		Key: c.lock.Name, Owner: c.owner, Token: c.state.Token, Block: quorum.Block,
		TTL: time.Duration(c.state.TTL), TrustedUntil: c.trusted(),
	}, c.state.Phase == quorum.Held
}

// trusted is the end of trust with both clock readings, for others to compare
// with theirs. The caller holds mu.
func (c *claim) trusted() time.Time {
	now := time.Now()
	return now.Add(time.Duration(c.state.Trusted() - c.engine.clock.Of(now)))
}

// batch collects the outcomes of renewals that travel together.
type batch struct {
	mu   sync.Mutex // guards what follows
	out  []driver.Renewal
	left int
	done chan struct{}
}

func (b *batch) set(i int, r driver.Renewal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out[i] = r
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

// Renew prolongs locks; see driver.Driver.
func (e *Engine) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	b := &batch{out: make([]driver.Renewal, len(grants)), left: len(grants), done: make(chan struct{})}
	if len(grants) == 0 {
		return nil
	}
	claims := make([]*claim, len(grants))
	var patience int64
	for i, g := range grants {
		c := e.claimOf(g)
		if c == nil {
			b.set(i, driver.Renewal{Err: driver.ErrLost})
			continue
		}
		claims[i] = c
		patience = max(patience, quorum.RequestTimeout(int64(g.TTL)))
		c.begin(quorum.Event{Kind: quorum.Renew, TTL: int64(g.TTL)}, func(o quorum.Outcome) { b.set(i, c.renewal(o)) })
	}
	late := time.NewTimer(time.Duration(patience))
	defer late.Stop()
	select {
	case <-b.done:
		return b.out
	case <-late.C:
	case <-ctx.Done():
	}
	for _, c := range claims {
		if c != nil {
			c.post(event(quorum.Event{Kind: quorum.Tick}))
		}
	}
	<-b.done // each claim has reported its outcome at the latest now
	return b.out
}

func (c *claim) renewal(o quorum.Outcome) driver.Renewal {
	switch o {
	case quorum.Renewed:
		c.mu.Lock()
		defer c.mu.Unlock()
		return driver.Renewal{TrustedUntil: c.trusted(), Waiters: c.waiters, AtRisk: c.state.AtRisk}
	case quorum.NotRenewed:
		c.mu.Lock()
		defer c.mu.Unlock()
		return driver.Renewal{TrustedUntil: c.trusted(), AtRisk: c.state.AtRisk, Err: c.lack()}
	case quorum.None:
		return driver.Renewal{Err: errOvertaken}
	default:
		c.engine.remove(c)
		return driver.Renewal{Err: driver.ErrLost}
	}
}

// Release frees a lock; see driver.Driver.
func (e *Engine) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	c := e.claimOf(g)
	if c == nil {
		return nil
	}
	if e.shared != nil && keep == 0 {
		c.leave()
	}
	done := make(chan quorum.Outcome, 1)
	defer e.remove(c)
	if begun := c.depart(keep, func(o quorum.Outcome) { done <- o }); begun != nil {
		if err := c.awaitTurn(ctx, begun); err != nil && ctx.Err() == nil {
			return err
		}
	}
	select {
	case o := <-done:
		return c.release(o)
	case <-ctx.Done():
	}
	c.flush()
	late := time.NewTimer(moment)
	defer late.Stop()
	select {
	case o := <-done:
		return c.release(o)
	case <-late.C:
		return ctx.Err()
	}
}

// moment is how long a release awaits its answer after the end of its context (driver: Prompt).
const moment = 100 * time.Millisecond

func (c *claim) release(o quorum.Outcome) error {
	if o == quorum.Released {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lack()
}

// Adopt continues a grant of another client; see driver.Adopter.
func (e *Engine) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	switch {
	case quorum.ClientOf(g.Owner) == "": // it is another library's, or no owner id
		return driver.Grant{}, driver.ErrLost
	case e.find(g.Owner) != nil:
		return driver.Grant{}, errors.New("this client holds that lease itself; detach it first")
	}
	lock := e.keys(g.Key)
	c := e.newClaim(lock, e.lane(lock), g.TTL)
	c.state.Adopts, c.from, c.note, c.adoptable = true, g.Owner, quorum.NoteOf(g.Owner), true
	if err := e.add(e.nextOwner(c, time.Now()), c); err != nil {
		return driver.Grant{}, err
	}
	done := make(chan quorum.Outcome, 1)
	c.begin(quorum.Event{Kind: quorum.Start}, func(o quorum.Outcome) { done <- o })
	late := time.NewTimer(g.TTL) // the first nodes that were handed over may have lost it by then
	defer late.Stop()
	var err error
	select {
	case o := <-done:
		if o == quorum.Won {
			if grant, ok := c.grant(); ok {
				return grant, nil
			}
			o = quorum.Lost // it was over before anybody looked
		}
		err = c.adoption(o)
	case <-late.C:
		err = c.adoption(quorum.Lost)
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", ctx.Err(), c.adoption(quorum.Lost))
	}
	// It may be over, and it may have won meanwhile: releasing covers both.
	c.begin(quorum.Event{Kind: quorum.Release}, nil)
	e.remove(c)
	return driver.Grant{}, err
}

// adoption is the error for a claim that adopts and ended with o.
func (c *claim) adoption(o quorum.Outcome) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case o == quorum.None: // only Close overtakes it
		return driver.ErrClosed
	case o == quorum.Busy && c.holder == "":
		return fmt.Errorf("%w: nobody has the lock", driver.ErrLost)
	case o == quorum.Busy && quorum.IsKept(c.holder):
		return fmt.Errorf("%w: its holder has released it, and the lock is kept for its MinHold", driver.ErrLost)
	case o == quorum.Busy:
		return fmt.Errorf("%w: the lock is another's", driver.ErrLost)
	}
	return fmt.Errorf("the nodes that adopted it have released it, the others keep it until its TTL is over: %w", c.lack())
}

// Detach forgets a grant without a release; see driver.Adopter.
func (e *Engine) Detach(g driver.Grant) {
	if c := e.find(g.Owner); c != nil {
		e.remove(c)
	}
}

// claimOf finds the claim that has g, or makes one for a grant that another client has
// detached; nil where it is over.
func (e *Engine) claimOf(g driver.Grant) *claim {
	if c := e.find(g.Owner); c != nil {
		return c
	}
	if client := quorum.ClientOf(g.Owner); client == "" || client == e.client {
		return nil
	}
	lock := e.keys(g.Key)
	c := e.newClaim(lock, e.lane(lock), g.TTL)
	c.state, c.owner = quorum.Detached(len(e.nodes), int64(g.TTL)), g.Owner
	return c
}

// Wake brings the claim with the id w.Owner the news that node has handed it
// the lock. A wake-up for an id that is gone needs no answer: its release is on
// the way. It comes in its place among the answers of the node, or without a
// token.
func (e *Engine) Wake(node int, w quorum.Wake) {
	if c := e.find(w.Owner); c != nil {
		a := event(quorum.Event{Kind: quorum.Woken, Node: node, Token: w.Base, TTL: w.Left * int64(time.Millisecond)})
		a.woken = w.Owner
		c.post(a)
	}
}

// KeyOf is the key of the lock that owner has or wants; "" where owner is none of this
// engine's.
func (e *Engine) KeyOf(owner string) string {
	if c := e.find(owner); c != nil {
		return c.lock.Key
	}
	return ""
}

// subscribe asks every node, once, for its wake-ups.
func (e *Engine) subscribe() {
	if e.subscribed.Load() || e.subscribed.Swap(true) {
		return
	}
	for _, n := range e.nodes {
		n.Subscribe()
	}
}

// Hears says whether node's wake-ups reach this client.
func (e *Engine) Hears(node int, yes bool) {
	n := uint32(quorum.Only(node))
	if yes == (e.heard.Load()&n != 0) {
		return
	}
	if yes {
		e.heard.Or(n)
	} else {
		e.heard.And(^n)
	}
	// A claim that is not in the map yet reads the new set when it starts.
	for _, c := range e.all() {
		c.hears(yes)
	}
}

func (e *Engine) all() []*claim {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.claims))
}

// Close ends all waits with ErrClosed, and returns when no Request.Obstacle is
// under way. The releases of those who waited, and of all that was given up before,
// have been handed to the nodes by then, which send them.
func (e *Engine) Close() {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.closing)
	}
	e.mu.Unlock()
	for _, c := range e.all() {
		c.abandon()
	}
	e.spawned.Wait()
}

// abandon releases a claim that still seeks, and ends the wait of its caller.
func (c *claim) abandon() {
	c.mu.Lock()
	seeking := c.state.Phase == quorum.Seeking
	c.mu.Unlock()
	if seeking {
		c.begin(quorum.Event{Kind: quorum.Release}, nil)
		c.flush()
	}
}
