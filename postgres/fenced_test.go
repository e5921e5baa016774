package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// beginTx begins a transaction, which ends with the test at the latest.
func (r *rig) beginTx() pgx.Tx {
	r.Helper()
	tx, err := r.pool.Begin(r.Context())
	r.NoError(err)
	r.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// holdLock acquires "k" without renewal.
func (r *rig) holdLock(d *postgres.Driver, ttl time.Duration) *holdfast.Lease {
	r.Helper()
	l, err := r.Client(d).Acquire(r.WaitContext(), "k", &holdfast.AcquireOptions{TTL: ttl, NoRenew: true, Adoptable: true})
	r.NoError(err)
	return l
}

// An expiry, a force-release and the holder's own release all wait for the transaction.
func TestFencedTransactionKeepsLock(t *testing.T) {
	for name, end := range map[string]func(r *rig, l *holdfast.Lease) error{
		"lapse": func(r *rig, _ *holdfast.Lease) error {
			r.execSQL("UPDATE holdfast.lock SET expires = clock_timestamp()")
			return nil
		},
		"release": func(_ *rig, l *holdfast.Lease) error { return l.Release(context.Background()) },
		"force": func(r *rig, l *holdfast.Lease) error {
			return r.newClient().ForceRelease(r.WaitContext(), "k", l.Token(), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t)
			d := r.newDriver()
			l := r.holdLock(d, endlessTTL)
			tx := r.beginTx()
			r.NoError(d.FenceTx(t.Context(), tx, l))
			other := r.newClient()
			next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(other, "k", endlessTTL) })
			r.Eventually("another waits", func() bool { return r.waiterCount("k") == 1 })
			r.NoError(end(r, l))
			r.Eventually("the lease is over", func() bool {
				return r.countRows("SELECT count(*) FROM holdfast.lock WHERE expires <= clock_timestamp()") == 1
			})
			if _, err := r.newClient().TryAcquire(r.WaitContext(), "k", nil); !errors.Is(err, holdfast.ErrHeld) {
				t.Errorf("TryAcquire() = %v, want ErrHeld", err)
			}
			select {
			case <-next:
				t.Fatal("the lock passed on, and the transaction can still commit")
			default:
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
			r.Release(<-next)
		})
	}
}

// This also holds if no client waits for the lock.
func TestReleaseWaitsForFencedTransaction(t *testing.T) {
	r := startRig(t)
	d, other := r.newDriver(), r.newClient()
	l, tx := r.holdLock(d, endlessTTL), r.beginTx()
	r.NoError(d.FenceTx(t.Context(), tx, l))
	r.Release(l)
	if _, err := other.TryAcquire(r.WaitContext(), "k", nil); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("TryAcquire() = %v, want ErrHeld", err)
	}
	r.NoError(tx.Commit(t.Context()))
	r.Release(r.Acquire(other, "k", endlessTTL))
}

// Adoption waits for the transaction like any other takeover.
func TestAdoptionWaitsForFencedTransaction(t *testing.T) {
	r := startRig(t)
	d, heir := r.newDriver(), r.newClient()
	l := r.holdLock(d, endlessTTL)
	tx := r.beginTx()
	r.NoError(d.FenceTx(t.Context(), tx, l))
	r.NoError(l.Detach())
	under, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := heir.Adopt(under, "k", l.Owner(), l.Token(), &holdfast.AcquireOptions{TTL: endlessTTL}); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("Adopt() under the transaction = %v, want ErrUnavailable", err)
	}
	if err := heir.Close(); err != nil { // waits for its statements
		t.Error(err)
	}
	heir = r.newClient()
	tx.Commit(t.Context())
	next, err := heir.Adopt(r.WaitContext(), "k", l.Owner(), l.Token(), nil)
	r.NoError(err)
	r.Release(next)
}

func TestRenewalsContinueUnderTransaction(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	l := r.Acquire(r.Client(d), "k", endlessTTL)
	tx := r.beginTx()
	r.NoError(d.FenceTx(t.Context(), tx, l))
	if err := l.Extend(r.WaitContext(), endlessTTL); err != nil {
		t.Errorf("Extend() = %v", err)
	}
	if err := d.FenceTx(t.Context(), tx, l); err != nil {
		t.Errorf("a second look: %v", err)
	}
	tx.Commit(t.Context())
	r.Release(l)
}

