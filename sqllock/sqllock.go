// Package sqllock keeps locks in tables of a database, over database/sql: SQLite, MySQL and MariaDB, by whatever driver a program has
// for it. Package sqllock/sqlite opens a file that the processes of one machine share, with no server at all, and package
// sqllock/mysql a server by its URL. For PostgreSQL take package postgres.
//
// # What is not promised
//
// No lease excludes a holder that was stopped for longer than its TTL and goes on without looking; fencing tokens do. Package
// fence/sqlfence checks them in the transaction that writes.
//
// The locks are as durable as the database. Where it fails over to a replica that lags, the newest grants are lost: two may hold a
// lock until the older lease is over. Tokens rise all the same, as they follow the clock, unless the new server's clock is behind by
// more than the failover took.
//
// The database's clock ends leases: that of the server or, for SQLite, that of the machine. If it is set forward, leases end early,
// while their holders still trust them; if it is set back, the next holder waits longer.
//
// Waiters queue on MySQL and MariaDB (see below). Others poll, every 5 ms at first on SQLite and every 20 ms on a server, less often
// if others are before them, or if the holder has had the lock for long. No holder learns at once that its lock was taken away: it
// finds out at its next renewal. Package sqlite wakes waiters and holders by a datagram on Linux.
//
// # How it works
//
// A lock is a row that stays when the lock is free, as it has the token. Every change is one UPDATE, in a transaction of its own, that
// compares and sets: it names the stamp of the row that the client has read, and sets another. A lock that is free and that nobody waits
// for takes one statement on MySQL and MariaDB, which return the token with the answer: an INSERT for a name that the client does not
// know, or an UPDATE that names how many places in the queue were given. Between two statements nothing is
// locked, so a client that dies, hangs or is cut off holds up nobody, any pool of connections will do, of one connection too, and so
// does any level of isolation.
//
//	         denied               first in the queue, by a release
//	asking ─────────> waiting ─────────────────────────────> handed over
//	  │ ▲ └─────────────┘ poll                                     │ confirms
//	  │ └─ another was faster                                      ▼
//	  └──────────────────────── free ────────────────────────> granted
//
// Those who wait have a ticket each, with a place. A release hands the lock to the first ticket. That waiter finds this when it asks,
// and confirms it by one more change, for its whole TTL. A ticket lapses unless its client polls, and so does a lock that was handed
// to a client that has died. Who queues up writes its ticket, and then changes the stamp of the lock, so that nobody frees or takes
// the lock by what was read before.
//
// On SQLite, whose statements run in the client's own process, what belongs together is one transaction, and begins with the write lock
// of the file: the look, the ticket and the stamp of a claim that is denied, or the look, the change and the ticket of a release. A lock
// that is free and that nobody waits for is taken, and one that was handed over is confirmed, by one statement. So nobody comes in
// between, and a client that dies in the middle has changed nothing.
//
// Times are integers, µs since 1970, and never a DATETIME: no time zone matters.
//
// # The turnstile
//
// On MySQL and MariaDB a waiter blocks in GET_LOCK, with a name made of that of the lock, on a connection of its own. The server lets in
// one at a time, first come first served. Whoever is let in takes the row, stays inside while it holds the lock, and frees the row and
// GET_LOCK by one statement. So a lock that many want costs three statements: GET_LOCK, an UPDATE that takes the row, an UPDATE that
// frees it. The row alone decides who has the lock; GET_LOCK is a hint and a queue:
//
//	the holder is not inside             it took a free lock without a wait. Who is let in polls the row, the others stay blocked
//	a lock is freed inside               it is left to whoever is let in next for half a second, so that no newcomer overtakes
//	a waiter has waited for 50 ms        it writes a ticket, by which others see and count it. Its look at the row, every 0.8 s or less
//	                                     often, keeps the ticket
//	a waiter has no connection           it polls with a ticket. When that is the first of all tickets, whoever is let in hands the
//	                                     lock to it
//	a lease lapses, or is forced         waiters find out by their looks
//	a connection inside breaks           the server lets in the next, which finds the row held and polls
//	a waiter's connection breaks         it polls for some seconds
//	a session that is idle stays inside  waiters take the lock when they look and it is free, and do without GET_LOCK for some seconds
//	sessions move, GET_LOCK fails,       all waiters of the client poll; its node state is NodePolling, and a doctor tells why
//	several servers take writes
//
// The order of arrival is that of GET_LOCK for those who queue there, and that of tickets for those who poll. A lock that is free and
// reserved for nobody goes to whoever asks, before a waiter that came within the last 50 ms and has no ticket.
//
// # Statements that come late
//
// A statement may be executed after its sender and its connection have gone, and after later ones. Why none of them ends a lock that
// somebody trusts, or revives one that is over:
//
//	acquire, adopt, release, force   change a row only if nothing has happened to it since it was read, and then to what was
//	                                 right at that moment: a grant lapses a TTL after the read
//	acquire, unread                  takes a lock only if it is free, and has given as many places in its queue as the client knew. All
//	                                 that ends a lease counts as a place: force, adoption, the next holder after a lapse, a caller that
//	                                 gives up, and a release after a statement without an answer. A first row is inserted once
//	renew                            compares owner and time, and sets the later of two ends and a stamp that no row has had; a lock
//	                                 that came back to its owner by a late ticket has another token
//	renew, unread                    compares the stamp that the client knows and time, and sets the same. It finds nothing once anything
//	                                 has happened to the lock, also if it is carried out twice
//	acquire, inside                  as acquire, unread
//	release, inside                  names owner and token, so that it frees this one grant. Its RELEASE_LOCK is that of its session
//	queue                            a ticket has an end that was set when its client read the lock
//
// On SQLite no statement outlives the call that runs it. But a process may be stopped after it has read the clock and before the file
// is its own, and go on much later:
//
//	acquire          finds the lock as it is now, and takes it by the old time: less has lapsed by that, and the grant ends a TTL after
//	                 it, which may be over. Its caller counts from before, and does not trust it
//	release, force   end what the owner or the token names, and nothing else, at any time. A waiter is handed the lock until a time
//	                 that may be over: the next that asks passes it on
//	renew            compares owner and token, and the end with the old time. It may lengthen a lease that has lapsed and that nobody
//	                 has taken since, by no more than its holder may count on
//	queue            a ticket ends by the old time
//
// A process that is stopped within a transaction keeps all others from writing until it goes on or ends. Nothing has changed by then.
//
// A caller that gives up has what it may have taken released in the background, after a change of the stamp: what it has sent before
// finds another one, and changes nothing. Trust in a grant is counted from before the lock was read.
package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	minTTL = 100 * time.Millisecond
	// watchEvery is how often an idle driver asks the database whether it is there.
	watchEvery = 5 * time.Second
	// batch is how many locks one statement renews.
	batch = 100
)

