package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/postgres"
)

// startPooler starts a pgbouncer before the server, and restarts it whenever it exits: version 1.18 may crash
// when statements are cancelled while the server is busy (pgbouncer/pgbouncer#822).
func startPooler(t testing.TB, mode string) *pgproc.Pooler {
	t.Helper()
	ctx := t.Context()
	p, err := pgproc.StartPooler(ctx, server, mode, 20)
	if err != nil {
		t.Fatal(err)
	}
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		for {
			select {
			case <-p.Exited():
			case <-ctx.Done():
				return
			}
			t.Logf("pgbouncer was restarted; its last output: %s", p.Log())
			if err := p.Restart(ctx); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	t.Cleanup(func() {
		<-kept
		p.Stop()
	})
	return p
}

func TestConformanceBehindTransactionPooler(t *testing.T) {
	gates.Nightly(t, "sizes") // TestSessionSettingsDoNotChangeAnswers compares its statements
	t.Parallel()
	p := startPooler(t, "transaction")
	locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service {
		r := newRig(t)
		r.socket = socketPath(p.DSN())
		s := r.lockService()
		s.NoAlerts = true
		return s
	}})
}

// LISTEN does not work behind a pooler in transaction mode.
func TestDriverReportsPollingBehindPoolerOnce(t *testing.T) {
	for mode, listens := range map[string]bool{"transaction": false, "session": true} {
		t.Run(mode, func(t *testing.T) {
			r := startRig(t)
			r.socket = socketPath(startPooler(t, mode).DSN())
			d := r.newDriver()
			var mu sync.Mutex
			var events []driver.NodeEvent
			c, err := holdfast.New(d, &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) {
				mu.Lock()
				defer mu.Unlock()
				events = append(events, e)
			}}})
			r.NoError(err)
			for range 2 { // only the first wait reports it
				l := r.Acquire(r.newClient(), "k", endlessTTL)
				next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(c, "k", endlessTTL) })
				r.Eventually("the waiter has found out", func() bool {
					if listens {
						return r.listenerCount() == 1
					}
					return r.waiterCount("k") == 1 && d.Nodes()[0].State == driver.NodePolling
				})
				r.Release(l)
				r.Release(<-next)
			}
			if err := c.Close(); err != nil { // no event comes after Close
				t.Error(err)
			}
			if listens && len(events) != 0 || !listens && (len(events) != 1 || events[0].State != driver.NodePolling || events[0].Err == nil) {
				t.Errorf("events %+v, want one that reports polling: %v", events, !listens)
			}
		})
	}
}

// Behind a pooler, a connection also receives the notifications of clients whose LISTEN went to the same session.
func TestOthersNotificationDoesNotProveListening(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	heard, err := d.ReceivesOwnNotification(r.Context(), "other", func() { r.execSQL("SELECT pg_notify('other', '')") })
	if heard || err != nil {
		t.Errorf("notifications to other clients only: listening = %v, %v; want false", heard, err)
	}
}

// endAfterNotify calls end when the server has answered a statement that notifies.
type endAfterNotify struct{ end func() }

// notifies is the context key of such a statement.
type notifies struct{}

func (e endAfterNotify) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "pg_notify") {
		return context.WithValue(ctx, notifies{}, true)
	}
	return ctx
}

func (e endAfterNotify) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(notifies{}) != nil {
		e.end()
	}
}

// On a busy server the time is over when the notification arrives. A session sends it before its next answer.
func TestLateNotificationProvesListening(t *testing.T) {
	r := startRig(t)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	cfg, err := pgxpool.ParseConfig(server.DSN())
	r.NoError(err)
	cfg.ConnConfig.Tracer = endAfterNotify{cancel}
	pool, err := pgxpool.NewWithConfig(r.Context(), cfg)
	r.NoError(err)
	defer pool.Close()
	d, err := postgres.New(r.Context(), pool, &r.opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	if heard, err := d.ReceivesOwnNotification(ctx, "", func() {}); !heard || err != nil {
		t.Errorf("a connection that hears late is taken for one that does not: %v, %v", heard, err)
	}
}

// The number belonged to a connection that has ended, or belongs to a process of another server.
func TestEqualProcessNumberIsNoSharedSession(t *testing.T) {
	r := startRig(t)
	cfg, err := pgxpool.ParseConfig(server.DSN())
	r.NoError(err)
	var opened atomic.Pointer[postgres.Driver]
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		if d := opened.Load(); d != nil {
			d.NoteProcess(conn.PgConn().PID())
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(r.Context(), cfg)
	r.NoError(err)
	defer pool.Close()
	d, err := postgres.New(r.Context(), pool, &r.opts)
	opened.Store(fixture.CloseAtEnd(r.Rig, d, err))
	r.NoError(d.OpenWaitConn(r.WaitContext()))
}

// The server crashes while clients hold locks and wait for them.
func TestLocksSurviveServerCrash(t *testing.T) {
	t.Parallel()
	s := startAlone(t, "synchronous_commit=on")
	r := newRigOn(t, s)
	d := r.newDriver()
	l := r.Acquire(r.Client(d), "k", endlessTTL)
	waiter := r.newClient()
	next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", endlessTTL) })
	r.Eventually("another waits", func() bool { return r.waiterCount("k") == 1 })
	s.Kill()
	r.NoError(s.Restart(t.Context()))
	if _, err := r.newClient().TryAcquire(r.WaitContext(), "k", nil); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("TryAcquire() after the crash = %v, want ErrHeld", err)
	}
	if err := l.Extend(r.WaitContext(), endlessTTL); err != nil {
		t.Errorf("Extend() after the crash = %v", err)
	}
	r.Release(l)
	after := <-next
	if after.Token() <= l.Token() {
		t.Errorf("token %d after %d", after.Token(), l.Token())
	}
	r.Release(after)
}
