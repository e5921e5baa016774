// Package engine adds time, randomness, owner ids and transport to the protocol core of
// package quorum. It decides nothing about votes, tokens, validity or the queue. Packages
// memory and redis are two kinds of nodes under one engine.
//
// The path of an Acquire to a server, file by file:
//
//	acquire.go               Client.Acquire
//	internal/holder          call.go: Call.Acquire (its turn in this process), askService
//	redis/redis.go           Driver.Acquire, the driver.Driver of the client
//	calls.go                 Calls.Acquire, which describes the holder in the error
//	engine.go                Engine.Acquire makes a claim, which takes its turn (lane.go), and posts the event Start
//	claim.go                 post calls step (Claim.Step, and addRequest for each of its Asks), then Send of each node
//	redis/node.go            Send, sendEntry: over the present connection, if internal/session lets it pass
//	redis/cluster.go         or Send of a Cluster: to the shard of the name, by sendEntry of its node
//	redis/internal/link      write.go: Send, writeBatch, loadBatch, which has format encode the request
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
	// Name returns the name of the node in errors and events.
	Name() string
	// Send passes r on and returns at once. The node answers r exactly once, from any goroutine. It executes
	// requests of one lock in the order in which they were sent.
	Send(r *Request)
	// Subscribe makes the node pass wake-ups to Engine.Wake, at once or later, and call
	// Engine.SetSubscribed whenever wake-ups begin or cease to arrive. It does not block and is
	// called once.
	Subscribe()
}

// Config configures an Engine.
type Config struct {
	Nodes []Node // 1 to quorum.MaxNodes
	// Keys returns the keys of a lock on the nodes; nil: the nodes need only its name.
	Keys func(name string) Lock
	// Shared reports that other programs use these locks too, without queue and wake-ups.
	Shared bool
	// Lane returns the lane of a lock; nil: one lane for all locks. It is for nodes that do not answer all
	// locks equally fast.
	Lane func(Lock) *Lane
	// NoteTime is the shortest time for which nodes keep a note about the owner of a forced or adopted lock: see
	// quorum.NoteTime. 0: as long as the owner's lock lasts, which is enough for a single node.
	NoteTime time.Duration
	// Client is the first part of every owner id. Default quorum.NewClient().
	Client string
}

// Engine acquires, renews and releases locks over a fixed set of nodes.
type Engine struct {
	nodes  []Node
	keys   func(string) Lock
	client string
	noted  time.Duration
	clock  *pace.Clock
	yields *yieldTable // nil: only clients of this protocol use the locks
	lane   func(Lock) *Lane
	seq    atomic.Int64

	requestPool sync.Pool // of *Request

	subscribed       atomic.Uint32 // quorum.Set of the nodes whose wake-ups arrive
	askedToSubscribe atomic.Bool

	mu     sync.Mutex        // guards the fields below
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
		nodes: cfg.Nodes, keys: cfg.Keys, client: cmp.Or(cfg.Client, quorum.NewClient()), noted: cfg.NoteTime, clock: pace.NewClock(),
		lane: cfg.Lane, claims: make(map[string]*claim), closing: make(chan struct{}),
	}
	if e.lane == nil {
		all := new(Lane)
		e.lane = func(Lock) *Lane { return all }
	}
	if cfg.Shared {
		e.yields = new(yieldTable)
	}
	return e
}

// Client returns the first part of every owner id of this engine.
func (e *Engine) Client() string { return e.client }

// NoteTime returns Config.NoteTime.
func (e *Engine) NoteTime() time.Duration { return e.noted }

// Now returns the engine's time, in the unit of Request.Deadline.
func (e *Engine) Now() int64 { return e.clock.Now() }

// nextOwner returns a new owner id for c.
func (e *Engine) nextOwner(c *claim, now time.Time) string {
	for {
		last := e.seq.Load()
		next := max(last+1, now.UnixMicro())
		if !e.seq.CompareAndSwap(last, next) {
			continue
		}
		owner := quorum.NewOwner(e.client, next, c.note)
		if c.adoptable {
			owner = driver.MarkAdoptable(owner)
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

// register adds c under owner, so that wake-ups and later calls find it.
func (e *Engine) register(owner string, c *claim) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return driver.ErrClosed
	}
	c.owner = owner
	e.claims[owner] = c
	return nil
}

// renameClaim registers c under a new id in place of owner, unless c is forgotten. The caller holds c.mu.
func (e *Engine) renameClaim(c *claim, owner string) string {
	fresh := e.nextOwner(c, time.Now())
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.claims, owner)
	if !e.closed && !c.forgotten {
		e.claims[fresh] = c
	}
	return fresh
}

func (e *Engine) findClaim(owner string) *claim {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.claims[owner]
}

// forget unregisters c.
func (e *Engine) forget(c *claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten = true // otherwise an event in its inbox could register it again
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.claims[c.owner] == c {
		delete(e.claims, c.owner)
	}
}