// Options configure a Driver. The zero value works.
type Options struct {
	// Prefix is what the names of the tables begin with; a schema, or on MySQL a database, may stand before it: "locks.holdfast_".
	// Default "holdfast_".
	Prefix string
	// NoCheck leaves out the first statement, so that there is a driver also for a database that has no tables yet or
	// refuses this client: for Migrate, Limits and Diagnose.
	NoCheck bool
	// Node is what events and errors call the database. Default: the name of the dialect.
	Node string
	// RenewDB is another pool for the same database, which stays the caller's. Only renewals use it, so that nothing else keeps a
	// renewal waiting for a connection, and the driver keeps one connection of it open; bound it to three. Default: renewals share db.
	RenewDB *sql.DB
	// WaitConns bounds the connections of the pool on which waiters queue on MySQL and MariaDB; further waiters poll. A connection is in
	// use while its waiter waits, and then while it holds the lock. Default 4, and fewer if the pool has not at least three more; a
	// negative number: all poll.
	WaitConns int
}

// Driver keeps locks in one database. It is safe for concurrent use.
type Driver struct {
	*tables
	db       *sql.DB
	renewDB  *sql.DB     // for renewals; db if they have no pool of their own
	warming  atomic.Bool // renewals are about to get a connection
	prepared *prepared   // nil: statements are not kept
	dialect  Dialect
	node     string
	owners   *driverkit.Owners
	checked  atomic.Bool  // the tables are of our version
	manual   atomic.Bool  // sessions do not commit by themselves
	level    atomic.Int32 // sql.IsolationLevel of each statement; the default: that of the sessions, which almost all databases take

	calls  *driverkit.Calls
	states *driverkit.States // of one node
	lane   *driverkit.Lane   // of what claims and releases send
	bell   bell              // nil: waiters of other clients poll

	ringLost atomic.Pointer[time.Time] // when a ring did not come, last; nil: never

	turnstile *turnstile // nil: waiters poll
	maxEars   int        // of the turnstile

	mu      sync.Mutex        // guards what follows
	waiting map[string]*claim // by owner: of those that wait, or ask for the first time
	grips   map[string]grip   // by owner: of the locks that this client has
	places  map[string]int64  // by key: how many places were given when nobody had one
	passed  string            // the key of the lock that was handed to a waiter last: the next claim finds it taken
	warmed  bool              // renewals have a connection, or had one
}

