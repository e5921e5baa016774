// Package postgres keeps locks in a table of a PostgreSQL database. It is for programs that have such a database
// anyway, and above all for programs whose locks guard rows in it.
//
// # What is not promised
//
// A lease does not exclude a holder that is suspended for longer than its TTL and then continues without a check.
// Fencing tokens do. For work inside the same database, [FenceTx] does too, without tokens.
//
// The locks are as durable as the database. If it fails over to a replica that lags, the newest grants are lost: two
// clients may hold a lock until the older lease expires. Use synchronous replication, or expect that. Tokens still
// rise, because they follow the clock, unless the clock of the new server is behind by more than the failover took.
//
// Leases expire by the server's clock. If the clock jumps forward, leases expire early, while their holders still
// trust them. If it jumps back, the next holder waits longer.
//
// # How it works
//
// Each lock has a row. A free lock keeps its row, because the row has the token. Each operation is one statement in a
// transaction of its own, so any pool of connections works, and so does a pooler in transaction mode. The statements
// lock the row, so all changes of one lock have an order. They read clock_timestamp(). All may be repeated: if a
// statement gets no answer, the same owner sends it again.
//
//	asking ───────────────── free ──────────────────> granted
//	  │ ▲                                                ▲  ▲
//	  │ └─ no answer, poll                               │  │
//	  │ denied              through, and the row is free │  │
//	  ├───────> turnstile ───────────────────────────────┘  │
//	  │             │ 0.9 s, or through and denied          │ confirms in time
//	  │             ▼                                       │
//	  └───────> waiting ─── first, by a release ───> handed over
//
// A client that finds a lock held blocks in the lock's turnstile: an advisory lock, on a separate connection. A release
// frees the row and the turnstile in one statement. Then the next waiter's statement, which the server has already,
// takes the row. Only the row decides who has the lock. If a turnstile is lost, if two clients have it, or if an idle
// session holds it, that costs a poll.
//
// A waiter gets a ticket after 50 ms. After 0.9 s it leaves the turnstile, and waits for a notification or polls: a
// blocked statement has a snapshot, which holds back vacuum. A waiter without a connection to block on, behind a pooler
// or beyond Options.MaxWaitConns, does both at once. Waiters with a ticket come before those without one, in the order
// of their tickets. A release hands the lock to the oldest ticket, in the same statement, and notifies its client. The
// client sends one more request, and so takes the lock for its whole TTL. If that client blocks at the turnstile, the
// lock is kept for the waiter that passes the turnstile next. A ticket expires unless its client polls; a lock that was
// handed to a dead client expires too. Notifications are a hint: a client that cannot LISTEN, or whose connection is
// down, polls more often.
//
// When a caller gives up, the driver releases in the background what its claim may have taken. If a statement got no
// answer, the release also marks the owner as gone. If the server executes the statement later, the statement finds the
// mark and takes nothing.
//
// # Late statements
//
// The server may execute a statement after its client and its connection have ended, and after later statements. No
// such statement ends a lock that its holder trusts, or revives a lease that is over:
//
//	acquire, adopt   take a lock that is free or was named; if repeated, they set the later of two ends
//	enter            acquires; its caller waits until it ends, or marks its owner as gone
//	renew            compares owner and time, and sets the later of two ends
//	release, leave   compare the owner; an owner that is gone stays gone for ten minutes
//	release, kept    leaves an owner that no grant has: no statement renews or adopts it
//	force            compares the token of one grant
//
// A holder's trust in a grant counts from before its statement was sent.
package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	minTTL = 100 * time.Millisecond
)

// Options configure a Driver. The zero value works.
type Options struct {
	// Schema names the schema of the tables and functions; see Driver.Migrate. Default "holdfast".
	Schema string
	// NoListen turns off the connection on which the driver LISTENs for hand-overs and force-releases. Waiters
	// then poll, and a holder learns at its next renewal that its lock was taken away, by whom and why.
	NoListen bool
	// MaxWaitConns bounds the connections beside the pool on which waiters block, for at most a second each, so
	// that a short wait ends with the release. All other waiters wait for a notification. The driver closes these
	// connections when nobody has waited for some seconds. 0: four; below 0: none, as with NoListen.
	MaxWaitConns int
	// NoCheck skips the first statement, so that a driver can be opened even for a database that has no tables
	// yet or rejects this client: for Migrate, Limits and Diagnose.
	NoCheck bool

	secrets []string // files that the URL names
}

