package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/sqllock"
)

// One connection also suffices if several callers of the client wait.
func TestOneConnectionIsEnough(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		r.most = 1
		if r.dialect == sqllock.SQLite {
			r.db.SetMaxOpenConns(1)
		}
		at := ""
		if r.dialect != sqllock.SQLite {
			at = r.newRelay().Addr
		}
		d, err := r.openOn(r.openPool(at))
		fixture.CloseAtEnd(r.Rig, d, err)
		fixture.CheckCrowd(r.Rig, d, 60)
		r.checkCleared()
	})
}

// The timeout of a statement ends before the statement gets a connection.
func TestUnsentStatementDoesNotMarkDatabaseDown(t *testing.T) {
	forEach(t, []database{onSQLite}, func(r *rig) {
		d := r.newDriver()
		r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", long), 0))
		ctx, end := context.WithCancelCause(r.Context())
		end(context.DeadlineExceeded)
		if err := d.Ping(ctx); !errors.Is(err, driver.ErrUnavailable) {
			r.Errorf("Ping() = %v, want that the database is unavailable", err)
		}
		if e := d.Nodes()[0]; e.State != driver.NodeUp {
			r.Errorf("the database is %v: %v", e.State, e.Err)
		}
	})
}

func TestBusyPoolDoesNotMarkDatabaseDown(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		db := r.openPool(r.newRelay().Addr)
		r.most = 1
		d, err := r.openOn(db)
		fixture.CloseAtEnd(r.Rig, d, err)
		conn, err := db.Conn(r.Context())
		r.NoError(err)
		_, err = d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: 5 * brief, NoWait: true})
		conn.Close()
		down, ok := errors.AsType[*driver.UnavailableError](err)
		if !ok || len(down.Nodes) > 0 || !strings.Contains(err.Error(), "1 connections of the pool are in use") {
			r.Errorf("Acquire() = %v, want that the pool is too small and no node is to blame", err)
		}
		if e := d.Nodes()[0]; e.State != driver.NodeUp {
			r.Errorf("the database is %v: %v", e.State, e.Err)
		}
	})
}

// The conflicts are a locked row, and a deadlock whose victim is the driver's statement.
func TestConflictIsRepeated(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		d := r.newDriver()
		a, b := r.AcquireGrant(d, "a", long), r.AcquireGrant(d, "b", long)
		tx, err := r.db.BeginTx(r.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		r.NoError(err)
		run := func(text string) {
			r.Helper()
			_, err := tx.ExecContext(r.WaitContext(), r.in(text))
			r.NoError(err)
		}
		for i := range 20 { // make this transaction the costlier victim
			run(fmt.Sprintf("INSERT INTO holdfast_ticket (name, owner, place, holder, expires) VALUES ('x', 'x%d', 1, '{}', 1)", i))
		}
		run("UPDATE holdfast_lock SET places = places WHERE name = 'b'")
		renewed := make(chan []driver.Renewal, 1)
		go func() { renewed <- d.Renew(r.WaitContext(), []driver.Grant{a, b}) }()
		time.Sleep(300 * time.Millisecond) // the driver has a and waits for b
		run("UPDATE holdfast_lock SET places = places WHERE name = 'a'")
		r.NoError(tx.Commit())
		for i, renewal := range <-renewed {
			if renewal.Err != nil {
				r.Errorf("renewal %d: %v", i, renewal.Err)
			}
		}
		r.NoError(errors.Join(d.Release(r.WaitContext(), a, 0), d.Release(r.WaitContext(), b, 0)))
	})
}

