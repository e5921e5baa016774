package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/sqllock"
)

// failChanges makes the next n changes of a lock fail with a server error, by a trigger.
func (r *rig) failChanges(n int, number, state string) {
	r.Helper()
	r.execSQL("CREATE TABLE holdfast_left (n int) ENGINE = MyISAM") // MyISAM: a rollback does not undo it
	r.execSQL(fmt.Sprintf("INSERT INTO holdfast_left VALUES (%d)", n))
	r.execSQL(`CREATE TRIGGER holdfast_trip BEFORE UPDATE ON holdfast_lock FOR EACH ROW BEGIN
		IF (SELECT n FROM holdfast_left) > 0 THEN
			UPDATE holdfast_left SET n = n - 1;
			SIGNAL SQLSTATE '` + state + `' SET MYSQL_ERRNO = ` + number + `, MESSAGE_TEXT = 'by a trigger';
		END IF;
	END`)
}

// checkNoBlame fails the test if d reports that the database is not up.
func (r *rig) checkNoBlame(d *sqllock.Driver) {
	d.Notify(func(e driver.NodeEvent) {
		if e.State != driver.NodeUp {
			r.Errorf("the database is %v: %v", e.State, e.Err)
		}
	})
}

// The conflicts: a deadlock (also a failed certification on Galera), a lock wait timeout, a row changed by
// another client, and a node that is briefly not ready.
func TestRepeatedConflictsAreRetried(t *testing.T) {
	for what, c := range map[string]struct {
		number, state string
		times         int
	}{
		"deadlock, failed certification": {"1213", "40001", 7},
		"lock wait timeout":              {"1205", "HY000", 3},
		"changed since it was read":      {"1020", "HY000", 3},
		"no node of the cluster now":     {"1047", "08S01", 2},
	} {
		t.Run(what, func(t *testing.T) {
			forEach(t, []database{onMariaDB, onMySQL}, func(r *rig) {
				r.makeRow()
				d := r.newDriver()
				r.checkNoBlame(d)
				r.failChanges(c.times, c.number, c.state)
				g, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: long, NoWait: true}) // does not wait during an outage
				r.NoError(err)
				if left := r.countRows("SELECT n FROM holdfast_left"); left != 0 {
					r.Errorf("the lock was granted with %d errors still planned", left)
				}
				r.execSQL(fmt.Sprint("UPDATE holdfast_left SET n = ", c.times))
				r.RenewGrant(d, g, long)
				r.execSQL(fmt.Sprint("UPDATE holdfast_left SET n = ", c.times))
				r.NoError(d.Release(r.WaitContext(), g, 0))
				r.checkCleared()
			})
		})
	}
}

// A caller that does not wait gets the error at once.
func TestPermanentErrorNamesFix(t *testing.T) {
	for number, c := range map[string]struct {
		state, want string
		matches     error
	}{
		"1290": {"HY000", "name the primary", driver.ErrUnavailable}, // --read-only
		"1836": {"HY000", "name the primary", driver.ErrUnavailable}, // --innodb-read-only of MySQL
		"1036": {"HY000", "name the primary", driver.ErrUnavailable}, // the same on MariaDB
		"1792": {"25006", "name the primary", driver.ErrUnavailable},
		"1114": {"HY000", "make room", driver.ErrUnavailable},
		"1021": {"HY000", "make room", driver.ErrUnavailable},
		"1044": {"42000", "correct the name of the database, or grant", driver.ErrAuth}, // also if the database does not exist
		"1142": {"42000", "grant SELECT, INSERT, UPDATE, DELETE", driver.ErrAuth},
		"1049": {"42000", "create it, or name another", driver.ErrConfig},
	} {
		t.Run(number, func(t *testing.T) {
			forEach(t, []database{onMariaDB, onMySQL}, func(r *rig) {
				r.makeRow()
				r.failChanges(1e6, number, c.state)
				_, err := r.newDriver().Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: long, NoWait: true})
				if !errors.Is(err, c.matches) || !strings.Contains(err.Error(), c.want) {
					r.Errorf("Acquire() = %v, want %v and %q", err, c.matches, c.want)
				}
			})
		})
	}
}

// Both the error of a claim and the doctor name the replica.
func TestErrorNamesReplica(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	refused := func(t *testing.T, r *fixture.Rig, db *sql.DB, dialect sqllock.Dialect) {
		t.Helper()
		d, err := sqllock.New(r.WaitContext(), db, dialect, &sqllock.Options{NoCheck: true})
		fixture.CloseAtEnd(r, d, err)
		r.Eventually("it has the tables", func() bool {
			_, err := d.Inspect(r.WaitContext(), "k")
			return err == nil
		})
		_, err = d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: long, NoWait: true})
		if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "name the primary") {
			t.Errorf("Acquire() = %v, want that no writes are taken", err)
		}
		for _, f := range d.Diagnose(r.WaitContext(), 0) {
			if f.Check == "role" && f.Verdict == driver.VerdictFault {
				return
			}
		}
		t.Error("the doctor reports no wrong role")
	}
	open := func(r *fixture.Rig, name, source string) *sql.DB {
		db, err := sql.Open(name, source)
		r.NoError(err)
		r.Cleanup(func() { db.Close() })
		return db
	}
	migrate := func(r *fixture.Rig, db *sql.DB, dialect sqllock.Dialect) {
		d, err := sqllock.New(r.WaitContext(), db, dialect, &sqllock.Options{NoCheck: true})
		fixture.CloseAtEnd(r, d, err)
		r.NoError(d.Migrate(r.WaitContext()))
	}
	t.Run("MySQL", func(t *testing.T) {
		t.Parallel()
		r := fixture.New(t)
		s, err := mariaproc.StartMySQL(t.Context())
		if errors.Is(err, child.ErrNotFetched) && !child.Required() {
			t.Skip(err)
		}
		fixture.StopAtEnd(t, s, err)
		r.NoError(prepareServer(t.Context(), s))
		db := open(r, "mysql", "root@unix("+s.Socket()+")/test")
		migrate(r, db, sqllock.MySQL)
		_, err = db.ExecContext(t.Context(), "SET GLOBAL super_read_only = 1")
		r.NoError(err)
		refused(t, r, db, sqllock.MySQL)
	})
}

