package sqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// exclusion classifies how a database treats two transactions that change one row at once. The driver tests
// this, because neither name nor version shows it: some servers speak the MySQL protocol over another storage,
// and MySQL and MariaDB may silently create tables with another engine.
type exclusion int

const (
	notTried   exclusion = iota
	byRowLock            // the second waits for the first
	byConflict           // the second fails at its commit
	byTable              // no transactions: each statement commits by itself
	noExclusion
)

// probeTime bounds the probe for exclusion.
func probeTime() time.Duration { return pace.Scale(2 * time.Second) }

// probeWait is the time for which a statement should wait for another.
func probeWait() time.Duration { return pace.Scale(500 * time.Millisecond) }

// errNoExclusion reports a database that lets two writers change one row
// (findings/go-mysql-server-both-updates-match.sh).
var errNoExclusion = errors.New("two transactions changed the same row at once, and the database has carried both out: it cannot keep locks; " +
	"take a server of MySQL or MariaDB, with tables of InnoDB")

// exclusionCheck remembers whether the database is known to exclude a second writer.
type exclusionCheck struct {
	known atomic.Bool   // it does, or nobody can find out
	turn  chan struct{} // capacity one: the check in progress
	tried time.Time     // guarded by turn: end of the last check
	found error         // guarded by turn: outcome of the last check
}

// checkExclusion returns errNoExclusion if the database lets two transactions change one row. It returns nil
// if it could not find out, because the database does not answer or the user lacks permissions: the next
// statement reports that, and the next grant asks again. With quick it first tries to lock the version row twice,
// which is enough on nearly all servers and writes nothing.
func (d *Driver) checkExclusion(ctx context.Context, quick bool) error {
	if quick {
		switch locks, err := d.versionLocks(ctx); {
		case locks, errors.Is(err, errPool):
			d.exclusion.known.Store(true)
			return nil
		case err != nil:
			return nil
		}
	}
	switch kind, err := d.tryExclusion(ctx); {
	case err != nil || kind == notTried:
	case kind == noExclusion:
		return driverkit.PermanentError{Err: errNoExclusion}
	default:
		d.exclusion.known.Store(true)
	}
	return nil
}

// checkGrant returns errNoExclusion for a grant of a database that lets two transactions change one row. The check
// at Open may have found nothing out, for example because the database was down. If this check finds nothing out
// either, grants of the next seconds rely on the one that follows.
func (d *Driver) checkGrant(ctx context.Context, ttl time.Duration) error {
	e := &d.exclusion
	if e.known.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ttl/4)
	defer cancel()
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-e.turn }()
	if !e.known.Load() && time.Since(e.tried) >= watchEvery {
		if e.found = d.checkExclusion(ctx, true); e.found != nil {
			e.found = d.unavailableError(e.found)
		}
		e.tried = time.Now()
	}
	return e.found
}

// withPair calls fn with two connections of the pool. If the pool has only one, it returns errPool.
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

// versionLocks reports whether one transaction's lock on the version row keeps another transaction out. If
// another client has locked the row already, that counts as well.
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

// tryExclusion makes two transactions change one row, a ticket of no waiter, and returns the outcome of the
// second one.
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
		d.execRepeated(ctx, d.leave, "", owner) // if this fails, the ticket expires
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
		return notTried, err // another client has swept the ticket
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
	return d.judgeRace(ctx, first, second, change, owner)
}

// judgeRace sends the same change by the second transaction while the first is open, and returns how the
// database excludes the two.
func (d *Driver) judgeRace(ctx context.Context, first, second *sql.Tx, change statement, owner string) (exclusion, error) {
	type outcome struct {
		changed int64
		err     error
	}
	answered := make(chan outcome, 1)
	go func() {
		n, err := execCount(ctx, second, change, owner)
		answered <- outcome{n, err}
	}()
	var got outcome
	var err error
	ended := false // the first transaction
	select {
	case got = <-answered:
	case <-time.After(probeWait()):
		// The second writer waits for the first, or the server is slow. So the first one ends, after one more
		// answer: a server that lets both write has carried out the second change before, however late it
		// answers.
		err = queryRows(ctx, first, d.translate(d.in("SELECT place FROM holdfast_ticket WHERE name = '' AND owner = $1")), []any{owner},
			func(*sql.Rows) error { return nil })
		ended, err = true, errors.Join(err, first.Commit())
		got = <-answered
	}
	switch {
	case err != nil:
		return notTried, err
	case got.err != nil && d.isHeld(got.err), got.err == nil && got.changed == 0 && ended:
		return byRowLock, nil
	case got.err != nil:
		return notTried, got.err
	case got.changed == 0:
		return byTable, nil
	}
	if !ended {
		err = first.Commit()
	}
	if err := errors.Join(err, second.Commit()); err != nil {
		return byConflict, nil
	}
	return noExclusion, nil
}

// isHeld reports whether err means that another transaction has locked the row.
func (s dialectRules) isHeld(err error) bool {
	k := s.kindOf(err)
	return k == locked || k == yields
}

// checkIsolation reports how the database excludes two writers.
func (l *doctorRun) checkIsolation(ctx context.Context) error {
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
		l.Add("isolation", driver.VerdictWarning, "its tables have no transactions: locks exclude one another, and LockRow and fenced writes are rejected", mend)
	case kind == byConflict:
		l.OK("isolation", "of two that change a row at once, the second is refused at its commit; LockRow locks nothing here")
	case kind == byRowLock:
		l.OK("isolation", "of two that change a row at once, the second waits")
	default:
		return fmt.Errorf("a row that was written is not there: a read was answered by a replica, or another program deleted it")
	}
	return nil
}