// grip is what a client knows of a lock that it has.
type grip struct {
	stamp int64 // as last known
	alone bool  // nobody waited then
	doubt bool  // a statement that takes the lock for this owner may come late
	ear   *ear  // which is inside; nil: none is
	since time.Time
}

// maxPlaces bounds for how many keys a client remembers the number of places.
const maxPlaces = 4096

// notePlaces remembers how many places in the queue of a lock were given, if nobody has one, and otherwise forgets it.
func (d *Driver) notePlaces(key string, places int64, nobody bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !nobody {
		delete(d.places, key)
		return
	}
	if d.passed == key {
		d.passed = ""
	}
	if _, known := d.places[key]; !known && len(d.places) >= maxPlaces {
		for other := range d.places { // any: it costs one statement to learn it again
			delete(d.places, other)
			break
		}
	}
	d.places[key] = places
}

// notePassed remembers that the lock was handed to a waiter.
func (d *Driver) notePassed(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passed = key
}

// wasPassed reports whether the lock was handed to a waiter, and was not seen without waiters since.
func (d *Driver) wasPassed(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed == key
}

// knownPlaces returns how many places in the queue of a lock were given when nobody had one.
func (d *Driver) knownPlaces(key string) (places int64, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	places, known = d.places[key]
	return places, known
}

// New returns a driver over db, which stays the caller's; opts may be nil. It asks the database once, for five seconds at most, so
// that what time does not mend is an error here: ErrAuth for a wrong password or missing rights, ErrConfig for missing tables. A
// database that is down is none; calls wait for it or return ErrUnavailable. Wrong arguments are ErrInvalid; with NoCheck there is no
// other error, and New does not block.
//
// Renewals need a connection in time: a pool whose connections the caller may use up, or all of which may break while the database takes
// no new ones, loses leases. Give renewals a pool of their own then (Options.RenewDB).
func New(ctx context.Context, db *sql.DB, dialect Dialect, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	t, err := newTables(dialect, opts.Prefix)
	if err != nil {
		return nil, fmt.Errorf("sqllock: %w", err)
	}
	d := &Driver{
		tables: t, db: db, renewDB: cmp.Or(opts.RenewDB, db), dialect: dialect, node: cmp.Or(opts.Node, t.name), owners: driverkit.NewOwners(), calls: driverkit.NewCalls(),
		waiting: make(map[string]*claim), grips: make(map[string]grip), places: make(map[string]int64),
	}
	d.states = driverkit.NewStates(d.node)
	if dialect == SQLite {
		d.prepared = newPrepared(db)
	}
	room, ears := d.manners.room, cmp.Or(opts.WaitConns, maxEars)
	if most := db.Stats().MaxOpenConnections; most > 0 {
		ears = min(ears, most-3)
		room = min(room, most-max(ears, 0))
		if d.renewDB == db {
			room-- // one is for renewals
		}
	}
	if dialect == MySQL && ears > 0 {
		d.maxEars, d.turnstile = ears, newTurnstile(d, ears)
	}
	d.lane = driverkit.NewLane(d.states, room)
	d.calls.Go(d.watch)
	if opts.NoCheck {
		return d, nil
	}
	return driverkit.Opened(ctx, "sqllock", d, nil, func(ctx context.Context) error {
		err := d.ping(ctx, db)
		if err != nil || dialect != MySQL { // whose protocol many servers speak
			return err
		}
		if err = d.checkExclusion(ctx, true); err != nil {
			return d.unavailable(err)
		}
		return nil
	})
}