func TestLocksExcludeAtAnyIsolationLevel(t *testing.T) {
	for _, level := range []string{"READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		t.Run(level, func(t *testing.T) {
			forEach(t, servers, func(r *rig) {
				of := strings.ReplaceAll(level, " ", "-")
				r.settings = map[string]string{
					"MariaDB": "&tx_isolation=%27" + of + "%27", "MySQL": "&transaction_isolation=%27" + of + "%27",
				}[r.name]
				var inside, tokens atomic.Int64
				clients := []*sqllock.Driver{r.newDriver(), r.newDriver(), r.newDriver()}
				runTogether(len(clients), func(i int) {
					for range 4 {
						g := r.AcquireGrant(clients[i], "k", long)
						if inside.Add(1) != 1 {
							r.Error("two holders at once")
						}
						if before := tokens.Swap(g.Token); before >= g.Token {
							r.Errorf("token %d after %d", g.Token, before)
						}
						inside.Add(-1)
						r.NoError(clients[i].Release(r.WaitContext(), g, 0))
					}
				})
				r.checkCleared()
			})
		})
	}
}

// Each statement of a client, from its first lock on a name to a ticket that it gives up, loses its connection
// once.
func TestLocksSurviveCutConnections(t *testing.T) {
	for step, text := range map[string]string{
		"read": "o.at", "first lock": "INSERT INTO holdfast_lock", "place": "INSERT INTO holdfast_ticket", "stir": "places + ",
		"stay": "UPDATE holdfast_ticket", "leave": "DELETE FROM holdfast_ticket", "change": aChange, "renewal": aRenewal, "look": aLook,
	} {
		t.Run(step, func(t *testing.T) {
			if testing.Short() && step != "change" {
				t.Skip("-short cuts one step")
			}
			forEach(t, servers, func(r *rig) {
				holder, d := r.newDriver(), r.newDriver()
				r.checkNoBlame(d)
				p := r.linkOf(d)
				cut := make(chan struct{})
				p.Halt(r.in(text))
				go func() {
					defer close(cut)
					f := <-p.Caught
					p.Set(func() { p.Stop = "" })
					f.Cut()
					p.Resume()
				}()
				r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "new", long), 0))
				held := r.AcquireGrant(holder, "k", long)
				ctx, leave := context.WithCancel(r.WaitContext())
				gone := fixture.AcquireAsync(ctx, d, driver.Request{Key: "k", TTL: long})
				r.Eventually("it waits", func() bool { return r.waiterCount() == 1 })
				leave()
				if err := <-gone; !errors.Is(err, context.Canceled) {
					r.Errorf("Acquire() = %v, want that it was cancelled", err)
				}
				r.Eventually("it has left", func() bool { return r.waiterCount() == 0 })
				got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(d, "k", long) })
				r.Eventually("it waits again", func() bool { return r.waiterCount() == 1 })
				if step == "stay" {
					<-cut
				}
				r.NoError(holder.Release(r.WaitContext(), held, 0))
				g := <-got
				if step == "look" {
					d.Detach(g) // the driver forgets the stamp, so the renewal reads the lock
				}
				r.RenewGrant(d, g, long)
				r.NoError(d.Check(r.WaitContext(), g))
				r.NoError(d.Release(r.WaitContext(), g, 0))
				select {
				case <-cut:
				case <-time.After(fixture.MaxWait()):
					r.Errorf("no statement contains %q", text)
				}
				r.checkCleared()
			})
		})
	}
}

// Renewals by stamp and by owner do not wait for a row that, for example, a suspended process has locked.
func TestRenewalIgnoresOtherLockedRows(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		d, other := r.newDriver(), r.newDriver()
		var grants []driver.Grant
		for i := range 5 {
			g, err := d.Acquire(r.WaitContext(), driver.Request{Key: fmt.Sprint("k", i), TTL: long, NoWait: true})
			r.NoError(err)
			grants = append(grants, g)
		}
		_, err := other.Acquire(r.WaitContext(), driver.Request{Key: "z", TTL: long, NoWait: true})
		r.NoError(err)
		tx, err := r.db.BeginTx(r.Context(), nil)
		r.NoError(err)
		defer tx.Rollback()
		_, err = tx.ExecContext(r.Context(), r.in("UPDATE holdfast_lock SET places = places + 1 WHERE name = 'z'"))
		r.NoError(err)
		for _, how := range []string{"by stamps", "by owners"} {
			ctx, cancel := context.WithTimeout(r.Context(), pace.Scale(3*time.Second))
			for i, renewal := range d.Renew(ctx, grants) {
				if renewal.Err != nil {
					r.Errorf("%s, %s: %v", how, grants[i].Key, renewal.Err)
				}
			}
			cancel()
			_, err = r.db.ExecContext(r.Context(), r.in("UPDATE holdfast_lock SET stamp = stamp + 1 WHERE name = 'k0'")) // as a new waiter does
			r.NoError(err)
		}
	})
}
