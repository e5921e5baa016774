package sqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// exclusion tells what a database does with two transactions that change one row at once. It is found out by two that do, because
// neither a name nor a version says it: some servers speak the protocol of MySQL and keep rows in another way, and MySQL and MariaDB
// make tables of another engine than was asked for where a setting says so.
type exclusion int

const (
	notTried   exclusion = iota
	byRowLock            // the second waits for the first
	byConflict           // the second fails at its commit
	byTable              // each statement is carried out at once by itself: there are no transactions
	noExclusion
)

// probeTime bounds what is tried of exclusion.
func probeTime() time.Duration { return pace.Scale(2 * time.Second) }

// probeWait bounds a statement that is expected to wait for another.
func probeWait() time.Duration { return pace.Scale(500 * time.Millisecond) }

// errNoExclusion is the error of a database that excludes nobody (findings/go-mysql-server-both-updates-match.sh).
var errNoExclusion = errors.New("two transactions changed the same row at once, and the database has carried both out: it cannot keep locks; " +
	"take a server of MySQL or MariaDB, with tables of InnoDB")

// checkExclusion returns errNoExclusion where the database lets two change one row. Where that could not be found out, because the
// database does not answer or this user may not do all, it returns nil: what else is sent then says why. quick asks first whether a
// row of the version can be locked, which suffices on nearly all servers and writes nothing.
func (d *Driver) checkExclusion(ctx context.Context, quick bool) error {
	if quick {
		if locks, err := d.versionLocks(ctx); locks || err != nil {
			return nil
		}
	}
	if kind, err := d.tryExclusion(ctx); err == nil && kind == noExclusion {
		return driverkit.Refusal{Err: errNoExclusion}
	}
	return nil
}

// withPair calls fn with two connections of the pool. It does nothing where the pool has but one, and returns errPool.
func (d *Driver) withPair(ctx context.Context, fn func(a, b *sql.Conn) error) error {
	if d.db.Stats().MaxOpenConnections == 1 {
		return errPool
	}
	a, err := d.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := d.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	return fn(a, b)
}

var errPool = errors.New("the pool has one connection, and two are needed to see whether the database keeps two writers apart")

// versionLocks reports whether a transaction that has locked the row of the version keeps another from it. Where somebody else has it
// locked already, that has been seen too.
func (d *Driver) versionLocks(ctx context.Context) (locks bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime())
	defer cancel()
	lock := d.in("SELECT version FROM holdfast_version" + d.forUpdate)
	taken := func(q querier) bool {
		err := queryRows(ctx, q, statement{text: lock}, nil, func(*sql.Rows) error { return nil })
		return err != nil && d.isHeld(err)
	}
	err = d.withPair(ctx, func(a, b *sql.Conn) error {
		first, err := d.beginTx(ctx, a)
		if err != nil {
			return err
		}
		defer first.Rollback()
		second, err := d.beginTx(ctx, b)
		if err != nil {
			return err
		}
		defer second.Rollback()
		locks = taken(first) || taken(second)
		return ctx.Err()
	})
	return locks, err
}

// tryExclusion has two transactions change one row, a ticket of nobody's, and tells what became of the second.
func (d *Driver) tryExclusion(ctx context.Context) (kind exclusion, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime())
	defer cancel()
	owner := "probe." + rand.Text()
	until := time.Now().Add(time.Minute).UnixMicro()
	if _, err := d.execRepeated(ctx, d.join, "", owner, 0, "{}", until); err != nil {
		return notTried, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime())
		defer cancel()
		d.execRepeated(ctx, d.leave, "", owner) // or it lapses
	}()
	err = d.withPair(ctx, func(a, b *sql.Conn) error {
		kind, err = d.raceWriters(ctx, a, b, owner)
		return err
	})
	return kind, err
}

// raceWriters has a and b change the ticket of owner.
func (d *Driver) raceWriters(ctx context.Context, a, b *sql.Conn, owner string) (exclusion, error) {
	first, err := d.beginTx(ctx, a)
	if err != nil {
		return notTried, err
	}
	defer first.Rollback()
	change := d.translate(d.in("UPDATE holdfast_ticket SET place = place + 1 WHERE name = '' AND owner = $1 AND place = 0"))
	if n, err := execCount(ctx, first, change, owner); err != nil || n != 1 {
		return notTried, err // somebody has swept it away
	}
	second, err := d.beginTx(ctx, b)
	if err != nil {
		return notTried, err
	}
	lock := d.translate(d.in("SELECT place FROM holdfast_ticket WHERE name = '' AND owner = $1" + d.forUpdate))
	if err := queryRows(ctx, second, lock, []any{owner}, func(*sql.Rows) error { return nil }); err != nil {
		second.Rollback()
		if d.isHeld(err) {
			return byRowLock, nil
		}
		if second, err = d.beginTx(ctx, b); err != nil { // the server does not know NOWAIT
			return notTried, err
		}
	}
	defer second.Rollback()
	brief, cancel := context.WithTimeout(ctx, probeWait())
	defer cancel()
	n, err := execCount(brief, second, change, owner)
	switch {
	case err != nil && (brief.Err() != nil || d.isHeld(err)):
		return byRowLock, nil
	case err != nil:
		return notTried, err
	case n == 0:
		return byTable, nil
	}
	if err := errors.Join(first.Commit(), second.Commit()); err != nil {
		return byConflict, nil
	}
	return noExclusion, nil
}

// isHeld reports whether err says that another transaction has the row.
func (s speech) isHeld(err error) bool {
	k := s.kindOf(err)
	return k == locked || k == yields
}

// checkIsolation reports to a doctor what keeps two writers apart.
func (l *look) checkIsolation(ctx context.Context) error {
	if l.d.forUpdate == "" {
		return nil // SQLite has one writer
	}
	kind, err := l.d.tryExclusion(ctx)
	mend := "take tables of InnoDB: ALTER TABLE ... ENGINE = InnoDB"
	switch {
	case errors.Is(err, errPool):
		l.OK("isolation", "not tried: %v", err)
	case err != nil:
		return err
	case kind == noExclusion:
		l.Fault("isolation", errNoExclusion)
	case kind == byTable:
		l.Add("isolation", driver.VerdictWarning, "its tables have no transactions: locks exclude one another, and RowLock and fenced writes are rejected", mend)
	case kind == byConflict:
		l.OK("isolation", "of two that change a row at once, the second is refused at its commit; RowLock locks nothing here")
	case kind == byRowLock:
		l.OK("isolation", "of two that change a row at once, the second waits")
	default:
		return fmt.Errorf("a row that was written is not there: a read was answered by a replica, or another program deleted it")
	}
	return nil
}