// ping asks the database, over a connection of db, whether it is there, and has the tables. Whether their version is
// that of this package is asked once (begin): a program that runs goes on while they are brought up to date.
func (d *Driver) ping(ctx context.Context, db *sql.DB) error {
	return d.runOn(ctx, db, func(q querier) error {
		var v *int
		return q.QueryRowContext(ctx, d.version.text).Scan(&v)
	})
}

// watch asks the database now and then, so that its state is known while nobody calls.
func (d *Driver) watch() {
	for driverkit.Sleep(d.calls.Alive, watchEvery) {
		d.checkNode()
	}
}

// checkNode asks the database whether it is there, and reports the outcome. It does so over a connection for renewals, which so is there
// already when no new one can be opened.
func (d *Driver) checkNode() {
	ctx, cancel := context.WithTimeout(d.calls.Alive, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	sent := time.Now()
	if d.ping(ctx, d.renewDB) == nil {
		d.states.Timed(0, time.Since(sent))
	}
}

// warmRenewals opens a connection for renewals in the background, if they have a pool of their own and that has none, or one that has
// broken. The caller is inside a call.
func (d *Driver) warmRenewals() {
	if d.renewDB == d.db || !d.warming.CompareAndSwap(false, true) {
		return
	}
	d.calls.Go(func() {
		d.checkNode()
		driverkit.Sleep(d.calls.Alive, pace.LongPause) // not for each of many connections that break together
		d.warming.Store(false)
	})
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
	if d.prepared != nil {
		d.prepared.close()
	}
	d.mu.Lock()
	grips := d.grips
	d.grips = nil
	d.mu.Unlock()
	for _, own := range grips { // of leases that were not released
		if own.ear != nil {
			own.ear.discard()
		}
	}
	return nil
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if err := d.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.calls.Leave()
	return d.settle(ctx, d.claim(req))
}

// settle has a claim compete, and clears away what it leaves.
func (d *Driver) settle(ctx context.Context, c *claim) (driver.Grant, error) {
	defer c.leave()
	g, err := c.compete(ctx)
	c.leaveTurnstile()
	if err != nil {
		c.abandon()
	}
	return g, err
}

// Renew implements driver.Driver. It tries again until ctx ends.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	if err := d.calls.Enter(); err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	defer d.calls.Leave()
	together := make(map[time.Duration][]int)
	for i, g := range grants {
		together[g.TTL] = append(together[g.TTL], i)
	}
	for _, ttl := range slices.Sorted(maps.Keys(together)) { // those that lapse first come first
		for some := range slices.Chunk(together[ttl], batch) {
			d.renewTogether(ctx, ttl, grants, some, out)
		}
	}
	return out
}

