// Package sqllock keeps locks in tables of a database, over database/sql: SQLite, MySQL and MariaDB, with the driver
// that the program uses. Package sqllock/sqlite opens a file that the processes of one machine share, without a server.
// Package sqllock/mysql opens a server by its URL. For PostgreSQL use package postgres.
//
// # What is not promised
//
// A lease does not exclude a holder that is suspended for longer than its TTL and then continues without a check.
// Fencing tokens do. Package fence/sqlfence checks them in the transaction that writes.
//
// The locks are as durable as the database. If it fails over to a replica that lags, the newest grants are lost: two
// clients may hold a lock until the older lease expires. Tokens still rise, because they follow the clock, unless the
// clock of the new server is behind by more than the failover took.
//
// Leases expire by the database's clock: the clock of the server or, for SQLite, of the machine. If the clock jumps
// forward, leases expire early, while their holders still trust them. If it jumps back, the next holder waits longer.
//
// Waiters queue on MySQL and MariaDB (see below). Other waiters poll: at first every 5 ms on SQLite and every 20 ms on
// a server, less often if other waiters are before them or if the holder has had the lock for long. A holder learns at
// its next renewal that it has lost its lock. On Linux, package sqlite wakes waiters and holders by a datagram.
//
// # How it works
//
// Each lock has a row. A free lock keeps its row, because the row has the token. Each change is one UPDATE in a
// transaction of its own, which compares and sets: it names the stamp of the row that the client has read, and sets a
// new stamp. On MySQL and MariaDB, a free lock without waiters takes one statement, which also returns the token: an
// INSERT for a name that the client does not know, or an UPDATE that names how many places in the queue were given.
// Between two statements no row is locked. So a client that dies, hangs or is cut off delays no other client. Any pool
// of connections works, even of one connection, and so does any isolation level.
//
//	         denied               first in the queue, by a release
//	asking ─────────> waiting ─────────────────────────────> handed over
//	  │ ▲ └─────────────┘ poll                                     │ confirms
//	  │ └─ another was faster                                      ▼
//	  └──────────────────────── free ────────────────────────> granted
//
// Each waiter has a ticket with a place. A release hands the lock to the first ticket. Its waiter finds this when it
// polls, and confirms it by one more change, for its whole TTL. A ticket expires unless its client polls; a lock that
// was handed to a dead client expires too. A client that queues up writes its ticket and then changes the stamp of the
// lock, so that no other client frees or takes the lock by an earlier read.
//
// On SQLite, statements run in the client's own process. There, statements that belong together are one transaction
// that begins with the write lock of the file: the read, the ticket and the stamp of a denied claim, or the read, the
// change and the ticket of a release. One statement takes a free lock without waiters, or confirms a hand-over. So no
// other client comes in between, and a client that dies in the middle has changed nothing.
//
// Times are integers, µs since 1970, and never a DATETIME: no time zone matters.
//
// # The turnstile
//
// On MySQL and MariaDB a waiter blocks in GET_LOCK, with a name made from the lock's name, on a separate connection.
// The server admits one waiter at a time, first come, first served. That waiter takes the row, keeps GET_LOCK while it
// holds the lock (it is inside), and frees the row and GET_LOCK by one statement. So a contended lock costs three
// statements: GET_LOCK, an UPDATE that takes the row, and an UPDATE that frees it. Only the row decides which client
// has the lock; GET_LOCK is a hint and a queue:
//
//	the holder is not inside            it took a free lock without a wait. The waiter inside polls the row, the others stay blocked
//	a lock is freed inside              it is kept for the next waiter for half a second, so that no newcomer overtakes
//	a waiter has waited for 50 ms       it writes a ticket, so that other clients see and count it. It reads the row every 0.8 s or
//	                                    less often, which keeps the ticket
//	a waiter has no connection          it polls with a ticket. When that is the first of all tickets, the waiter inside hands the
//	                                    lock to it
//	a lease expires, or is forced       waiters find out when they read the row
//	a connection inside breaks          the server admits the next waiter, which finds the row held and polls
//	a waiter's connection breaks        it polls for some seconds
//	an idle session stays inside        waiters take the lock when they find it free, and use no GET_LOCK for some seconds
//	sessions move, GET_LOCK fails,      all waiters of the client poll; its node state is NodePolling, and a doctor reports why
//	several servers take writes
//
// Waiters in GET_LOCK get the lock in its order, and waiters that poll in the order of their tickets. If a lock is free
// and not reserved, any client can take it, before a waiter that came within the last 50 ms and has no ticket.
//
// # Late statements
//
// The server may execute a statement after its client and its connection have ended, and after later statements. No
// such statement ends a lock that its holder trusts, or revives a lease that is over:
//
//	acquire, adopt, release, force  change a row only if it has not changed since it was read, and then to a state that was
//	                                right at that moment: a grant expires a TTL after the read
//	acquire, unread                 takes a lock only if it is free and has given as many places in its queue as the client knew.
//	                                Each event that ends a lease counts as a place: force, adoption, the next holder after an
//	                                expiry, a caller that gives up, and a release after a statement without an answer. A first
//	                                row is inserted once
//	renew                           compares owner and time, and sets the later of two ends and a stamp that no row has had; a
//	                                lock that a late ticket gave back to its owner has another token
//	renew, unread                   compares the time and the stamp that the client knows, and sets the same. It finds no row
//	                                after any change of the lock, also if it is executed twice
//	acquire, inside                 as acquire, unread
//	release, inside                 names owner and token, so it frees this one grant. Its RELEASE_LOCK affects its own session
//	queue                           a ticket expires at a time that was set when its client read the lock
//
// On SQLite no statement outlives the call that runs it. But a process may be suspended after it has read the clock and
// before it has the file's lock, and continue much later:
//
//	acquire         finds the lock as it is now, and takes it by the old time: by that time fewer leases have expired. The grant
//	                ends a TTL after the old time, which may be over. Its caller counts from before, and does not trust it
//	release, force  end only the grant that the owner or the token names, at any time. A waiter is handed the lock until a time
//	                that may be over; then the next client that polls hands it on
//	renew           compares owner and token, and the end with the old time. It may prolong a lease that has expired and that no
//	                client has taken since, by no more than its holder may trust
//	queue           a ticket expires by the old time
//
// A process that is suspended within a transaction keeps all others from writing until it continues or ends. Nothing
// has changed by then.
//
// When a caller gives up, the driver releases in the background what its claim may have taken, after a change of the
// stamp: a statement that was sent before finds another stamp, and changes nothing. A holder's trust in a grant counts
// from before the lock was read.
package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