// Driver keeps locks in one database. It is safe for concurrent use.
type Driver struct {
	pool     *pgxpool.Pool
	secrets  []string // files
	ours     bool     // Close closes the pool
	noListen bool
	node     string
	schema   schema
	owners   *driverkit.Owners // the client's name is also its channel
	checked  atomic.Bool       // the schema is of our version
	straight atomic.Bool       // no pooler before the server: statements can be prepared

	answered atomic.Int64  // time of the last answer to a statement, in ns since 1970
	replaced atomic.Int64  // time of the last replacement of all connections
	backend  atomic.Uint32 // server process of the last used connection of the pool; 0: none was used

	calls     *driverkit.Calls
	states    *driverkit.States // state of the one node
	lane      *driverkit.Lane   // turns for the statements of claims and releases
	waitConns waitConns
	reserve   *reserve

	mu      sync.Mutex                 // guards the fields below
	doubted map[string]bool            // owners of locks with a statement that got no answer
	held    map[string]string          // keys of held locks, by owner, to check for missed force-releases
	waiting map[string]chan<- struct{} // by owner: wakes the claim whose turn has come
	channel *string                    // channel on which the driver listens; nil: none
	tuned   chan struct{}              // closed when channel changes
	listens bool                       // the listening goroutine was started
	hangUp  context.CancelFunc         // closes the listening connection; the driver opens another
	alert   func(owner, why string)

	passages map[string]heldTurnstile // by owner: turnstiles that holders of this client keep
	crowded  map[string]time.Time     // by name: last time that others were at its turnstile
}

func newDriver(pool *pgxpool.Pool, opts *Options) (*Driver, error) {
	s, err := newSchema(opts.Schema)
	if err != nil {
		return nil, err
	}
	cc := pool.Config().ConnConfig
	if err := checkHosts(&cc.Config); err != nil {
		return nil, err
	}
	node := net.JoinHostPort(cc.Host, strconv.Itoa(int(cc.Port)))
	d := &Driver{
		pool: pool, secrets: opts.secrets, schema: s, owners: driverkit.NewOwners(), noListen: opts.NoListen, listens: opts.NoListen, hangUp: func() {}, node: node,
		calls: driverkit.NewCalls(), states: driverkit.NewStates(node),
		doubted: make(map[string]bool), held: make(map[string]string), waiting: make(map[string]chan<- struct{}), tuned: make(chan struct{}),
	}
	d.reserve = newReserve()
	d.passages, d.crowded = make(map[string]heldTurnstile), make(map[string]time.Time)
	if !opts.NoListen {
		d.waitConns.max = max(cmp.Or(opts.MaxWaitConns, defaultWaitConns), 0)
	}
	d.lane = driverkit.NewLane(d.states, int(pool.Config().MaxConns)-1) // one connection is left for renewals
	d.calls.Go(d.watchDatabase)
	return d, nil
}

// Limits implements driver.Driver.
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: minTTL, Token: true, Order: true, MinHold: true, ChangeTTL: true}
}

// Close implements driver.Driver.
func (d *Driver) Close() error {
	if !d.calls.Close() {
		return nil
	}
	d.closeWaitConns()
	d.reserve.turn <- struct{}{} // waits for the statement that uses the reserve
	d.reserve.close()
	d.reserve.passTurn()
	if !d.ours {
		return nil
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		d.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(pace.CloseTime()): // with hanging connections, closing the pool takes 15 s
	}
	return nil
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if err := d.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.calls.Leave()
	c := d.newClaim(req)
	defer c.leave()
	return c.noteResult(c.acquireLock(ctx))
}