// renewTogether renews some of the grants, which have one TTL.
func (d *Driver) renewTogether(ctx context.Context, ttl time.Duration, grants []driver.Grant, some []int, out []driver.Renewal) {
	ctx, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	end, _ := ctx.Deadline()
	ctx = d.hurry(ctx, end)
	var kept []int
	var sent time.Time
	found := make(map[string]standing, len(some))
	var noRoom error // somebody has to make room: the holder hears of it now, and its client tries again while trust lasts
	asked := false
	err := driverkit.Insist(ctx, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(ttl, pace.Alone))
		defer cancel()
		done := false
		if !asked && d.dialect == MySQL { // the outcome of SQLite's one statement tells all
			asked = true // without an answer, the stamps are not known any more
			done, sent, err = d.renewUnchanged(ctx, ttl, grants, some, found)
			kept = some
		}
		if err == nil && !done {
			kept, sent, err = d.renewSome(ctx, ttl, grants, some, found)
		}
		if err == nil {
			return nil
		}
		if kind := d.kind(err); kind == full || kind == worn {
			noRoom = err
			return nil
		}
		return err
	})
	err = cmp.Or(err, noRoom)
	for _, at := range some {
		g := grants[at]
		switch s := found[g.Key]; {
		case err != nil:
			out[at].Err = err
		case !slices.Contains(kept, at):
			out[at].Err = driver.ErrLost
		default:
			if s.is(g) {
				d.renewGrip(g.Owner, s.stamp, s.waiters == 0)
			}
			until := driverkit.Trust(sent, ttl)
			if until.Before(g.TrustedUntil) { // the answer took longer than that to the grant: no renewal shortens
				until = g.TrustedUntil
			}
			out[at] = driver.Renewal{TrustedUntil: until, Waiters: s.waiters}
		}
	}
}

// renewUnchanged renews some of the grants by one statement, and reports whether it has renewed all of them. It does so if this client
// knows their stamps, and nobody waited for one of the locks when it saw that: a waiter that comes changes the stamp.
func (d *Driver) renewUnchanged(ctx context.Context, ttl time.Duration, grants []driver.Grant, some []int, found map[string]standing,
) (done bool, sent time.Time, err error) {
	by, args := 1+rand.Int64N(stampEnd), make([]any, 2, 2+2*len(some))
	args[0], args[1] = by, driverkit.InMicros(ttl)
	d.mu.Lock()
	for _, at := range some {
		g := grants[at]
		own, known := d.grips[g.Owner]
		if !known || !own.alone {
			d.mu.Unlock()
			return false, sent, nil
		}
		args = append(args, g.Key, own.stamp)
		found[g.Key] = standing{owner: g.Owner, token: g.Token, stamp: renewedStamp(own.stamp, by), left: driverkit.InMicros(ttl)}
	}
	d.mu.Unlock()
	change, sent := d.renewKnown(len(some)), time.Now()
	err = d.runOn(ctx, d.renewDB, func(q querier) error {
		n, err := exec(ctx, q, change, args...)
		done = n == int64(len(some))
		return err
	})
	return done, sent, err
}

// renewSome renews until one statement has found the locks of all that are not lost, and returns these and when it was sent. The end
// that it sets counts; what is read behind it only tells of what came later, as it may be read from a replica that lags.
func (d *Driver) renewSome(ctx context.Context, ttl time.Duration, grants []driver.Grant, some []int, found map[string]standing) ([]int, time.Time, error) {
	for rest := some; ; {
		names, owners := make([]any, len(rest)), make([]any, len(rest))
		for i, at := range rest {
			names[i], owners[i] = grants[at].Key, grants[at].Owner
		}
		args := slices.Concat([]any{1 + rand.Int64N(stampEnd), driverkit.InMicros(ttl)}, names, owners)
		change, sent := d.renew(len(rest)), time.Now()
		var renewed int64
		err := d.runOn(ctx, d.renewDB, func(q querier) (err error) {
			if d.dialect == SQLite { // which tells how the locks stand that it has renewed
				renewed, err = scanStandings(ctx, q, change, args, names, found)
				return err
			}
			renewed, err = exec(ctx, q, change, args...)
			return err
		})
		if err == nil && (d.dialect != SQLite || renewed < int64(len(rest))) {
			err = d.stand(ctx, names, found)
		}
		if err != nil {
			return nil, sent, err
		}
		lost := func(at int) bool { return !found[grants[at].Key].is(grants[at]) }
		if renewed >= int64(len(rest)) {
			lost = func(at int) bool { return found[grants[at].Key].follows(grants[at]) }
		}
		before := len(rest)
		rest = slices.DeleteFunc(slices.Clone(rest), lost)
		switch {
		case renewed >= int64(before) || len(rest) == 0:
			return rest, sent, nil
		case len(rest) == before:
			// It was decided elsewhere that one of them has lapsed, and what was decided may come late.
			return nil, sent, d.unavailable(errors.New("a lock had lapsed and is held again: the clock was set back, or a read was answered by a replica"))
		}
	}
}

