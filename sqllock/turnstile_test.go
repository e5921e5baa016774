package sqllock_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/sqllock"
)

// noPolling is a poll interval above the length of any test: a waiter with it must get its lock without polling.
const noPolling = time.Hour

// insideHolder returns a driver and its grant of "k", which it holds inside the turnstile.
func (r *rig) insideHolder() (*sqllock.Driver, driver.Grant) {
	r.Helper()
	first, d := r.newDriver(), r.newDriver()
	g := r.AcquireGrant(first, "k", long)
	got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(d, "k", long) })
	r.Eventually("it is inside", func() bool { return r.insideConn(d) != 0 })
	r.NoError(first.Release(r.WaitContext(), g, 0))
	return d, <-got
}

// insideConn returns the id of the connection inside the turnstile of "k"; 0: none.
func (r *rig) insideConn(d *sqllock.Driver) int { r.Helper(); return r.sessionIn(d, "k") }

func (r *rig) sessionIn(d *sqllock.Driver, key string) int {
	r.Helper()
	var id sql.NullInt64
	r.NoError(r.db.QueryRowContext(r.Context(), "SELECT IS_USED_LOCK(?)", d.UserLock(key)).Scan(&id))
	return int(id.Int64)
}

// blockedConns returns the ids of the connections that wait in GET_LOCK for the turnstile of "k".
func (r *rig) blockedConns(d *sqllock.Driver) (ids []int) {
	r.Helper()
	rows, err := r.db.QueryContext(r.Context(), "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT GET_LOCK(''"+d.UserLock("k")+"''%'")
	r.NoError(err)
	defer rows.Close()
	for rows.Next() {
		var id int
		r.NoError(rows.Scan(&id))
		ids = append(ids, id)
	}
	r.NoError(rows.Err())
	return ids
}

// queueClients makes n more clients wait for "k", one after another, with the poll interval every. It returns
// the channel of their grants.
func (r *rig) queueClients(n int, every time.Duration) <-chan func() {
	r.Helper()
	order := make(chan func(), n)
	for i := range n {
		d := r.newDriver()
		d.SetPollInterval(every)
		go func() {
			g, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: long})
			order <- func() {
				r.Helper()
				r.NoError(err)
				r.NoError(d.Release(r.WaitContext(), g, 0))
			}
		}()
		r.Eventually("one more waits", func() bool { return len(r.blockedConns(d)) == i+1 && r.waiterCount() == i+1 })
	}
	return order
}

// The next waiter gets the lock without any poll.
func TestReleaseAdmitsNextWaiter(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		d, g := r.insideHolder()
		next := r.queueClients(3, noPolling)
		r.NoError(d.Release(r.WaitContext(), g, 0))
		for range 3 {
			(<-next)()
		}
		r.checkCleared()
		r.Eventually("nobody is inside", func() bool { return r.insideConn(d) == 0 })
	})
}

// The holder leaves the turnstile without a renewal, because another waiter of its client needs the connection.
func TestLongHolderGivesUpItsConnection(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		r.wait = 1
		d, g := r.insideHolder()
		other := r.newDriver()
		of := r.AcquireGrant(other, "j", long)
		got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(d, "j", long) })
		r.Eventually("the waiter is inside", func() bool { return r.sessionIn(d, "j") != 0 }) // its holder is not inside
		if id := r.insideConn(d); id != 0 {
			r.Errorf("connection %d is still at the turnstile", id)
		}
		r.NoError(d.Check(r.WaitContext(), g))
		r.NoError(other.Release(r.WaitContext(), of, 0))
		r.NoError(d.Release(r.WaitContext(), fixture.AwaitResult(r.Rig, got), 0))
		r.NoError(d.Release(r.WaitContext(), g, 0))
		r.checkCleared()
	})
}

// The test kills the connection of the holder and of a waiter in turn.
func TestLocksSurviveKilledWaitConnection(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		d, g := r.insideHolder()
		next := r.queueClients(2, 100*time.Millisecond)
		for _, id := range append(r.blockedConns(d)[:1], r.insideConn(d)) {
			r.execSQL(fmt.Sprint("KILL ", id))
		}
		r.NoError(d.Check(r.WaitContext(), g))
		r.RenewGrant(d, g, long)
		r.NoError(d.Release(r.WaitContext(), g, 0))
		(<-next)()
		(<-next)()
		r.checkCleared()
	})
}

// A server with a statement time limit ends GET_LOCK early. The waiter then repeats it.
func TestStatementTimeLimitKeepsQueue(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		const limit = 2 * time.Second
		r.settings = fmt.Sprint("&max_statement_time=", limit.Seconds())
		if r.second {
			r.settings = fmt.Sprint("&max_execution_time=", limit.Milliseconds())
		}
		d, g := r.insideHolder()
		next := r.queueClients(1, noPolling)
		time.Sleep(limit * 5 / 4)
		r.NoError(d.Release(r.WaitContext(), g, 0))
		(<-next)()
		r.checkCleared()
	})
}