// Acquire acquires a lock; see driver.Driver.
func (e *Engine) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if e.yields != nil && !req.NoWait {
		e.yields.awaitYield(ctx, req.Key)
	}
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	arrived, lock, patience := time.Now(), e.keys(req.Key), time.Duration(0)
	if req.NoWait {
		patience = time.Duration(quorum.RequestTimeout(int64(req.TTL)))
	}
	lane := e.lane(lock)
	if err := e.enterLane(ctx, lane, patience); err != nil {
		return driver.Grant{}, err
	}
	c := e.newClaim(lock, lane, req.TTL)
	c.note, c.adoptable, c.rounds = req.Holder.Note, req.Adoptable, 1
	if !req.NoWait {
		c.state.Stamp, c.state.Renews, c.onObstacle = arrived.UnixMicro(), req.WillRenew, req.OnObstacle
	}
	if err := e.register(e.nextOwner(c, time.Now()), c); err != nil {
		lane.endRound(roundExit{})
		return driver.Grant{}, err
	}
	if c.onObstacle != nil {
		defer c.endReports()
	}
	done := make(chan quorum.Outcome, 1)
	c.postCall(quorum.Event{Kind: quorum.Start}, func(o quorum.Outcome) { done <- o })
	select {
	case o := <-done:
		if o == quorum.Won {
			if grant, ok := c.currentGrant(); ok {
				return grant, nil
			}
			o = quorum.Lost // the lease ended before this goroutine ran
		}
		e.forget(c)
		return driver.Grant{}, c.acquireError(o)
	case <-ctx.Done():
		err := c.cancelError(ctx.Err())
		lane.Withdraw(&c.turn)
		// The claim may have won meanwhile: the release covers both cases.
		c.releaseInTurn(0, nil)
		c.flush()
		e.forget(c)
		return driver.Grant{}, err
	}
}

// currentGrant returns the grant of a held lock; ok is false when the lock is no longer held.
func (c *claim) currentGrant() (g driver.Grant, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return driver.Grant{
		Key: c.lock.Name, Owner: c.owner, Token: c.state.Token, Block: quorum.Block,
		TTL: time.Duration(c.state.TTL), TrustedUntil: c.trustedUntil(),
	}, c.state.Phase == quorum.Held
}

// trustedUntil returns the end of trust as a time with both clock readings, which callers compare with their
// clocks. The caller holds mu.
func (c *claim) trustedUntil() time.Time {
	now := time.Now()
	return now.Add(time.Duration(c.state.TrustedUntil() - c.engine.clock.At(now)))
}

// renewalBatch collects the outcomes of renewals that travel together.
type renewalBatch struct {
	mu   sync.Mutex // guards the fields below
	out  []driver.Renewal
	left int // number of missing outcomes
	done chan struct{}
}

func (b *renewalBatch) set(i int, r driver.Renewal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out[i] = r
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

// Renew renews locks; see driver.Driver.
func (e *Engine) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	b := &renewalBatch{out: make([]driver.Renewal, len(grants)), left: len(grants), done: make(chan struct{})}
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
		c.postCall(quorum.Event{Kind: quorum.Renew, TTL: int64(g.TTL)}, func(o quorum.Outcome) { b.set(i, c.renewalResult(o)) })
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
			c.post(eventAnswer(quorum.Event{Kind: quorum.Tick}))
		}
	}
	<-b.done // after the Tick each claim reports its outcome
	return b.out
}

func (c *claim) renewalResult(o quorum.Outcome) driver.Renewal {
	switch o {
	case quorum.Renewed:
		c.mu.Lock()
		defer c.mu.Unlock()
		return driver.Renewal{TrustedUntil: c.trustedUntil(), Waiters: c.waiters, AtRisk: c.state.AtRisk}
	case quorum.NotRenewed:
		c.mu.Lock()
		defer c.mu.Unlock()
		return driver.Renewal{TrustedUntil: c.trustedUntil(), AtRisk: c.state.AtRisk, Err: c.unavailableCause()}
	case quorum.None:
		return driver.Renewal{Err: errOvertaken}
	default:
		c.engine.forget(c)
		return driver.Renewal{Err: driver.ErrLost}
	}
}

// Release frees a lock; see driver.Driver.
func (e *Engine) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	c := e.claimOf(g)
	if c == nil {
		return nil
	}
	if e.yields != nil && keep == 0 {
		c.yieldToOthers()
	}
	done := make(chan quorum.Outcome, 1)
	defer e.forget(c)
	if begun := c.releaseInTurn(keep, func(o quorum.Outcome) { done <- o }); begun != nil {
		if err := c.awaitTurn(ctx, begun); err != nil && ctx.Err() == nil {
			return err
		}
	}
	select {
	case o := <-done:
		return c.releaseError(o)
	case <-ctx.Done():
	}
	c.flush()
	late := time.NewTimer(releaseGrace)
	defer late.Stop()
	select {
	case o := <-done:
		return c.releaseError(o)
	case <-late.C:
		return ctx.Err()
	}
}

// releaseGrace bounds the time that a release waits for its answer after its context has ended (driver:
// Prompt).
const releaseGrace = 100 * time.Millisecond

