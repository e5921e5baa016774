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
	// watchEvery is the time between two questions of an idle driver to the database.
	watchEvery = 5 * time.Second
	// maxLinkAge bounds the age of a connection for renewals: servers, and proxies before them, cut old ones.
	maxLinkAge = 3 * time.Minute
)

// links has the connections over which leases are renewed. A database may take no new connections for a while (it is full, a certificate
// or a password was replaced), and each one that is closed meanwhile is one fewer. So a connection that may still lead somewhere is closed
// only once another is open, and renewals may use any that the client has.
type links struct {
	mu        sync.Mutex // guards what follows
	bare      bool       // the pool of renewals could open no connection when it was used last
	spare     *sql.Conn  // of the other pool, for renewals while theirs is bare; nil: none is kept
	answered  time.Time  // the pool of renewals had an answer last
	replaced  time.Time  // its connection was replaced last
	warming   bool       // it is asked in the background
	replacing map[*sql.DB]bool
}

// errReplaced ends a statement that has no answer and whose connection was replaced.
var errReplaced = fmt.Errorf("no answer over a connection that was replaced: %w", context.DeadlineExceeded)

// isLate reports whether the time for a statement is over.
func isLate(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// hasRenewPool reports whether renewals have a pool of their own.
func (d *Driver) hasRenewPool() bool { return d.renewDB != d.db }

// watchDatabase asks the database now and then, so that its state is known while nobody calls.
func (d *Driver) watchDatabase() {
	for driverkit.Sleep(d.calls.Alive, watchEvery) {
		d.links.mu.Lock()
		old := time.Since(d.links.replaced) > maxLinkAge
		d.links.mu.Unlock()
		if old && d.hasRenewPool() {
			d.replaceOld()
		}
		d.checkNode()
	}
}

// replaceOld replaces the connection for renewals. A login without an answer keeps the old one from renewals only for a moment.
func (d *Driver) replaceOld() {
	ctx, cancel := context.WithTimeout(d.calls.Alive, pace.AskTime())
	defer cancel()
	d.replaceIdle(ctx, d.renewDB)
}

// checkNode asks the database whether it is there, and reports the outcome. It does so over a connection for renewals, which so is there
// already when no new one can be opened.
func (d *Driver) checkNode() {
	ctx, cancel := context.WithTimeout(d.calls.Alive, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	sent := time.Now()
	if d.pingDatabase(ctx, d.renewDB) == nil {
		d.states.Timed(0, time.Since(sent))
	}
}

// warmRenewals asks the database over the pool of renewals in the background, if that had no answer lately: so it has a connection when a
// lease needs one, or it is known that it has none. The caller is inside a call.
func (d *Driver) warmRenewals() {
	l := &d.links
	l.mu.Lock()
	defer l.mu.Unlock()
	if !d.hasRenewPool() || l.warming || time.Since(l.answered) < pace.LongPause {
		return
	}
	l.warming = true
	d.calls.Go(func() {
		d.checkNode()
		driverkit.Sleep(d.calls.Alive, pace.LongPause) // not for each of many connections that break together
		l.mu.Lock()
		defer l.mu.Unlock()
		l.warming = false
	})
}

// noteAnswer records an answer over a pool. The spare connection is not needed once the pool of renewals has one of its own.
func (d *Driver) noteAnswer(db *sql.DB) {
	if db != d.renewDB || !d.hasRenewPool() {
		return
	}
	l := &d.links
	l.mu.Lock()
	l.bare, l.answered = false, time.Now()
	spare := l.spare
	l.spare = nil
	l.mu.Unlock()
	if spare != nil {
		spare.Close()
	}
}

// giveBack gives a connection of db that has answered back to its pool, or keeps it for renewals if those have none. A pool of one
// connection is left alone, as claims need it.
func (d *Driver) giveBack(db *sql.DB, conn *sql.Conn) {
	l := &d.links
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

// takeSpare returns the spare connection, which is the caller's then; nil: there is none.
func (d *Driver) takeSpare() *sql.Conn {
	l := &d.links
	l.mu.Lock()
	defer l.mu.Unlock()
	conn := l.spare
	l.spare = nil
	return conn
}

// noteBare records that the pool of renewals can open no connection.
func (d *Driver) noteBare() {
	d.links.mu.Lock()
	defer d.links.mu.Unlock()
	d.links.bare = true
}

// oldLinksKey is the key, in the context of an attempt at a renewal, of the news that the one before got no connection in time. The server
// may answer no login, in neither pool.
type oldLinksKey struct{}

// runOld calls fn, for such an attempt, with an idle connection of the other pool, or else as runBare does.
func (d *Driver) runOld(ctx context.Context, fn func(querier) error) error {
	d.noteBare()
	if d.db.Stats().Idle > 0 && d.runOnce(ctx, d.db, fn) == nil {
		return nil
	}
	return d.runBare(ctx, fn)
}

// runBare calls fn, for renewals when neither pool can open a connection, with the spare one or one that is inside a turnstile, where it is
// idle.
func (d *Driver) runBare(ctx context.Context, fn func(querier) error) error {
	err := error(sql.ErrConnDone)
	if conn := d.takeSpare(); conn != nil {
		if err = d.runWith(ctx, conn, fn); err == nil {
			d.giveBack(d.db, conn)
			return nil
		}
		conn.Close()
	}
	for _, e := range d.insideEars() {
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

// insideEars returns the ears inside turnstiles. Their holders may leave these meanwhile.
func (d *Driver) insideEars() (ears []*ear) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, own := range d.grips {
		if own.ear != nil {
			ears = append(ears, own.ear)
		}
	}
	return ears
}

// replaceStale replaces, in the background, the idle connections of the pool of a statement that had no answer, and those for renewals,
// which lead to the same place. The caller is inside a call.
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

// replaceIdle opens a connection of a pool and then closes the unused ones, so that the next statement has the new one, and reports
// whether it has. If no connection can be opened, all stay: one that leads nowhere costs time, and one too few a lease. Nobody else has
// them until then, so ctx ends soon.
func (d *Driver) replaceIdle(ctx context.Context, db *sql.DB) bool {
	l := &d.links
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
	for range db.Stats().Idle { // while they are taken, the pool has no other to give
		conn, err := db.Conn(ctx) // a driver may ask the server whether it is alive
		if err != nil {
			break
		}
		idle = append(idle, conn)
	}
	if s := db.Stats(); s.MaxOpenConnections > 0 && s.OpenConnections >= s.MaxOpenConnections && len(idle) > 0 {
		discardConn(idle[0]) // to make room
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

// discardConn closes a connection, and not only gives it back to the pool.
func discardConn(conn *sql.Conn) {
	conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	conn.Close()
}
