package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/postgres"
)

// replicatedPair is a primary with a replica. Clients connect to the server that is primary.
type replicatedPair struct {
	*rig
	primary, replica *pgproc.Server
	standby          *pgxpool.Pool // directly to the replica
}

func startPair(t *testing.T) *replicatedPair {
	t.Helper()
	primary := startAlone(t, "max_connections=50")
	replica, err := primary.StartReplica(t.Context())
	p := &replicatedPair{rig: newRigOn(t, primary), primary: primary, replica: fixture.StopAtEnd(t, replica, err)}
	p.standby = p.openPool(p.replica.DSN())
	return p
}

func (p *replicatedPair) newDriver() *postgres.Driver {
	p.Helper()
	hosts := make([]string, 2)
	for i, s := range []*pgproc.Server{p.primary, p.replica} {
		hosts[i] = strings.TrimSuffix(socketPath(s.DSN()), "/.s.PGSQL.5432")
	}
	d, err := postgres.Open(p.Context(), "host="+strings.Join(hosts, ",")+
		" port=5432,5432 user=holdfast dbname=postgres sslmode=disable target_session_attrs=read-write", &p.opts)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { d.Close() })
	return d
}

func (p *replicatedPair) newClient() *holdfast.Client { p.Helper(); return p.Client(p.newDriver()) }

// awaitTrue waits until a server answers query with true.
func (p *replicatedPair) awaitTrue(server *pgxpool.Pool, query string, args ...any) {
	p.Helper()
	p.Eventually(query, func() (yes bool) {
		return server.QueryRow(p.Context(), query, args...).Scan(&yes) == nil && yes
	})
}

func (p *replicatedPair) setOption(server *pgxpool.Pool, line string) {
	p.Helper()
	for _, sql := range []string{"ALTER SYSTEM SET " + line, "SELECT pg_reload_conf()"} {
		if _, err := server.Exec(p.Context(), sql); err != nil {
			p.Fatal(err)
		}
	}
}

// catchUp waits until the replica has everything that the primary has written.
func (p *replicatedPair) catchUp() {
	p.Helper()
	var lsn string
	if err := p.pool.QueryRow(p.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&lsn); err != nil {
		p.Fatal(err)
	}
	p.awaitTrue(p.standby, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", lsn)
}

// cutOff stops the replication.
func (p *replicatedPair) cutOff() {
	p.Helper()
	p.setOption(p.standby, "primary_conninfo = ''")
	p.awaitTrue(p.standby, "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
}

// failOver kills the primary and promotes the replica.
func (p *replicatedPair) failOver() {
	p.Helper()
	p.primary.Kill()
	p.awaitTrue(p.standby, "SELECT pg_promote()")
	p.pool = p.standby
}

// A lagging replica may grant a lock whose older holder still trusts its lease. Replicated rows survive, and
// both FenceTx and a storage that compares tokens reject the older holder.
func TestTokensRiseAfterFailoverToLaggingReplica(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	d := p.newDriver()
	c := p.Client(d)
	kept := p.Acquire(c, "kept", endlessTTL)
	p.Release(p.Acquire(c, "lost", endlessTTL)) // the row and its token exist before the grant
	p.catchUp()
	p.cutOff()
	older := p.Acquire(c, "lost", endlessTTL)
	var storage fence.Guard
	write := func(l *holdfast.Lease) error {
		return storage.Do(l.Key(), l.Token(), l.Owner(), func() error { return nil })
	}
	if err := write(older); err != nil {
		t.Fatal(err)
	}
	p.failOver()

	if _, err := p.newClient().TryAcquire(p.WaitContext(), "kept", nil); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("TryAcquire() of a replicated lock = %v, want ErrHeld", err)
	}
	if err := kept.Extend(p.WaitContext(), endlessTTL); err != nil {
		t.Errorf("Extend() of a replicated lock = %v", err)
	}
	newer := p.Acquire(p.newClient(), "lost", endlessTTL) // exclusion is broken: the failover lost the grant
	if err := older.Context().Err(); err != nil {
		t.Errorf("the older holder already noticed: %v", err)
	}
	if newer.Token() <= older.Token() {
		t.Errorf("token %d after %d", newer.Token(), older.Token())
	}
	if err := write(newer); err != nil {
		t.Error(err)
	}
	if err := write(older); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a write of the older holder: %v, want ErrStale", err)
	}
	err := pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error { return d.FenceTx(t.Context(), tx, older) })
	if !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("FenceTx() for the older holder = %v, want ErrLost", err)
	}
	if err := older.Extend(p.WaitContext(), endlessTTL); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("Extend() by the older holder = %v, want ErrLost", err)
	}
	p.Release(newer, kept)
}

// A grant is confirmed only once the synchronous replica has it.
func TestSynchronousReplicaHasEveryTrustedGrant(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	p.setOption(p.pool, "synchronous_standby_names = '*'")
	p.awaitTrue(p.pool, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
	c := p.newClient()
	l := p.Acquire(c, "k", endlessTTL)
	p.cutOff()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.TryAcquire(ctx, "other", nil); !errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("TryAcquire() without the replica = %v, want no answer", err)
	}
	p.failOver()
	if _, err := p.newClient().TryAcquire(p.WaitContext(), "k", nil); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("TryAcquire() after the failover = %v, want ErrHeld", err)
	}
	if err := l.Extend(p.WaitContext(), endlessTTL); err != nil {
		t.Errorf("Extend() = %v", err)
	}
	p.Release(l)
}

// Tickets and releases do not wait for a replica: losing them in a crash is harmless.
func TestTicketsAndReleasesDoNotAwaitReplicas(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	p.setOption(p.pool, "synchronous_standby_names = '*'")
	p.awaitTrue(p.pool, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
	l := p.Acquire(p.newClient(), "k", endlessTTL)
	p.cutOff()
	waiting := p.newDriver()
	ctx, cancel := context.WithCancel(p.WaitContext())
	told, over := make(chan error, 9), make(chan error, 1)
	go func() {
		_, err := waiting.Acquire(ctx, driver.Request{Key: "k", TTL: endlessTTL, OnObstacle: func(err error) { told <- err }})
		over <- err
	}()
	if err := <-told; !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a waiter got %v, want ErrHeld", err)
	}
	if err := l.Release(p.WaitContext()); err != nil {
		t.Errorf("Release() = %v", err)
	}
	cancel() // it cannot confirm the hand-over
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire() = %v, want the end of the wait", err)
	}
}
