package sqllock_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/sqllock"
)

// address is a host name that resolves to another server after a failover.
type address struct {
	before, after *sql.DB
	moved         atomic.Bool
	connected     atomic.Int32 // connections since the move
}

func (a *address) Driver() sqldriver.Driver { return nil }

func (a *address) Connect(ctx context.Context) (sqldriver.Conn, error) {
	db := a.before
	if a.moved.Load() {
		db = a.after
		a.connected.Add(1)
	}
	conn, err := db.Conn(ctx) // only for its driver connection
	if err != nil {
		return nil, err
	}
	var inner sqldriver.Conn
	err = conn.Raw(func(c any) error { inner = c.(sqldriver.Conn); return nil })
	return inner, err
}

// fillPool opens size connections of a pool and leaves them idle.
func (r *rig) fillPool(db *sql.DB, size int) {
	r.Helper()
	db.SetMaxIdleConns(size)
	var all []*sql.Conn
	for range size {
		conn, err := db.Conn(r.WaitContext())
		r.NoError(err)
		all = append(all, conn)
	}
	for _, conn := range all {
		r.NoError(conn.Close())
	}
}

// After a failover the former primary still runs, and the connections of the pool lead to it.
func TestDriverLeavesReadOnlyServer(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		after := r.openPool(r.newRelay().Addr)
		r.settings = map[string]string{
			"MariaDB": "&tx_read_only=1", "MySQL": "&transaction_read_only=1",
		}[r.name]
		a := &address{before: r.openPool(r.newRelay().Addr), after: after}
		db := sql.OpenDB(a)
		defer db.Close()
		r.most = 6
		d, err := r.openOn(db)
		fixture.CloseAtEnd(r.Rig, d, err)
		r.fillPool(db, r.most)
		a.moved.Store(true)
		g, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: long, NoWait: true})
		r.NoError(err)
		r.NoError(d.Release(r.WaitContext(), g, 0))
		if n := a.connected.Load(); n > int32(r.most) {
			r.Errorf("%d connections were made, of a pool of %d", n, r.most)
		}
	})
}

// All idle connections have died silently, as behind a firewall that drops them. Each costs a quarter of the
// TTL.
func TestLeaseSurvivesDeadPool(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		const ttl = 8 * time.Second
		relay := r.newRelay()
		a := &address{before: r.openPool(relay.Addr), after: r.openPool(r.newRelay().Addr)}
		db := sql.OpenDB(a)
		defer db.Close()
		defer relay.Close()
		r.most = 8
		d, err := sqllock.New(r.Context(), db, r.dialect, &sqllock.Options{Prefix: r.prefix})
		fixture.CloseAtEnd(r.Rig, d, err)
		g := r.AcquireGrant(d, "k", ttl)
		r.fillPool(db, r.most)
		relay.Set(func() { relay.Hole = true })
		a.moved.Store(true)
		ctx, cancel := context.WithTimeout(r.Context(), ttl)
		defer cancel()
		if out := d.Renew(ctx, []driver.Grant{g})[0]; out.Err != nil || !out.TrustedUntil.After(g.TrustedUntil) {
			r.Errorf("Renew() = %+v, want that it is renewed by a new connection", out)
		}
		r.NoError(d.Release(r.WaitContext(), g, 0))
	})
}

// Renewals use a connection of the other pool, and the node stays up.
func TestLeaseSurvivesBrokenRenewalPool(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		relay := r.newRelay()
		broken := r.openPool(relay.Addr)
		relay.Set(func() { relay.Refuse = true })
		d, err := sqllock.New(r.Context(), r.openPool(r.socketPath()), r.dialect, &sqllock.Options{Prefix: r.prefix, RenewDB: broken})
		fixture.CloseAtEnd(r.Rig, d, err)
		d.Notify(func(e driver.NodeEvent) {
			if e.State == driver.NodeDown {
				r.Errorf("the node is %v: %v", e.State, e.Err)
			}
		})
		g := r.AcquireGrant(d, "k", long)
		r.RenewGrant(d, g, long)
		r.NoError(d.Ping(r.WaitContext()))
		r.NoError(d.Release(r.WaitContext(), g, 0))
	})
}

// unreachableServer fails each connection attempt.
type unreachableServer struct{ dialed atomic.Int32 }

func (a *unreachableServer) Driver() sqldriver.Driver { return nil }

func (a *unreachableServer) Connect(context.Context) (sqldriver.Conn, error) {
	a.dialed.Add(1)
	return nil, errors.New("connection refused")
}

// A claim found its connection broken, so the driver reconnects the renewal pool at once, not at its next ping.
func TestBrokenConnectionReconnectsRenewals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		claims, renewals := new(unreachableServer), new(unreachableServer)
		db, renewDB := sql.OpenDB(claims), sql.OpenDB(renewals)
		defer db.Close()
		defer renewDB.Close()
		d, err := sqllock.New(t.Context(), db, sqllock.MySQL, &sqllock.Options{NoCheck: true, RenewDB: renewDB})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		begin := time.Now()
		_, err = d.Acquire(t.Context(), driver.Request{Key: "k", TTL: long, NoWait: true})
		synctest.Wait()
		if !errors.Is(err, driver.ErrUnavailable) || renewals.dialed.Load() == 0 || time.Since(begin) > time.Second {
			t.Errorf("Acquire() = %v after %v, and renewals dialed %d times", err, time.Since(begin), renewals.dialed.Load())
		}
	})
}