// stand notes how the locks with these names stand.
func (d *Driver) stand(ctx context.Context, names []any, found map[string]standing) error {
	look := d.renewed(len(names))
	return d.runOn(ctx, d.renewDB, func(q querier) error {
		_, err := scanStandings(ctx, q, look, names, names, found)
		return err
	})
}

// scanStandings notes how the locks with these names stand by what a statement returns, and returns how many it has returned.
func scanStandings(ctx context.Context, q querier, s statement, args, names []any, found map[string]standing) (n int64, err error) {
	for _, name := range names {
		delete(found, name.(string))
	}
	err = all(ctx, q, s, args, func(rows *sql.Rows) error {
		var key string
		var s standing
		err := rows.Scan(&key, &s.owner, &s.token, &s.stamp, &s.left, &s.waiters)
		found[key] = s
		n++
		return err
	})
	return n, err
}

// standing is how a lock stands after a renewal.
type standing struct {
	owner   string
	token   int64
	stamp   int64
	left    int64 // µs
	waiters int
}

// is says whether the lock is still that of g.
func (s standing) is(g driver.Grant) bool {
	return s.left > 0 && s.owner == g.Owner && same(s.token, g)
}

// follows reports whether the lock stands as it can only after g has lost it. Tokens rise with each grant, so that a lower one, or no
// row, is from before g.
func (s standing) follows(g driver.Grant) bool {
	return s.token > g.Token && g.Token != 0 || s.owner != g.Owner && s.token >= g.Token && s != standing{}
}

// errPrecedes is a lock that was read as it was before a grant.
var errPrecedes = errors.New("the lock was read as it was before it was granted: by a replica that lags, or from a database that was set back")

// same says whether a lock with that token, which is that of g's owner, has been so all the while. It has not where it was taken away and
// then handed to a ticket of the owner's that came late. Who continues the grant of another may not know the token.
func same(token int64, g driver.Grant) bool { return g.Token == 0 || g.Token == token }

// Release implements driver.Driver. The release is repeated, in the background if need be,
// until it is confirmed or the lock has lapsed.
func (d *Driver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	if d.prepared != nil && d.prepared.room != nil && d.releaseHere(g, keep) {
		return nil
	}
	return d.calls.Finish(ctx, d.states, d.lane, func(begun func()) error {
		return d.insist(max(g.TTL, keep), begun, func(ctx context.Context) error { return d.free(ctx, g, keep) })
	})
}

// releaseHere releases in the goroutine of the caller, and reports whether the lock was released. On SQLite handing the release to
// another goroutine costs more than the release itself. It waits for nothing but, for a moment, other writers; what takes longer is for
// the background.
func (d *Driver) releaseHere(g driver.Grant, keep time.Duration) (released bool) {
	ran, err := d.lane.Try(func() error {
		ctx, cancel := context.WithCancel(d.calls.Work) // no deadline: its end is no news of the file
		defer cancel()
		defer time.AfterFunc(pace.LastWords(), cancel).Stop()
		return d.free(ctx, g, keep)
	})
	return ran && err == nil
}