// An open transaction has locked a ticket that has expired.
func TestLockedTicketDoesNotDelayWaiters(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		d := r.newDriver()
		g := r.AcquireGrant(d, "k", 2*long)
		r.execSQL("INSERT INTO holdfast_ticket (name, owner, place, holder, expires) VALUES ('x', 'gone', 1, '{}', 1), ('y', 'gone', 1, '{}', 1)")
		tx, err := r.db.BeginTx(r.Context(), nil)
		r.NoError(err)
		defer tx.Rollback()
		_, err = tx.ExecContext(r.WaitContext(), r.in("UPDATE holdfast_ticket SET holder = '{ }' WHERE name = 'x' AND owner = 'gone'"))
		r.NoError(err)
		got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(d, "k", long) })
		r.Eventually("it waits", func() bool { return r.waiterCount() == 1 })
		r.NoError(d.Release(r.WaitContext(), g, 0))
		next := fixture.AwaitResult(r.Rig, got)
		r.NoError(tx.Rollback())
		r.NoError(d.Release(r.WaitContext(), next, 0))
	})
}

// The error names the fix. The driver waits for the session, because its server may become the primary.
func TestErrorNamesReadOnlySession(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		r.settings = map[string]string{
			"MariaDB": "&tx_read_only=1", "MySQL": "&transaction_read_only=1",
		}[r.name]
		_, err := r.newDriver().Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: long, NoWait: true})
		if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "no writes are taken") {
			r.Errorf("Acquire() = %v, want that no writes are taken", err)
		}
	})
}

func TestUnknownSettingEndsWait(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		r.settings = "&nonsense=1"
		if _, err := r.openOn(r.openPool(r.newRelay().Addr)); !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "correct the settings") {
			r.Errorf("New() = %v, want ErrConfig and what to correct", err)
		}
	})
}

// Open fails as well.
func TestMissingTablesEndWait(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		d := r.newDriver()
		r.execSQL("DROP TABLE holdfast_ticket")
		r.execSQL("DROP TABLE holdfast_lock")
		r.execSQL("DROP TABLE holdfast_version")
		_, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: long})
		if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "holdfast migrate") {
			r.Errorf("Acquire() = %v, want ErrConfig and how to make the tables", err)
		}
		_, err = r.openOn(r.db)
		if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "holdfast migrate") {
			r.Errorf("New() = %v, want ErrConfig and how to make the tables", err)
		}
		found := d.Diagnose(r.WaitContext(), 0)
		if last := found[len(found)-1]; last.Verdict != driver.VerdictFault || last.Check != "schema" {
			r.Errorf("Diagnose() = %+v, want a fault of the schema", found)
		}
	})
}

func TestMigrateKeepsNewerTables(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		d := r.newDriver()
		r.execSQL("INSERT INTO holdfast_version (version) VALUES (99)")
		for what, err := range map[string]error{"Migrate": d.Migrate(r.WaitContext()), "New": func() error { _, err := r.openOn(r.db); return err }()} {
			if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "update the program") {
				r.Errorf("%s() = %v, want that the program is older", what, err)
			}
		}
	})
}

// The tables are migrated to a newer version while the program has locks and a waiter.
func TestRunningProgramAcceptsNewerTables(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		d := r.newDriver()
		c := r.Client(d)
		l, old := r.Acquire(c, "k", long), r.AcquireGrant(d, "waited for", long)
		served := fixture.AcquireAsync(r.WaitContext(), d, driver.Request{Key: "waited for", TTL: long})
		r.execSQL("INSERT INTO holdfast_version (version) VALUES (99)")
		r.NoError(d.Ping(r.WaitContext()))
		if e := d.Nodes()[0]; e.State != driver.NodeUp {
			r.Errorf("the database is %v: %v", e.State, e.Err)
		}
		r.NoError(l.Extend(r.WaitContext(), long))
		r.NoError(d.Release(r.WaitContext(), old, 0))
		r.NoError(<-served)
		r.Release(r.Acquire(c, "another", long), l)
	})
}