const (
	minTTL = 100 * time.Millisecond
	// batch bounds the number of locks that one statement renews.
	batch = 100
)

// Options configure a Driver. The zero value works.
type Options struct {
	// Prefix begins the names of the tables. It may include a schema, or on MySQL a database: "locks.holdfast_".
	// Default "holdfast_".
	Prefix string
	// NoCheck skips the first statement, so that a driver can be opened even for a database that has no tables yet or
	// rejects this client: for Migrate, Limits and Diagnose.
	NoCheck bool
	// Node names the database in events and errors. Default: the name of the dialect.
	Node string
	// RenewDB is another pool for the same database; the caller closes it. Only renewals use it, so that a renewal
	// never waits for a connection that other work uses. The driver keeps one connection of this pool open, and
	// replaces it every few minutes once another is open: limit the pool to three connections, and do not set
	// SetConnMaxLifetime. Default: renewals share db.
	RenewDB *sql.DB
	// MaxWaitConns bounds the connections of the pool on which waiters queue on MySQL and MariaDB; further waiters
	// poll. Such a connection is in use while its waiter waits, and then while that waiter holds the lock. Default 4,
	// or fewer, so that the pool has at least three more; a negative number: all waiters poll.
	MaxWaitConns int
}

// Driver keeps locks in one database. It is safe for concurrent use.
type Driver struct {
	*tables
	db           *sql.DB
	renewDB      *sql.DB // pool for renewals; db if there is no other
	renewalConns renewalConns
	prepared     *preparedPool // nil: statements are not prepared
	dialect      Dialect
	node         string
	owners       *driverkit.Owners
	checked      atomic.Bool  // the version of the tables was checked
	manual       atomic.Bool  // sessions do not commit each statement
	level        atomic.Int32 // sql.IsolationLevel of each statement; the session's own unless a database rejects it

	exclusion exclusionCheck

	calls  *driverkit.Calls
	states *driverkit.States // state of the one node
	lane   *driverkit.Lane   // turns for the statements of claims and releases
	bell   bell              // nil: waiters of other clients poll

	ringLost atomic.Pointer[time.Time] // time of the last lost ring; nil: none

	turnstile        *turnstile // nil: waiters poll
	defaultWaitConns int        // bound of the turnstile's connections

	mu        sync.Mutex          // guards the fields below
	waiting   map[string]*claim   // by owner: claims in progress
	heldLocks map[string]heldLock // by owner: locks that this client has
	places    map[string]int64    // by key: places that an empty queue had given
	swept     time.Time           // time of the last sweep of expired tickets
	passed    string              // key of the last lock that was handed over: the next claim finds it taken
}