func (c *claim) releaseError(o quorum.Outcome) error {
	if o == quorum.Released {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unavailableCause()
}

// Adopt continues a grant of another client; see driver.Adopter.
func (e *Engine) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	switch {
	case quorum.ClientOf(g.Owner) == "": // the lock of another library, or no owner id
		return driver.Grant{}, driver.ErrLost
	case e.findClaim(g.Owner) != nil:
		return driver.Grant{}, errors.New("this client holds that lease itself; detach it first")
	}
	lock := e.keys(g.Key)
	c := e.newClaim(lock, e.lane(lock), g.TTL)
	c.state.Adopts, c.from, c.note, c.adoptable = true, g.Owner, quorum.NoteOf(g.Owner), true
	if err := e.register(e.nextOwner(c, time.Now()), c); err != nil {
		return driver.Grant{}, err
	}
	done := make(chan quorum.Outcome, 1)
	c.postCall(quorum.Event{Kind: quorum.Start}, func(o quorum.Outcome) { done <- o })
	late := time.NewTimer(g.TTL) // after that the first nodes that adopted may have lost the lock
	defer late.Stop()
	var err error
	select {
	case o := <-done:
		if o == quorum.Won {
			if grant, ok := c.currentGrant(); ok {
				return grant, nil
			}
			o = quorum.Lost // the lease ended before this goroutine ran
		}
		err = c.adoptionError(o)
	case <-late.C:
		err = c.adoptionError(quorum.Lost)
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", ctx.Err(), c.adoptionError(quorum.Lost))
	}
	// The claim may be over, and may have won meanwhile: the release covers both cases.
	c.postCall(quorum.Event{Kind: quorum.Release}, nil)
	e.forget(c)
	return driver.Grant{}, err
}

// adoptionError returns the error for an adopting claim that ended with o.
func (c *claim) adoptionError(o quorum.Outcome) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case o == quorum.None: // only Close ends it without an outcome
		return driver.ErrClosed
	case o == quorum.Busy && c.holder == "":
		return fmt.Errorf("%w: nobody has the lock", driver.ErrLost)
	case o == quorum.Busy && quorum.IsMinHoldID(c.holder):
		return fmt.Errorf("%w: its holder has released it, and the lock stays taken for its MinHold", driver.ErrLost)
	case o == quorum.Busy:
		return fmt.Errorf("%w: another client has the lock", driver.ErrLost)
	}
	return fmt.Errorf("too few nodes adopted the lease; they release it, and the other nodes keep it until its TTL ends: %w", c.unavailableCause())
}

// Detach forgets a grant without a release; see driver.Adopter.
func (e *Engine) Detach(g driver.Grant) {
	if c := e.findClaim(g.Owner); c != nil {
		e.forget(c)
	}
}

// claimOf returns the claim that has g, or makes one for a grant that another client has detached. It returns
// nil if the claim is over.
func (e *Engine) claimOf(g driver.Grant) *claim {
	if c := e.findClaim(g.Owner); c != nil {
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

// Wake passes the wake-up w of node to the claim with the id w.Owner. A wake-up for an unknown id needs no
// answer, because the release of that id is in progress. A wake-up with a token must arrive in its place among
// the answers of the node.
func (e *Engine) Wake(node int, w quorum.Wake) {
	if c := e.findClaim(w.Owner); c != nil {
		a := eventAnswer(quorum.Event{Kind: quorum.Woken, Node: node, Token: w.Base, TTL: w.Left * int64(time.Millisecond)})
		a.woken = w.Owner
		c.post(a)
	}
}

// KeyOf returns the key of the lock that owner has or waits for, or "" if owner is no claim of this engine.
func (e *Engine) KeyOf(owner string) string {
	if c := e.findClaim(owner); c != nil {
		return c.lock.Key
	}
	return ""
}

// subscribeOnce asks each node, once, for its wake-ups.
func (e *Engine) subscribeOnce() {
	if e.askedToSubscribe.Load() || e.askedToSubscribe.Swap(true) {
		return
	}
	for _, n := range e.nodes {
		n.Subscribe()
	}
}

// SetSubscribed records whether the wake-ups of node reach this client.
func (e *Engine) SetSubscribed(node int, yes bool) {
	n := uint32(quorum.Only(node))
	if yes == (e.subscribed.Load()&n != 0) {
		return
	}
	if yes {
		e.subscribed.Or(n)
	} else {
		e.subscribed.And(^n)
	}
	// A claim that is not registered yet reads the new set when it starts.
	for _, c := range e.allClaims() {
		c.updateSubscribed(yes)
	}
}

func (e *Engine) allClaims() []*claim {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.claims))
}

// Close ends all waits with ErrClosed. It returns when no call of Request.OnObstacle is running, and the
// releases of all abandoned claims have been handed to the nodes.
func (e *Engine) Close() {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.closing)
	}
	e.mu.Unlock()
	for _, c := range e.allClaims() {
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
		c.postCall(quorum.Event{Kind: quorum.Release}, nil)
		c.flush()
	}
}