func TestConcurrentMigrateCreatesTables(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		r.execSQL("DROP TABLE holdfast_ticket")
		r.execSQL("DROP TABLE holdfast_lock")
		r.execSQL("DROP TABLE holdfast_version")
		r.db.SetMaxOpenConns(20)
		runTogether(8, func(int) {
			d, err := sqllock.New(r.Context(), r.db, r.dialect, &sqllock.Options{Prefix: r.prefix, NoCheck: true})
			r.NoError(err)
			defer d.Close()
			if err := d.Migrate(r.WaitContext()); err != nil {
				r.Error(err)
			}
		})
		c := r.newClient()
		r.Release(r.Acquire(c, "k", long))
	})
}

func TestDoctorPassesHealthyDatabase(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		d := r.newDriver()
		seen := make(map[string]bool)
		for _, f := range d.Diagnose(r.WaitContext(), 0) {
			seen[f.Check] = true
			if f.Bad() && f.Check != "durability" { // the test servers do not sync
				r.Errorf("%+v", f)
			}
		}
		for _, check := range []string{"reach", "round-trip", "version", "clock", "durability", "schema", "rights"} {
			if !seen[check] {
				r.Errorf("no finding about %s", check)
			}
		}
		if left, err := r.leftoverRows(); len(left) > 0 || err != nil {
			r.Errorf("the read created %q, %v", left, err)
		}
	})
}

func TestBadOptionsAreRejected(t *testing.T) {
	t.Parallel()
	for prefix, dialect := range map[string]sqllock.Dialect{"": 0, "x; DROP TABLE y": sqllock.SQLite, "a.b.c_": sqllock.MySQL} {
		if _, err := sqllock.New(t.Context(), nil, dialect, &sqllock.Options{Prefix: prefix}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("New() of dialect %d with prefix %q = %v, want ErrInvalid", dialect, prefix, err)
		}
	}
}

// Without the wake-up, the waiter would ask again only after a minute.
func TestReleaseWakesWaiterOfSameClient(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		d := r.newDriver()
		d.SetPollInterval(time.Minute)
		g := r.AcquireGrant(d, "k", 2*long)
		got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(d, "k", long) })
		r.Eventually("it waits", func() bool { return r.waiterCount() == 1 && r.countRows("SELECT MAX(places) FROM holdfast_lock") == 1 })
		begin := time.Now()
		r.NoError(d.Release(r.WaitContext(), g, 0))
		select {
		case next := <-got:
			r.Logf("the hand-over took %v", time.Since(begin))
			r.NoError(d.Release(r.WaitContext(), next, 0))
		case <-time.After(fixture.MaxWait() / 2):
			r.Error("the waiter was not woken")
		}
	})
}

// Without the ring, the waiter would read the lock again only after a minute.
func TestReleaseWakesWaiterOfOtherProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, onSQLite)
	holder, waiter := r.newDriver(), r.newDriver()
	waiter.SetPollInterval(time.Minute)
	g := r.AcquireGrant(holder, "k", 2*long)
	got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiter, "k", long) })
	r.Eventually("it waits", func() bool { return r.waiterCount() == 1 && r.countRows("SELECT MAX(places) FROM holdfast_lock") == 1 })
	r.NoError(holder.Release(r.WaitContext(), g, 0))
	select {
	case next := <-got:
		r.NoError(waiter.Release(r.WaitContext(), next, 0))
	case <-time.After(fixture.MaxWait() / 2):
		r.Error("the waiter was not woken")
	}
	r.checkCleared()
}

func TestCancelKeepsConnection(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		d := r.newDriver()
		c := r.Client(d)
		l := r.Acquire(r.newClient(), "k", long)
		for range 20 {
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Millisecond)
			_, err := c.Acquire(ctx, "k", nil)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, holdfast.ErrHeld) {
				r.Errorf("Acquire() = %v", err)
			}
		}
		r.Release(l)
		r.checkCleared()
		if e := d.Nodes()[0]; e.State != driver.NodeUp {
			r.Errorf("the database is %v: %v", e.State, e.Err)
		}
	})
}
