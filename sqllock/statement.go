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

// maxTries bounds the attempts at a statement whose connection broke.
const maxTries = 3

// busyError is the error of a statement that was not sent, because the pool had no free connection: no fault of the
// database.
type busyError struct{ error }

func (b busyError) Unwrap() error { return b.error }

// run calls runOn with the pool that serves everything but renewals.
func (d *Driver) run(ctx context.Context, fn func(querier) error) error {
	return d.runOn(ctx, d.db, fn)
}

// runOn calls fn with a connection of db, and repeats it after a conflict with another transaction, or if the
// connection broke, as after a restart of the server. If renewal connections break repeatedly or cannot be
// opened, it uses any other connection of the client. So fn may run more than once.
func (d *Driver) runOn(ctx context.Context, db *sql.DB, fn func(querier) error) error {
	if u := currentTx(ctx); u != nil {
		return u.runStep(fn)
	}
	begun := time.Now()
	if db != d.db && ctx.Value(openConnKey{}) != nil && d.runOnOpenConn(ctx, fn) == nil {
		d.reportAnswer(nil)
		return nil
	}
	vital := false // the renewal pool had no connection
	for tries := 1; ; tries++ {
		err := d.runOnce(ctx, db, fn)
		if err == nil {
			d.noteAnswer(db)
			d.reportAnswer(nil)
			return nil
		}
		kind := d.kindOf(err)
		_, poolBusy := errors.AsType[busyError](err)
		d.leaveOldLinks(ctx, db, kind, !poolBusy && time.Since(begun) > pace.OverdueTime())
		if kind == broken && db == d.db && tries == 1 {
			d.warmRenewals() // the renewal connection may have broken too
		}
		if kind == broken && tries == maxTries && db != d.db {
			d.noteUnreachable()
			db, tries, vital = d.db, 0, true
			continue
		}
		if kind == broken && tries == maxTries && vital && d.runOnSpare(ctx, fn) == nil {
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
		if isLate(ctx) || !errors.Is(ctx.Err(), context.Canceled) { // a caller that leaves tells nothing about the database
			d.reportAnswer(down)
		}
		return down
	}
}

// leaveOldLinks replaces the idle connections of db after an error of that kind; slow means that the statement
// took longer than any should. A server that rejects writes or does not answer may have a successor, or the
// network may have dropped the connection. The other connections of the pool lead to the same place.
func (d *Driver) leaveOldLinks(ctx context.Context, db *sql.DB, kind kind, slow bool) {
	switch {
	case d.dialect == SQLite:
	case kind == readOnly:
		limited, cancel := context.WithTimeout(ctx, pace.FinishTime())
		defer cancel()
		d.replaceIdle(limited, db)
	case slow && isLate(ctx) && !errors.Is(context.Cause(ctx), errReplaced):
		d.replaceStale(db)
	}
}

// busyPause returns the pause before the next try at an SQLite file that another process writes to, after the
// statement has waited for waited. A write takes well below a millisecond, and a busy writer soon writes
// again. Longer pauses, such as those of SQLite's busy_timeout, miss the gaps and starve a waiter. Behind a
// slow or suspended writer the pauses grow, because tries use the processor that the writer needs.
//
// Among many writers, the first to try in a gap gets the file. Grown pauses lose every gap to newcomers, so a
// statement with a deadline (withUrgency) has shorter pauses, enough for thousands of tries before its deadline.
func busyPause(ctx context.Context, waited time.Duration) time.Duration {
	end, _ := ctx.Value(urgencyKey{}).(time.Time)
	if left := time.Until(end); left > 0 {
		return min(waited/100, left/40000, 5*time.Millisecond) + 30*time.Microsecond + rand.N(70*time.Microsecond)
	}
	return min(waited/100, 5*time.Millisecond) + 50*time.Microsecond + rand.N(200*time.Microsecond)
}

// urgencyKey is the context key of the time by which a statement must be executed.
type urgencyKey struct{}

// withUrgency returns a context for urgent statements on a busy SQLite file: unless they are executed by end, a
// lease is lost or other clients wait.
func (d *Driver) withUrgency(ctx context.Context, end time.Time) context.Context {
	if d.dialect != SQLite {
		return ctx
	}
	return context.WithValue(ctx, urgencyKey{}, end)
}

// pauseFor sleeps for limit and returns false if ctx ends first. An urgent statement naps: on Linux, a Go timer
// takes a whole millisecond in an otherwise idle process.
func (d *Driver) pauseFor(ctx context.Context, limit time.Duration) bool {
	if ctx.Value(urgencyKey{}) == nil || d.prepared == nil || d.prepared.nap == nil || limit > time.Millisecond {
		return driverkit.Sleep(ctx, limit)
	}
	d.prepared.nap(limit)
	return ctx.Err() == nil
}

// retryWhileBusy calls fn, and repeats it until ctx ends while another process writes to the SQLite file. It is for
// work that is no statement of the driver.
func (d *Driver) retryWhileBusy(ctx context.Context, fn func() error) error {
	for begun := time.Now(); ; {
		err := fn()
		if err == nil || d.dialect != SQLite || d.kindOf(err) != yields || !d.pauseFor(ctx, busyPause(ctx, time.Since(begun))) {
			return err
		}
	}
}

// runOnce calls fn with a connection of db. A connection whose server rejects writes does not return to the
// pool.
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
			return busyError{fmt.Errorf("no answer in time, and all %d connections of the pool are in use; give it more: %w", s.MaxOpenConnections, err)}
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

// runWith calls fn with a connection, in a transaction if the sessions need one.
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
	defer tx.Rollback() // ignore the error: the transaction is over, or its error is returned
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// raiseLevel raises the isolation level if err calls for that, and reports whether it did: a statement-based
// binlog rejects changes below REPEATABLE READ.
func (d *Driver) raiseLevel(err error) bool {
	return d.kindOf(err) == unlogged && d.level.CompareAndSwap(int32(sql.LevelDefault), int32(sql.LevelRepeatableRead))
}

// beginTx begins a transaction at the isolation level that the database accepts.
func (d *Driver) beginTx(ctx context.Context, conn *sql.Conn) (*sql.Tx, error) {
	return conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.IsolationLevel(d.level.Load())})
}

// checkDatabase checks once that the tables fit this package, and reads the settings of the sessions.
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

// execCount runs a statement and returns the number of rows that it has matched.
func execCount(ctx context.Context, q querier, s statement, args ...any) (int64, error) {
	res, err := q.ExecContext(ctx, s.text, s.orderArgs(args)...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// execRepeated runs a statement that may be repeated, and reports whether it has changed a row. After an
// attempt without an answer, that change may already be done, and the next attempt may find no row.
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

// execTake runs an unread acquire. It returns the token of the lock, and whether the lock was taken.
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

// reportAnswer reports the outcome of a statement as the state of the node.
func (d *Driver) reportAnswer(err error) {
	if d.calls.Alive.Err() == nil {
		d.states.Report(0, err)
	}
}
