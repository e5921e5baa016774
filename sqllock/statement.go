package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// querier runs statements.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// maxTries bounds how often a statement is sent whose connection broke.
const maxTries = 3

// busy is a statement that was not sent, as no connection of the pool was free: no fault of the database.
type busy struct{ error }

func (b busy) Unwrap() error { return b.error }

// run calls runOn for the pool that everything but renewals uses.
func (d *Driver) run(ctx context.Context, fn func(querier) error) error {
	return d.runOn(ctx, d.db, fn)
}

// runOn calls fn with a connection of db, and again while the database asks for it: then another's statement was carried out. It does so
// at once if the connection breaks, as one does that a restarted server has left in the pool. If connections for renewals break again and
// again, or cannot be opened, it takes any other that the client has. So fn may be repeated.
func (d *Driver) runOn(ctx context.Context, db *sql.DB, fn func(querier) error) error {
	if u := unitOf(ctx); u != nil {
		return u.runStep(fn)
	}
	begun := time.Now()
	if db != d.db && ctx.Value(oldLinksKey{}) != nil && d.runOld(ctx, fn) == nil {
		d.reportAnswer(nil)
		return nil
	}
	vital := false // renewals had no connection of their pool
	for tries := 1; ; tries++ {
		err := d.runOnce(ctx, db, fn)
		if err == nil {
			d.noteAnswer(db)
			d.reportAnswer(nil)
			return nil
		}
		kind := d.kindOf(err)
		_, poolBusy := errors.AsType[busy](err)
		d.leaveOldLinks(ctx, db, kind, !poolBusy && time.Since(begun) > pace.Overdue())
		if kind == broken && db == d.db && tries == 1 {
			d.warmRenewals() // whose idle connection may have broken with this one
		}
		if kind == broken && tries == maxTries && db != d.db {
			d.noteBare()
			db, tries, vital = d.db, 0, true
			continue
		}
		if kind == broken && tries == maxTries && vital && d.runBare(ctx, fn) == nil {
			d.reportAnswer(nil)
			return nil
		}
		if d.raiseLevel(err) {
			continue
		}
		again := kind == yields || kind == broken && tries < maxTries || kind == readOnly && tries == 1 && d.dialect != SQLite
		pause := min(time.Duration(tries-1)*time.Millisecond, pace.ShortPause)
		if kind == yields && d.dialect == SQLite {
			pause = busyPause(ctx, time.Since(begun))
		}
		if again && d.pauseFor(ctx, pause) {
			continue
		}
		if poolBusy {
			return d.states.Unavailable(err)
		}
		down := d.unavailableError(d.explainError(ctx, err))
		if isLate(ctx) || !errors.Is(ctx.Err(), context.Canceled) { // a caller that leaves is no news of the database
			d.reportAnswer(down)
		}
		return down
	}
}

// leaveOldLinks replaces the idle connections of db after an error of that kind, of a statement that took longer than any should if slow.
// A server that takes no writes any more, or does not answer, may have a successor, or the network may have forgotten the connection; and
// the other connections of the pool lead there too.
func (d *Driver) leaveOldLinks(ctx context.Context, db *sql.DB, kind kind, slow bool) {
	switch {
	case d.dialect == SQLite:
	case kind == readOnly:
		limited, cancel := context.WithTimeout(ctx, pace.LastWords())
		defer cancel()
		d.replaceIdle(limited, db)
	case slow && isLate(ctx) && !errors.Is(context.Cause(ctx), errReplaced):
		d.replaceStale(db)
	}
}

// busyPause returns the pause before another try at a file of SQLite that somebody writes to, for which a statement has waited
// so long. A write takes well below a millisecond, and whoever has written often does so again at once: longer pauses, such as SQLite's
// busy_timeout makes, miss the gaps, and starve whoever wants to queue. Behind a writer that is slow or stopped they grow, as
// tries cost the processor that it needs.
//
// Where many processes write, the file goes to whoever tries first in a gap. Pauses that have grown lose each gap to newcomers, and so
// a statement that has to be through by some time (withHurry) has shorter ones, with room for thousands of tries until then.
func busyPause(ctx context.Context, waited time.Duration) time.Duration {
	end, _ := ctx.Value(hurryKey{}).(time.Time)
	if left := time.Until(end); left > 0 {
		return min(waited/100, left/40000, 5*time.Millisecond) + 30*time.Microsecond + rand.N(70*time.Microsecond)
	}
	return min(waited/100, 5*time.Millisecond) + 50*time.Microsecond + rand.N(200*time.Microsecond)
}

// hurryKey is the key, in the context of a statement, of the time by which it has to be through.
type hurryKey struct{}

// withHurry returns a context for statements that come before the statements of newcomers on a busy file of SQLite, as a lease ends unless
// they are through by end, or others wait for them.
func (d *Driver) withHurry(ctx context.Context, end time.Time) context.Context {
	if d.dialect != SQLite {
		return ctx
	}
	return context.WithValue(ctx, hurryKey{}, end)
}

