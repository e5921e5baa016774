package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// watchEvery is the interval at which an idle driver pings the database.
	watchEvery = 5 * time.Second
	// maxLinkAge bounds the age of a renewal connection: servers and proxies cut old connections.
	maxLinkAge = 3 * time.Minute
)

// renewalConns holds the connections for renewals. A database may accept no new connection for a while (it is full, or
// a certificate or password was replaced), and a connection that is closed meanwhile is not replaced. So the
// driver closes a connection that may still work only once another is open, and renewals may use any connection
// of the client.
type renewalConns struct {
	mu        sync.Mutex // guards the fields below
	bare      bool       // the renewal pool could open no connection at its last use
	spare     *sql.Conn  // connection of the other pool, kept for renewals while bare; nil: none
	answered  time.Time  // time of the last answer over the renewal pool
	replaced  time.Time  // time of the last replacement of its connection
	warming   bool       // a ping in the background is in progress
	replacing map[*sql.DB]bool
}

// errReplaced ends a statement without an answer whose connection was replaced.
var errReplaced = fmt.Errorf("no answer over a connection that was replaced: %w", context.DeadlineExceeded)

// isLate reports whether the timeout of a statement has passed.
func isLate(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// hasRenewPool reports whether renewals have their own pool.
func (d *Driver) hasRenewPool() bool { return d.renewDB != d.db }

// watchDatabase pings the database now and then, so that its state is known without any calls.
func (d *Driver) watchDatabase() {
	for driverkit.Sleep(d.calls.Alive, watchEvery) {
		d.renewalConns.mu.Lock()
		old := time.Since(d.renewalConns.replaced) > maxLinkAge
		d.renewalConns.mu.Unlock()
		if old && d.hasRenewPool() {
			d.replaceOld()
		}
		d.checkNode()
	}
}

// replaceOld replaces the renewal connection. A login without an answer delays renewals only briefly.
func (d *Driver) replaceOld() {
	ctx, cancel := context.WithTimeout(d.calls.Alive, pace.AskTime())
	defer cancel()
	d.replaceIdle(ctx, d.renewDB)
}

// checkNode pings the database and reports the outcome. It uses the renewal pool, so that a connection is
// already open when the database accepts no new one.
func (d *Driver) checkNode() {
	ctx, cancel := context.WithTimeout(d.calls.Alive, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	sent := time.Now()
	if d.pingDatabase(ctx, d.renewDB) == nil {
		d.states.SetRoundTrip(0, time.Since(sent))
	}
}

// warmRenewals pings the database over the renewal pool in the background, if that pool had no answer lately.
// So the pool has a connection when a lease needs one, or is known to have none. The caller is inside a call.
func (d *Driver) warmRenewals() {
	l := &d.renewalConns
	l.mu.Lock()
	defer l.mu.Unlock()
	if !d.hasRenewPool() || l.warming || time.Since(l.answered) < pace.LongPause {
		return
	}
	l.warming = true
	d.calls.Go(func() {
		d.checkNode()
		driverkit.Sleep(d.calls.Alive, pace.LongPause) // once for many connections that break together
		l.mu.Lock()
		defer l.mu.Unlock()
		l.warming = false
	})
}

// noteAnswer records an answer over a pool. Once the renewal pool has a connection, noteAnswer returns the
// spare one to its pool.
func (d *Driver) noteAnswer(db *sql.DB) {
	if db != d.renewDB || !d.hasRenewPool() {
		return
	}
	l := &d.renewalConns
	l.mu.Lock()
	l.bare, l.answered = false, time.Now()
	spare := l.spare
	l.spare = nil
	l.mu.Unlock()
	if spare != nil {
		spare.Close()
	}
}

// giveBack returns a connection of db that has answered to its pool, or keeps it for renewals if the renewal
// pool has none. It never keeps the only connection of a pool, because claims need it.
func (d *Driver) giveBack(db *sql.DB, conn *sql.Conn) {
	l := &d.renewalConns
	l.mu.Lock()
	keep := l.bare && l.spare == nil && db == d.db && d.calls.Alive.Err() == nil && db.Stats().MaxOpenConnections != 1
	if keep {
		l.spare = conn
	}
	l.mu.Unlock()
	if !keep {
		conn.Close()
	}
}

// takeSpare removes and returns the spare connection; nil: none.
func (d *Driver) takeSpare() *sql.Conn {
	l := &d.renewalConns
	l.mu.Lock()
	defer l.mu.Unlock()
	conn := l.spare
	l.spare = nil
	return conn
}

// noteUnreachable records that the renewal pool can open no connection.
func (d *Driver) noteUnreachable() {
	d.renewalConns.mu.Lock()
	defer d.renewalConns.mu.Unlock()
	d.renewalConns.bare = true
}

// openConnKey marks the context of a renewal attempt whose predecessor got no connection in time. The attempt
// prefers connections that are already open, because the server may not be answering logins.
type openConnKey struct{}

// runOnOpenConn calls fn, for such an attempt, with an idle connection of the other pool. Without one, it calls
// runOnSpare.
func (d *Driver) runOnOpenConn(ctx context.Context, fn func(querier) error) error {
	d.noteUnreachable()
	if d.db.Stats().Idle > 0 && d.runOnce(ctx, d.db, fn) == nil {
		return nil
	}
	return d.runOnSpare(ctx, fn)
}

// runOnSpare calls fn for a renewal when neither pool can open a connection. It uses the spare connection, or one
// inside a turnstile that is idle.
func (d *Driver) runOnSpare(ctx context.Context, fn func(querier) error) error {
	err := error(sql.ErrConnDone)
	if conn := d.takeSpare(); conn != nil {
		if err = d.runWith(ctx, conn, fn); err == nil {
			d.giveBack(d.db, conn)
			return nil
		}
		conn.Close()
	}
	for _, e := range d.insideConns() {
		if !e.tryBorrow() {
			continue
		}
		err = d.runWith(ctx, e.conn, fn)
		e.handBack()
		if err == nil {
			break
		}
	}
	return err
}

// insideConns returns the wait connections inside turnstiles. Their holders may leave them meanwhile.
func (d *Driver) insideConns() (waitConns []*waitConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, own := range d.heldLocks {
		if own.waitConn != nil {
			waitConns = append(waitConns, own.waitConn)
		}
	}
	return waitConns
}

// replaceStale replaces, in the background, the idle connections of the pool whose statement got no answer,
// and those of the renewal pool, which lead to the same server. The caller is inside a call.
func (d *Driver) replaceStale(db *sql.DB) {
	d.calls.Go(func() {
		ctx, cancel := context.WithTimeout(d.calls.Work, pace.AskTime())
		defer cancel()
		d.replaceIdle(ctx, db)
		if db != d.renewDB {
			d.replaceIdle(ctx, d.renewDB)
		}
	})
}

// replaceIdle opens a connection of a pool and then closes the idle ones, so that the next statement uses the
// new one. It reports whether it did. If no connection can be opened, it closes none: a dead connection costs
// time, a missing one costs a lease. It holds the idle connections meanwhile, so ctx must end soon.
func (d *Driver) replaceIdle(ctx context.Context, db *sql.DB) bool {
	l := &d.renewalConns
	l.mu.Lock()
	if l.replacing[db] {
		l.mu.Unlock()
		return false
	}
	l.replacing[db] = true
	l.mu.Unlock()
	var fresh *sql.Conn
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.replacing, db)
		if fresh != nil && db == d.renewDB {
			l.replaced = time.Now()
		}
	}()
	var idle []*sql.Conn
	for range db.Stats().Idle { // while these are taken, the pool must open a new one
		conn, err := db.Conn(ctx) // the sql driver may ping the server
		if err != nil {
			break
		}
		idle = append(idle, conn)
	}
	if s := db.Stats(); s.MaxOpenConnections > 0 && s.OpenConnections >= s.MaxOpenConnections && len(idle) > 0 {
		discardConn(idle[0]) // make room
		idle = idle[1:]
	}
	fresh, err := db.Conn(ctx)
	for _, conn := range idle {
		if err == nil {
			discardConn(conn)
		} else {
			conn.Close()
		}
	}
	if err != nil {
		return false
	}
	fresh.Close()
	return true
}

// discardConn closes a connection instead of returning it to its pool.
func discardConn(conn *sql.Conn) {
	conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	conn.Close()
}