// insist repeats fn, which frees a lock, each time in its turn, until it is confirmed or the lock has lapsed. It calls begun at
// each turn.
func (d *Driver) insist(limit time.Duration, begun func(), fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(d.calls.Work, limit)
	defer cancel()
	return d.lane.Insist(ctx, begun, func() error {
		ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(limit, pace.Alone))
		defer cancel()
		return fn(ctx)
	})
}

// free releases what g has. If nothing has happened to the lock since its owner got or renewed it, nobody waits, and it need not be
// read.
func (d *Driver) free(ctx context.Context, g driver.Grant, keep time.Duration) error {
	d.mu.Lock()
	own, known := d.grips[g.Owner]
	delete(d.grips, g.Owner)
	d.mu.Unlock()
	if !own.alone { // others may wait for it
		ctx = d.hurry(ctx, time.Now().Add(g.TTL)) // when the lock lapses by itself
	}
	late := 0
	if own.doubt {
		late = 1
	}
	if own.ear != nil && keep == 0 {
		inside, err := own.ear.release(ctx, g, late)
		if inside {
			own.ear.leave()
		} else if err == nil {
			return nil
		}
	} else if own.ear != nil {
		defer own.ear.leave()
	}
	if known && own.alone && own.ear == nil && keep == 0 {
		if freed, err := d.do(ctx, d.freeAlone, newStamp(), late, g.Key, own.stamp); freed || err != nil {
			return err
		}
	}
	_, err := d.end(ctx, g.Key, func(r row) (row, bool) {
		switch {
		case r.owner != g.Owner:
			return r, false
		case keep > 0:
			return r.keep(keep), r.lives()
		}
		return r.end(), true
	})
	return err
}

// end reads a lock and changes it as next says, until nobody else was faster. It says whether it was changed.
func (d *Driver) end(ctx context.Context, key string, next func(row) (row, bool)) (changed bool, err error) {
	err = d.together(ctx, func(ctx context.Context) (err error) {
		for changed = false; !changed && err == nil; {
			var r row
			if r, err = d.read(ctx, key, "", false); err != nil || !r.there {
				return err
			}
			is, ends := next(r)
			if !ends {
				return nil
			}
			is.stamp = newStamp()
			changed, err = d.change(ctx, key, r, &is)
		}
		return err
	})
	return changed, err
}

// noteGrip remembers what is known of the lock that a claim has got, and that its ear stays inside meanwhile.
func (d *Driver) noteGrip(c *claim, g grip) {
	g.doubt, g.since = c.doubt, time.Now()
	if c.ear.inside() {
		g.ear, c.ear = c.ear, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grips[c.owner] = g
	if !d.warmed {
		d.warmed = true
		d.warmRenewals()
	}
}

// renewGrip remembers the stamp of a lock that was renewed, if this client has taken it.
func (d *Driver) renewGrip(owner string, stamp int64, alone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g, known := d.grips[owner]; known {
		g.stamp, g.alone = stamp, alone
		if alone && g.ear != nil { // nobody has waited for long: those who come find the connection free
			d.calls.Go(g.ear.leave)
			g.ear = nil
		}
		d.grips[owner] = g
	}
}

// reclaimEar has the longest holder inside a turnstile leave it, unless that is there only for a moment: a waiter needs its connection
// more. Whoever is let in then polls until the lock is released, which costs little beside such a lease.
func (d *Driver) reclaimEar() {
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest := ""
	for owner, own := range d.grips {
		if own.ear != nil && (oldest == "" || own.since.Before(d.grips[oldest].since)) {
			oldest = owner
		}
	}
	own := d.grips[oldest]
	if own.ear == nil || time.Since(own.since) < longInside {
		return
	}
	d.calls.Go(own.ear.leave)
	own.ear = nil
	d.grips[oldest] = own
}

// Detach implements driver.Adopter. It does not block: what the owner has sent and had no answer to finds the stamp of its grant, and
// changes nothing.
func (d *Driver) Detach(g driver.Grant) {
	d.mu.Lock()
	own := d.grips[g.Owner]
	delete(d.grips, g.Owner)
	d.mu.Unlock()
	if own.ear != nil && d.calls.Enter() == nil {
		d.calls.Go(own.ear.leave)
		d.calls.Leave()
	}
}

// Adopt implements driver.Adopter.
func (d *Driver) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	if err := d.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.calls.Leave()
	if !driver.IsAdoptable(g.Owner) { // nor is what the owner of a kept lock is called
		return driver.Grant{}, fmt.Errorf("%w: it was not acquired to be adopted", driver.ErrInvalid)
	}
	c := d.claim(driver.Request{Key: g.Key, TTL: g.TTL, Adoptable: true})
	c.from = g
	ctx, cancel := context.WithTimeout(ctx, g.TTL)
	defer cancel()
	return d.settle(ctx, c)
}