// Renew implements driver.Driver. It retries until ctx ends.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	if err := d.calls.Enter(); err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	defer d.calls.Leave()
	if len(grants) == 0 {
		return out
	}
	shortest := slices.MinFunc(grants, func(a, b driver.Grant) int { return cmp.Compare(a.TTL, b.TTL) }).TTL
	ctx, cancel := context.WithTimeout(ctx, shortest)
	defer cancel()
	names, owners, ttls := make([]string, len(grants)), make([]string, len(grants)), make([]int64, len(grants))
	for i, g := range grants {
		names[i], owners[i], ttls[i] = g.Key, g.Owner, driverkit.ToMicros(g.TTL)
	}
	var r reply[renewedRow]
	var full error // disk or memory is full: report it now; the client retries while trust lasts
	again := false
	err := driverkit.RetryUnanswered(ctx, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(shortest, pace.Alone))
		defer cancel()
		r, err = queryVital(ctx, d, shortest, again, pgx.RowToStructByPos[renewedRow], d.schema.renew, names, owners, ttls)
		again = true
		if errorCode(err) == noRoom {
			full = err
			return nil
		}
		return err
	})
	err = cmp.Or(err, full)
	waiters := make(map[string]int, len(r.rows))
	for _, row := range r.rows {
		waiters[row.Name] = row.Waiters
	}
	var lostNames, lostOwners []string
	for i, g := range grants {
		n, found := waiters[g.Key]
		switch {
		case err != nil:
			out[i].Err = err
		case !found:
			out[i].Err = driver.ErrLost
			lostNames, lostOwners = append(lostNames, g.Key), append(lostOwners, g.Owner)
		default:
			out[i] = driver.Renewal{TrustedUntil: driverkit.TrustEnd(r.sent, g.TTL), Waiters: n}
		}
	}
	if len(lostNames) > 0 { // before the loss is returned: the client asks for no reason afterwards
		ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(0, pace.Alone))
		defer cancel()
		d.alertForced(ctx, lostNames, lostOwners)
	}
	return out
}

// renewedRow is a row about a lock that the server has renewed.
type renewedRow struct {
	Name    string
	Waiters int
}

// Release implements driver.Driver. It repeats the release, if need be in the background, until the release is
// confirmed or the lock has expired.
func (d *Driver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	d.forgetHold(g.Owner)
	return d.calls.FinishRelease(ctx, d.states, d.lane, func(begun func()) error { return d.repeatRelease(g, keep, begun) })
}

// keepDetached replaces the MinHold of a release: the owner gives up the lock without releasing it.
const keepDetached = time.Duration(-1)

// freeLock sends one release of g.
func (d *Driver) freeLock(ctx context.Context, g driver.Grant, keep time.Duration) error {
	bury := d.hasLateStatement(g.Owner)
	sql, args := d.schema.free, []any{g.Key, g.Owner}
	switch {
	case keep == keepDetached:
		sql, args = d.schema.release, append(args, -1, bury)
	case keep > 0 || bury:
		sql, args = d.schema.release, append(args, driverkit.ToMicros(keep), bury)
	}
	_, err := queryRows(ctx, d, pgx.RowTo[any], sql, args...)
	if err == nil && bury {
		d.noteDoubt(g.Owner, false)
	}
	return err
}

// repeatRelease repeats a release in its lane until it is confirmed or the lock has expired. It calls begun at
// each turn.
func (d *Driver) repeatRelease(g driver.Grant, keep time.Duration, begun func()) error {
	ctx, cancel := context.WithTimeout(d.calls.Work, max(g.TTL, keep))
	defer cancel()
	if conn := d.takeTurnstile(g.Owner); conn != nil {
		if begun(); d.releaseAtTurnstile(ctx, conn, g, keep) {
			return nil
		}
	}
	err := d.lane.RetryUnanswered(ctx, begun, func() error {
		ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(g.TTL, pace.Alone))
		defer cancel()
		return d.freeLock(ctx, g, keep)
	})
	if err != nil {
		d.noteDoubt(g.Owner, false) // nobody reads it again
	}
	return err
}

// noteDoubt records whether owner, which has a lock or releases it, has sent a statement that may be executed
// late.
func (d *Driver) noteDoubt(owner string, doubt bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if doubt {
		d.doubted[owner] = true
	} else {
		delete(d.doubted, owner)
	}
}

// hasLateStatement reports whether owner has sent a statement that may be executed late.
func (d *Driver) hasLateStatement(owner string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.doubted[owner]
}

// Detach implements driver.Adopter. It does not block. If a statement of the owner may be executed late,
// Detach marks the owner as gone in the background, until the lock expires.
func (d *Driver) Detach(g driver.Grant) {
	d.forgetHold(g.Owner)
	if !d.hasLateStatement(g.Owner) || d.calls.Enter() != nil {
		return
	}
	defer d.calls.Leave()
	d.calls.Go(func() { d.repeatRelease(g, keepDetached, func() {}) })
}