// pauseFor waits, and returns false if ctx ends before. What is in a hurry naps: on Linux a timer of Go takes a whole millisecond in a process
// that has nothing else to do.
func (d *Driver) pauseFor(ctx context.Context, limit time.Duration) bool {
	if ctx.Value(hurryKey{}) == nil || d.prepared == nil || d.prepared.nap == nil || limit > time.Millisecond {
		return driverkit.Sleep(ctx, limit)
	}
	d.prepared.nap(limit)
	return ctx.Err() == nil
}

// whenFree calls fn, and again while another writes to the file of SQLite, until ctx ends: for what no driver's statement does.
func (d *Driver) whenFree(ctx context.Context, fn func() error) error {
	for begun := time.Now(); ; {
		err := fn()
		if err == nil || d.dialect != SQLite || d.kindOf(err) != yields || !d.pauseFor(ctx, busyPause(ctx, time.Since(begun))) {
			return err
		}
	}
}

// runOnce calls fn with a connection of db. One that takes no writes does not go back to the pool.
func (d *Driver) runOnce(ctx context.Context, db *sql.DB, fn func(querier) error) (err error) {
	if d.prepared != nil && d.checked.Load() {
		leave, err := d.prepared.awaitConn(ctx)
		if err != nil {
			return err
		}
		defer leave()
		return fn(d.prepared)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		if s := db.Stats(); ctx.Err() != nil && s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections {
			return busy{fmt.Errorf("no answer in time, and all %d connections of the pool are in use; give it more: %w", s.MaxOpenConnections, err)}
		}
		return err
	}
	if linked, ok := ctx.Value(linkedKey{}).(func()); ok && db == d.renewDB {
		linked()
	}
	err = d.runWith(ctx, conn, fn)
	switch {
	case err == nil:
		d.giveBack(db, conn)
	case d.kindOf(err) == readOnly:
		discardConn(conn)
	default:
		conn.Close()
	}
	return err
}

// runWith calls fn with a connection, in a transaction if its sessions need one.
func (d *Driver) runWith(ctx context.Context, conn *sql.Conn, fn func(querier) error) error {
	if err := d.checkDatabase(ctx, conn); err != nil {
		return err
	}
	if !d.manual.Load() && sql.IsolationLevel(d.level.Load()) == sql.LevelDefault {
		return fn(conn)
	}
	tx, err := d.beginTx(ctx, conn)
	if err != nil {
		return err
	}
	defer tx.Rollback() // says nothing new: the transaction is over, or its error is on its way
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// raiseLevel reports whether err was cured by another level of isolation: a binlog of statements takes no change below REPEATABLE READ.
func (d *Driver) raiseLevel(err error) bool {
	return d.kindOf(err) == unlogged && d.level.CompareAndSwap(int32(sql.LevelDefault), int32(sql.LevelRepeatableRead))
}

// beginTx begins a transaction at the level that the database takes.
func (d *Driver) beginTx(ctx context.Context, conn *sql.Conn) (*sql.Tx, error) {
	return conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.IsolationLevel(d.level.Load())})
}

// checkDatabase looks once whether the tables fit this package, and how the sessions are set up.
func (d *Driver) checkDatabase(ctx context.Context, q querier) error {
	if d.checked.Load() {
		return nil
	}
	if d.session != "" {
		var one int
		switch err := q.QueryRowContext(ctx, d.session).Scan(&one); {
		case err == nil:
			d.manual.Store(true)
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
	}
	if err := d.checkVersion(ctx, q); err != nil {
		return err
	}
	d.checked.Store(true)
	return nil
}

// execCount runs a statement that changes something, and returns the number of rows that it has found.
func execCount(ctx context.Context, q querier, s statement, args ...any) (int64, error) {
	res, err := q.ExecContext(ctx, s.text, s.orderArgs(args)...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// execRepeated runs one statement that may be repeated, and reports whether it has changed anything. An attempt without an answer may have changed
// a row that the next one does not find any more.
func (d *Driver) execRepeated(ctx context.Context, s statement, args ...any) (found bool, err error) {
	err = d.run(ctx, func(q querier) error {
		n, err := execCount(ctx, q, s, args...)
		found = n > 0
		if err != nil && d.kindOf(err) == there {
			return nil
		}
		return err
	})
	return found, err
}

// execTake runs a statement that takes a lock unread, and returns the token that the lock has by it, and whether it was taken.
func (t *tables) execTake(ctx context.Context, q querier, s statement, args ...any) (token int64, taken bool, err error) {
	if t.returned != "" {
		err = q.QueryRowContext(ctx, s.text, s.orderArgs(args)...).Scan(&token)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, false, nil
		}
		return token, err == nil, err
	}
	res, err := q.ExecContext(ctx, s.text, s.orderArgs(args)...)
	if err != nil {
		if t.kindOf(err) == there {
			err = nil
		}
		return 0, false, err
	}
	n, err := res.RowsAffected()
	if err == nil && n > 0 {
		token, err = res.LastInsertId()
	}
	return token, err == nil && n > 0, err
}

// queryRows runs a statement that returns rows, and calls scan for each.
func queryRows(ctx context.Context, q querier, s statement, args []any, scan func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, s.text, s.orderArgs(args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// reportAnswer notes the outcome of a statement.
func (d *Driver) reportAnswer(err error) {
	if d.calls.Alive.Err() == nil {
		d.states.Report(0, err)
	}
}