// New returns a driver over db, which remains the property of the caller; opts may be nil. New asks the database
// once, for five seconds at most, and returns the errors that waiting would not fix: ErrAuth for a wrong password or
// missing permissions, ErrConfig for missing tables. If the database is down, New returns no error; later calls wait
// for it or return ErrUnavailable. Invalid arguments are ErrInvalid; with NoCheck there is no other error, and New
// does not block.
//
// Renewals need a connection in time. Leases are lost if the caller uses all connections of the pool, or if all of
// them break while the database accepts no new ones. To exclude that, give renewals their own pool
// (Options.RenewDB).
func New(ctx context.Context, db *sql.DB, dialect Dialect, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	t, err := newTables(dialect, opts.Prefix)
	if err != nil {
		return nil, fmt.Errorf("sqllock: %w", err)
	}
	d := &Driver{
		tables: t, db: db, renewDB: cmp.Or(opts.RenewDB, db), dialect: dialect, node: cmp.Or(opts.Node, t.name),
		owners: driverkit.NewOwners(), calls: driverkit.NewCalls(),
		waiting: make(map[string]*claim), heldLocks: make(map[string]heldLock), places: make(map[string]int64),
	}
	d.renewalConns.replacing, d.renewalConns.replaced = make(map[*sql.DB]bool), time.Now()
	d.states = driverkit.NewStates(d.node)
	if dialect == SQLite {
		d.prepared = newPreparedPool(db)
	}
	room, waitConns := d.pollTiming.room, cmp.Or(opts.MaxWaitConns, defaultWaitConns)
	if most := db.Stats().MaxOpenConnections; most > 0 {
		waitConns = min(waitConns, most-3)
		room = min(room, most-max(waitConns, 0))
		if d.renewDB == db {
			room-- // one connection is left for renewals
		}
	}
	if dialect == MySQL && waitConns > 0 {
		d.defaultWaitConns, d.turnstile = waitConns, newTurnstile(d, waitConns)
	}
	d.lane = driverkit.NewLane(d.states, room)
	d.calls.Go(d.watchDatabase)
	d.exclusion.turn = make(chan struct{}, 1)
	d.exclusion.known.Store(opts.NoCheck || dialect != MySQL) // many servers speak the MySQL protocol
	if opts.NoCheck {
		return d, nil
	}
	return driverkit.OpenChecked(ctx, strings.ToLower(d.name), d, nil, func(ctx context.Context) error {
		err := d.pingDatabase(ctx, db)
		if err != nil || dialect != MySQL {
			return err
		}
		if err = d.checkExclusion(ctx, true); err != nil {
			return d.unavailableError(err)
		}
		return nil
	})
}

// pingDatabase checks, over a connection of db, that the database answers and has the tables. Only
// checkDatabase checks their version, once: a running program continues while the tables are migrated.
func (d *Driver) pingDatabase(ctx context.Context, db *sql.DB) error {
	return d.runOn(ctx, db, func(q querier) error {
		var v *int
		return q.QueryRowContext(ctx, d.version.text).Scan(&v)
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
	if conn := d.takeSpare(); conn != nil {
		conn.Close()
	}
	d.mu.Lock()
	grips := d.heldLocks
	d.heldLocks = nil
	d.mu.Unlock()
	for _, own := range grips { // wait connections of leases that were not released
		if own.waitConn != nil {
			own.waitConn.discard()
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
	return d.runClaim(ctx, d.newClaim(req))
}

// runClaim runs a claim and releases what it leaves if it fails.
func (d *Driver) runClaim(ctx context.Context, c *claim) (driver.Grant, error) {
	defer c.leave()
	g, err := c.acquireLock(ctx)
	c.leaveTurnstile()
	if err != nil {
		c.abandon()
		return g, err
	}
	if err := d.checkGrant(ctx, g.TTL); err != nil {
		d.Release(ctx, g, 0)
		return driver.Grant{}, err
	}
	return g, nil
}