// Adopt implements driver.Adopter.
func (d *Driver) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	if err := d.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.calls.Leave()
	if !driver.IsAdoptable(g.Owner) { // nor is the owner of a kept lock
		return driver.Grant{}, fmt.Errorf("%w: it was not acquired to be adopted", driver.ErrInvalid)
	}
	c := d.newClaim(driver.Request{Key: g.Key, TTL: g.TTL, Adoptable: true})
	defer c.leave()
	c.from = g.Owner
	ctx, cancel := context.WithTimeout(ctx, g.TTL)
	defer cancel()
	return c.noteResult(c.acquireLock(ctx))
}

// Force implements driver.Forcer.
func (d *Driver) Force(ctx context.Context, key string, token int64, reason string) (bool, error) {
	st, err := d.Inspect(ctx, key)
	if err != nil {
		return false, err
	}
	ok, err := queryOne(ctx, d, pgx.RowTo[bool], d.schema.force, key, token)
	if ok && err == nil && st.Owner != "" && !st.Kept {
		channel, _, _ := strings.Cut(st.Owner, ".")
		queryOne(ctx, d, pgx.RowTo[any], d.schema.tell, key, st.Owner, reason, channel, st.Owner+forcedMark+reason) // only a hint, so its error is ignored
	}
	return ok, err
}

// forcedMark separates the owner from the reason in the notification of a force-release.
const forcedMark = " forced "

// Alert implements driver.Alerter. The driver begins to listen at its first grant or first wait. Once it
// listens, it checks whether a lock that it was granted before was force-released meanwhile.
func (d *Driver) Alert(fn func(owner, reason string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alert = fn
}

// Check implements driver.Checker.
func (d *Driver) Check(ctx context.Context, g driver.Grant) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	r, err := queryVital(ctx, d, g.TTL, false, pgx.RowTo[bool], d.schema.check, g.Key, g.Owner)
	switch {
	case err != nil:
		return err
	case len(r.rows) == 0:
		return d.unavailableError(errNoRow)
	case !r.rows[0]:
		return driver.ErrLost
	}
	return nil
}

// holder decodes a client's description of itself. Text that it cannot decode gives a zero holder, so that one
// bad row hides no other.
type holder driver.Holder

// ScanText implements pgtype.TextScanner.
func (h *holder) ScanText(text pgtype.Text) error {
	if err := json.Unmarshal([]byte(text.String), (*driver.Holder)(h)); err != nil {
		*h = holder{}
	}
	return nil
}

// lockView is a row of Inspect and List.
type lockView struct {
	Name    string
	Owner   *string // nil: the lock is free
	Holder  holder
	Token   int64
	Since   int64 // µs since 1970, by the server's clock: each look returns the same value
	Left    int64 // µs
	Waiters int
}

func (d *Driver) lockStatus(v lockView) driver.Status {
	st := driver.Status{Key: v.Name, Waiters: v.Waiters}
	if v.Owner != nil {
		st.Held, st.Owner, st.Token, st.Remaining = true, *v.Owner, v.Token, driverkit.FromMicros(v.Left)
		st.Since = time.UnixMicro(v.Since)
		if st.Kept = driverkit.IsMinHoldID(st.Owner); st.Kept {
			st.Token = 0
		}
	}
	st.Holder = driver.Holder(v.Holder)
	st.Nodes = []driver.NodeView{{Node: d.node, Owner: st.Owner, Token: st.Token, Remaining: st.Remaining, Waiters: st.Waiters}}
	return st
}

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Status, error) {
	v, err := queryOne(ctx, d, pgx.RowToStructByPos[lockView], d.schema.inspect, key)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return d.lockStatus(lockView{Name: key}), nil
	case err != nil:
		return driver.Status{Key: key, Nodes: []driver.NodeView{{Node: d.node, Err: err}}}, err
	}
	return d.lockStatus(v), nil
}

// List implements driver.Lister.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	r, err := queryRows(ctx, d, pgx.RowToStructByPos[lockView], d.schema.list, prefix)
	for _, v := range r.rows {
		if !yield(d.lockStatus(v)) {
			return nil
		}
	}
	return err
}