// Force implements driver.Forcer. Where there is a bell, the holder is told why.
func (d *Driver) Force(ctx context.Context, key string, token int64, why string) (forced bool, err error) {
	holder := ""
	err = d.looking(ctx, func(ctx context.Context) (err error) {
		forced, err = d.end(ctx, key, func(r row) (row, bool) {
			holder = r.owner
			return r.end(), r.lives() && r.has(token)
		})
		return err
	})
	if forced && d.bell != nil {
		d.bell.Forced(holder, why)
	}
	return forced, err
}

// looking calls fn within a call of the driver, for some seconds at most.
func (d *Driver) looking(ctx context.Context, fn func(context.Context) error) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	return fn(ctx)
}

// Check implements driver.Checker.
func (d *Driver) Check(ctx context.Context, g driver.Grant) error {
	return d.looking(ctx, func(ctx context.Context) error {
		r, err := d.read(ctx, g.Key, g.Owner, false)
		switch {
		case err != nil:
			return err
		case r.precedes(g):
			return d.unavailable(errPrecedes)
		case !r.is(g.Owner) || !same(r.token, g):
			return driver.ErrLost
		}
		return nil
	})
}

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(ctx context.Context, key string) (st driver.Status, err error) {
	err = d.looking(ctx, func(ctx context.Context) error {
		r, err := d.read(ctx, key, "", true)
		if err == nil {
			st = r.status(key, d.node)
		}
		return err
	})
	if err != nil {
		st = driver.Status{Key: key, Nodes: []driver.NodeView{{Node: d.node, Err: err}}}
	}
	return st, err
}

// List implements driver.Lister.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	for from, last := prefix, ""; ; {
		var found []driver.Status
		err := d.looking(ctx, func(ctx context.Context) error {
			return d.run(ctx, func(q querier) error {
				found = nil
				return all(ctx, q, d.list, []any{from, last}, func(rows *sql.Rows) error {
					r, key, err := scanned(rows)
					found = append(found, r.status(key, d.node))
					return err
				})
			})
		})
		if err != nil {
			return err
		}
		for _, st := range found {
			if !strings.HasPrefix(st.Key, prefix) || !yield(st) {
				return nil
			}
			from, last = st.Key, st.Key
		}
		if len(found) < page {
			return nil
		}
	}
}

// Queue implements driver.Queuer. When a waiter began is not known.
func (d *Driver) Queue(ctx context.Context, key string, most int) (waiters []driver.Waiter, err error) {
	err = d.looking(ctx, func(ctx context.Context) error {
		return d.run(ctx, func(q querier) error {
			waiters = nil
			return all(ctx, q, d.queue, []any{key, most}, func(rows *sql.Rows) error {
				var owner, holder string
				err := rows.Scan(&owner, &holder)
				waiters = append(waiters, driver.Waiter{Owner: owner, Holder: person(holder)})
				return err
			})
		})
	})
	return waiters, err
}

// Nodes implements driver.Notifier: the database is the one node.
func (d *Driver) Nodes() []driver.NodeEvent { return d.states.Nodes() }

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) { d.states.Notify(fn) }