func TestFenceTxRejectsEndedLease(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	l := r.holdLock(d, endlessTTL)
	r.NoError(r.newClient().ForceRelease(r.WaitContext(), "k", l.Token(), ""))
	if err := d.FenceTx(t.Context(), r.beginTx(), l); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("after a force release: %v, want ErrLost", err)
	}
	next := r.Acquire(r.newClient(), "k", endlessTTL)
	if err := d.FenceTx(t.Context(), r.beginTx(), l); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("after another has taken it: %v, want ErrLost", err)
	}
	r.Release(next)
	if err := d.FenceTx(t.Context(), r.beginTx(), next); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("after its release: %v, want ErrLost", err)
	}
	if err := postgres.FenceTx(t.Context(), r.beginTx(), next); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("by the default schema: %v, want ErrLost", err)
	}
}

// Holders whose leases end at any moment increment a number.
func TestFenceTxPreventsLostUpdates(t *testing.T) {
	r := startRig(t)
	r.execSQL("CREATE TABLE holdfast.account (balance bigint NOT NULL); INSERT INTO holdfast.account VALUES (0)", pgx.QueryExecModeSimpleProtocol)
	thief := r.newClient()
	var mu sync.Mutex
	committed := 0
	var all sync.WaitGroup
	for range 4 {
		d := r.newDriver()
		c := r.Client(d)
		all.Go(func() {
			for range 10 {
				l := r.Acquire(c, "k", 100*time.Millisecond) // short: the lease may end at any moment
				when := rand.IntN(4)                         // the lease is lost: before the transaction, in it, or not
				err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
					if when == 0 {
						thief.ForceRelease(t.Context(), "k", l.Token(), "")
					}
					if err := d.FenceTx(t.Context(), tx, l); err != nil {
						return err
					}
					if when == 1 {
						thief.ForceRelease(t.Context(), "k", l.Token(), "")
					}
					var balance int
					if err := tx.QueryRow(t.Context(), r.in("SELECT balance FROM holdfast.account")).Scan(&balance); err != nil {
						return err
					}
					time.Sleep(rand.N(10 * time.Millisecond)) // so that holders overlap
					_, err := tx.Exec(t.Context(), r.in("UPDATE holdfast.account SET balance = $1"), balance+1)
					return err
				})
				switch {
				case err == nil:
					mu.Lock()
					committed++
					mu.Unlock()
				case !errors.Is(err, holdfast.ErrLost):
					t.Error(err)
				}
				l.Release(t.Context())
			}
		})
	}
	all.Wait()
	if n := r.countRows("SELECT balance FROM holdfast.account"); n != committed || n == 0 {
		t.Errorf("%d after %d committed updates", n, committed)
	}
}

// On a dead connection, FenceTx ends with its context. The rollback then has no answer to wait for. If FenceTx
// failed before it asked the server, the rollback ends with its own context.
func TestFenceTxEndsWithContext(t *testing.T) {
	r := startRig(t)
	l := r.holdLock(r.newDriver(), endlessTTL)
	for _, over := range []bool{false, true} {
		link := r.newRelay()
		host, port, _ := strings.Cut(link.Addr, ":")
		pool := r.openPool(fmt.Sprintf("host=%s port=%s user=holdfast dbname=postgres sslmode=disable", host, port))
		tx, err := pool.Begin(r.WaitContext())
		r.NoError(err)
		if over {
			r.Release(l)
		}
		link.Set(func() { link.Hole = true })
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err = postgres.FenceTx(ctx, tx, l)
		if !over && !errors.Is(err, context.DeadlineExceeded) || over && !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("FenceTx() = %v", err)
		}
		bound := context.Background()
		if over {
			bound = ctx
		}
		ended := make(chan error, 1)
		go func() { ended <- tx.Rollback(bound) }()
		select {
		case <-ended:
		case <-time.After(fixture.MaxWait() / 2):
			t.Errorf("over %v: the rollback did not end", over)
		}
		cancel()
		link.Set(func() { link.Hole = false })
	}
}
