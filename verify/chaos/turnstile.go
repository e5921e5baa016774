//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// turnstiles disturbs the turnstiles in which waiters queue on a database: GET_LOCK or advisory locks. A
// turnstile is a hint, so its faults may cost time, but neither a lease nor an order of tokens.
type turnstiles struct {
	driver string // of database/sql
	dsn    func() string

	// The statements. A parameter is the name of a lock.
	names    string // lists the locks that are held
	isUsed   string // reports whether a session is inside the turnstile
	enter    string // waits before the turnstile, and reports whether the session is inside
	leave    string
	sessions string // lists the sessions before and inside turnstiles
	end      string // ends the session with the number %s
}

// errUnused means that a fault met no client of Holdfast at any turnstile, and so has tested nothing.
var errUnused = errors.New("no client used a turnstile")

func (t turnstiles) actions() map[string]action {
	return map[string]action{"seize-turnstiles": t.seize, "end-waits": t.endSessions}
}

// seize makes a session of another program enter the turnstile of each held lock again and again, and stay
// inside for By each time. If By is as long as the fault, an idle session blocks all waiters. If By is zero,
// waiters pass the turnstile while the lock is held.
func (t turnstiles) seize(f Fault, _ int, rest func(time.Duration)) error {
	db, err := sql.Open(t.driver, t.dsn())
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(f.For)+storeTime)
	defer cancel()
	names, err := readColumn(ctx, db, t.names)
	if err != nil {
		return err
	}
	var met atomic.Bool
	errs := make(chan error, len(names))
	for _, name := range names {
		go func() { errs <- t.occupy(ctx, db, name, time.Duration(f.By), &met) }()
	}
	rest(time.Duration(f.For))
	cancel()
	for range names {
		err = errors.Join(err, <-errs)
	}
	if err == nil && !met.Load() {
		err = errUnused
	}
	return err
}

// occupy enters the turnstile of a lock again and again until ctx ends. It sets met if a client was inside.
func (t turnstiles) occupy(ctx context.Context, db *sql.DB, name string, stay time.Duration, met *atomic.Bool) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for ctx.Err() == nil {
		var used, inside bool
		err := conn.QueryRowContext(ctx, t.isUsed, name).Scan(&used)
		if err == nil {
			err = conn.QueryRowContext(ctx, t.enter, name).Scan(&inside)
		}
		if used {
			met.Store(true)
		}
		if err == nil && inside {
			sleep(ctx, stay)
			_, err = conn.ExecContext(context.WithoutCancel(ctx), t.leave, name)
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("the turnstile of %s: %w", name, err)
		}
	}
	return nil
}

// endSessions ends, for the duration of the fault, each session that waits at a turnstile or is inside.
func (t turnstiles) endSessions(f Fault, _ int, rest func(time.Duration)) error {
	db, err := sql.Open(t.driver, t.dsn())
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(f.For)+storeTime)
	defer cancel()
	ended := 0
	for end := monotonicNow() + int64(f.For); monotonicNow() < end; rest(20 * time.Millisecond) {
		sessions, err := readColumn(ctx, db, t.sessions)
		if err != nil {
			return err
		}
		for _, session := range sessions {
			if _, err := db.ExecContext(ctx, fmt.Sprintf(t.end, session)); err == nil { // otherwise it has ended by itself
				ended++
			}
		}
	}
	if ended == 0 {
		return errUnused
	}
	return nil
}

// userLock is an expression for the name of the turnstile of a lock on MySQL and MariaDB.
func userLock(name string) string {
	return "CONCAT('hf.', LEFT(SHA2(CONCAT(DATABASE(), CHAR(0), 'holdfast_', CHAR(0), " + name + "), 256), 48))"
}

func (s *mariadbSite) turnstiles() turnstiles {
	return turnstiles{
		driver: "mysql", dsn: func() string { return "root@unix(" + s.server.Socket() + ")/chaos" },
		names:  "SELECT name FROM holdfast_lock WHERE owner <> ''",
		isUsed: "SELECT IS_USED_LOCK(" + userLock("?") + ") IS NOT NULL",
		enter:  "SELECT COALESCE(GET_LOCK(" + userLock("?") + ", 1), 0)",
		leave:  "DO RELEASE_LOCK(" + userLock("?") + ")",
		sessions: "SELECT id FROM (SELECT id FROM information_schema.processlist WHERE state = 'User lock' UNION SELECT IS_USED_LOCK(" +
			userLock("name") + ") FROM holdfast_lock WHERE owner <> '') AS used WHERE id IS NOT NULL",
		end: "KILL %s",
	}
}

func (s *postgresSite) turnstiles() turnstiles {
	return turnstiles{
		driver: "pgx", dsn: func() string { return s.server.DSN() },
		names: "SELECT name FROM holdfast.lock WHERE owner IS NOT NULL",
		isUsed: `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
			AND (classid::bigint << 32 | objid::bigint) = holdfast.turnstile($1))`,
		enter:    "SELECT true FROM pg_advisory_lock(holdfast.turnstile($1))",
		leave:    "SELECT pg_advisory_unlock(holdfast.turnstile($1))",
		sessions: "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1",
		end:      "SELECT pg_terminate_backend(%s)",
	}
}
