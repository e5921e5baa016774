package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/postgres"
)

// begun is a transaction straight to the server.
func (r *rig) begun() pgx.Tx {
	r.Helper()
	tx, err := r.pool.Begin(r.Context())
	r.Must(err)
	r.Cleanup(func() { tx.Rollback(r.Context()) })
	return tx
}

// blocked awaits that so many statements wait for another transaction.
func (r *rig) blocked(n int) {
	r.Helper()
	r.Eventually("a statement waits for the row", func() bool {
		return r.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'", r.opts.Schema) == n
	})
}

// late has a statement of an owner who is buried wait for the row meanwhile, and checks that
// it takes nothing.
func (r *rig) late(d *postgres.Driver, key string) {
	r.Helper()
	tx := r.begun()
	r.Must(d.Bury(r.Within(), tx, key, "gone"))
	took := make(chan bool, 1)
	go func() {
		ok, err := d.Take(r.Within(), key, "gone")
		if err != nil {
			r.Error(err)
		}
		took <- ok
	}()
	r.blocked(1)
	r.Must(tx.Commit(r.Within()))
	if <-took {
		r.Errorf("%s: the late statement took the lock", key)
	}
	if n := r.count("SELECT count(*) FROM holdfast.lock WHERE name = $1 AND owner = 'gone' AND expires > clock_timestamp()", key); n != 0 {
		r.Errorf("%s: the lock is that of an owner who has gone", key)
	}
}

// TestAStatementThatWaitsForTheBurialOfItsOwnerTakesNothing: its snapshot is from before.
func TestAStatementThatWaitsForTheBurialOfItsOwnerTakesNothing(t *testing.T) {
	r := start(t)
	d := r.driver()
	r.late(d, "new")
	g := r.Grant(d, "free", long)
	r.Must(d.Release(r.Within(), g, 0))
	r.late(d, "free")
	r.Release(r.Acquire(r.client(), "new", long), r.Acquire(r.client(), "free", long))
}

// TestABurialOutlastsATransactionThatReliesOnTheLease: the lock cannot pass on meanwhile, and
// still is not its old owner's.
func TestABurialOutlastsATransactionThatReliesOnTheLease(t *testing.T) {
	r := start(t)
	d := r.driver()
	if ok, err := d.Take(r.Within(), "k", "gone"); err != nil || !ok {
		t.Fatalf("Take() = %v, %v", ok, err)
	}
	relying := r.begun()
	_, err := relying.Exec(t.Context(), r.in("SELECT FROM holdfast.lock WHERE name = 'k' FOR KEY SHARE"))
	r.Must(err)
	tx := r.begun()
	r.Must(d.Bury(r.Within(), tx, "k", "gone"))
	r.Must(tx.Commit(r.Within()))
	if ok, err := d.Take(r.Within(), "k", "gone"); err != nil || ok {
		t.Errorf("a late statement of an owner who has gone: %v, %v", ok, err)
	}
}

// TestANameIsQuickAgainAfterABurial: the mark in its row goes with the ticket.
func TestANameIsQuickAgainAfterABurial(t *testing.T) {
	r := start(t)
	d := r.driver()
	tx := r.begun()
	r.Must(d.Bury(r.Within(), tx, "k", "gone"))
	r.Must(tx.Commit(r.Within()))
	r.Must(d.Release(r.Within(), r.Grant(d, "k", long), 0))
	if r.count("SELECT count(*) FROM holdfast.lock WHERE queued") != 1 {
		t.Error("the mark has gone before the ticket")
	}
	r.exec("UPDATE holdfast.ticket SET expires = clock_timestamp()")
	r.Must(d.Release(r.Within(), r.Grant(d, "k", long), 0))
	if n := r.count("SELECT count(*) FROM holdfast.lock WHERE queued"); n != 0 {
		t.Error("the name is marked for ever")
	}
	if n := r.count("SELECT count(*) FROM holdfast.ticket"); n != 0 {
		t.Errorf("%d tickets are left", n)
	}
}