// If a firewall drops GET_LOCK, the claim abandons it and asks on another connection.
func TestDeadConnectionEndsWaitInTurnstile(t *testing.T) {
	forEach(t, []database{onMariaDB}, func(r *rig) {
		holder, d := r.newDriver(), r.newDriver()
		g := r.AcquireGrant(holder, "k", long)
		d.SetPollInterval(noPolling)
		p := r.linkOf(d)
		p.Halt("GET_LOCK('" + d.UserLock("k"))
		got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(d, "k", long) })
		<-p.Caught
		p.Set(func() { p.Stop = "" })
		r.Eventually("it has a ticket", func() bool { return r.waiterCount() == 1 })
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		r.NoError(d.Release(r.WaitContext(), fixture.AwaitResult(r.Rig, got), 0))
		r.checkCleared()
	})
}

// A server has one GET_LOCK for all databases, and programs in two databases may use the same lock names.
func TestTurnstilesOfDatabasesAreSeparate(t *testing.T) {
	forEach(t, []database{onMariaDB}, func(r *rig) {
		other := *r
		other.schema = "other"
		r.execSQL("CREATE DATABASE IF NOT EXISTS other")
		other.db = other.openPool(other.socketPath())
		other.migrate()
		d, g := r.insideHolder()
		inOther, of := other.insideHolder()
		next := other.queueClients(1, noPolling)
		r.NoError(inOther.Release(r.WaitContext(), of, 0))
		(<-next)()
		r.NoError(d.Release(r.WaitContext(), g, 0))
		r.checkCleared()
	})
}

// Waiters find the lock free when they poll.
func TestIdleSessionInsideDoesNotBlockWaiters(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		d := r.newDriver()
		conn, err := r.db.Conn(r.WaitContext())
		r.NoError(err)
		defer conn.Close()
		_, err = conn.ExecContext(r.WaitContext(), "DO GET_LOCK(?, 0)", d.UserLock("k"))
		r.NoError(err)
		g := r.AcquireGrant(d, "k", long)
		next := r.queueClients(2, 100*time.Millisecond)
		r.NoError(d.Release(r.WaitContext(), g, 0))
		(<-next)()
		(<-next)()
		r.checkCleared()
	})
}

// The claim passed the turnstile, and ends before its statement is executed.
func TestLateTurnstileStatementTakesNoLock(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		holder, d := r.newDriver(), r.newDriver()
		g := r.AcquireGrant(holder, "k", long)
		p := r.linkOf(d)
		p.Halt(aTake)
		ctx, cancel := context.WithCancel(r.Context())
		failed := fixture.AcquireAsync(ctx, d, driver.Request{Key: "k", TTL: long})
		<-p.Caught
		p.Set(func() { p.Stop = "" })
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			r.Fatalf("Acquire() = %v, want that it was cancelled", err)
		}
		r.NoError(d.Close()) // waits for the claim's release
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		p.Resume()
		<-p.Late
		r.checkCleared()
	})
}

// alternatingConnector sends one query about user locks over another connection, like a proxy that moves sessions.
type alternatingConnector struct{ sqldriver.Connector }

func (m alternatingConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	a, err := m.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	b, err := m.Connector.Connect(ctx)
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return alternatingConn{a.(mysqlConn), b.(mysqlConn)}, nil
}

type alternatingConn struct {
	mysqlConn
	other mysqlConn
}

func (c alternatingConn) Close() error { return errors.Join(c.mysqlConn.Close(), c.other.Close()) }

func (c alternatingConn) QueryContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if strings.Contains(text, "IS_USED_LOCK") {
		return c.other.QueryContext(ctx, text, args)
	}
	return c.mysqlConn.QueryContext(ctx, text, args)
}

// The node's state and the doctor report the reason.
func TestMovedSessionsMakeWaitersPoll(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		cfg, err := mysql.ParseDSN("root@unix(" + r.socketPath() + ")/test?interpolateParams=true")
		r.NoError(err)
		connector, err := mysql.NewConnector(cfg)
		r.NoError(err)
		db := sql.OpenDB(alternatingConnector{connector})
		r.Cleanup(func() { db.Close() })
		d, err := r.openOn(db)
		fixture.CloseAtEnd(r.Rig, d, err)
		holder := r.newDriver()
		g := r.AcquireGrant(holder, "k", long)
		got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(d, "k", long) })
		r.Eventually("it polls", func() bool { return d.Nodes()[0].State == driver.NodePolling })
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		r.NoError(d.Release(r.WaitContext(), <-got, 0))
		for _, f := range d.Diagnose(r.WaitContext(), 0) {
			if f.Check == "wake" && strings.Contains(f.Text, "proxy") {
				return
			}
		}
		r.Error("the doctor does not explain why waiters poll")
	})
}

// A free lock is reserved only briefly, not until the clock reaches its old time.
func TestReservationEndsAfterClockSetBack(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		r.makeRow()
		later := time.Now().Add(time.Hour).UnixMicro()
		r.execSQL(fmt.Sprint("UPDATE holdfast_lock SET expires = ", later))
		r.execSQL(fmt.Sprintf("INSERT INTO holdfast_ticket (name, owner, place, holder, expires) VALUES ('k', 'dead', 0, '{} ', %d)", later))
		d, err := sqllock.New(r.Context(), r.openPool(r.socketPath()), r.dialect, &sqllock.Options{Prefix: r.prefix, MaxWaitConns: -1})
		r.NoError(err)
		defer d.Close()
		ctx, cancel := context.WithTimeout(r.Context(), fixture.MaxWait()/2)
		defer cancel()
		g, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: long})
		r.NoError(err)
		r.NoError(d.Release(r.WaitContext(), g, 0))
		r.checkCleared()
	})
}
