//go:build linux

package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq" // the driver of pglock

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/postgres"
)

//go:embed schedule-postgres.json
var postgresSchedule []byte

var postgresBackend = &backend{
	schedule: postgresSchedule, classes: postgresClasses, fewest: 1, site: func() site { return new(postgresSite) }, lead: twoSecondStart,
	open: func(ctx context.Context, o *order) (driver.Driver, error) { return postgres.Open(ctx, o.Nodes[0], nil) },
	peer: "pglock", openPeer: openPglock,
}

const serverClock = "the server's clock decides when a lease ends"

var postgresClasses = map[string]class{
	"calm":              {lives: true},
	after:               {lives: true},
	"migration":         {lives: true, patient: true},
	"client-pause":      {extra: deadWaiterTime},
	"client-kill":       {extra: deadWaiterTime},
	"client-close":      {},
	"client-throttle":   {from: fromEnd},
	"crowd":             {lives: true},
	"client-slow-hooks": {lives: true},
	"node-kill":         {from: fromEnd},
	"node-pause":        {from: fromEnd},
	"pooler-kill":       {from: fromEnd},
	"net-delay":         {},
	"rotation":          {from: fromEnd, lives: true, patient: true},
	"rotation-cut":      {from: fromEnd, extra: rotationPause, patient: true},
	"switch-over":       {from: fromEnd, lives: true, patient: true},
	"turnstile":         {lives: true, patient: true},
	"net-reset":         {from: fromEnd},
	"link-dead":         {lives: true, patient: true},
	"net-one-way":       {from: fromEnd},
	"net-split":         {from: fromEnd},
	"clock-jump":        {shared: serverClock, from: fromEnd},
	"late-requests":     {duty: stretching, from: fromEnd, extra: deadWaiterTime},
	"operator":          {duty: passing, from: fromEnd, extra: deadWaiterTime},
	"mixed":             {from: fromEnd, extra: deadWaiterTime},
}

// deadWaiterTime bounds the time beyond a TTL until the next grant when suspended or dead waiters are ahead in the
// queue: the lock is handed to each for a second.
const deadWaiterTime = 4 * time.Second

// postgresSite is a server. Behind its second proxy is a pooler in transaction mode, which every second client
// uses.
type postgresSite struct {
	dir    string // folder of the clock; the server's user can read it
	server *pgproc.Server
	pooler *pgproc.Pooler
	life   sync.Mutex // held by the fault that kills the pooler
	only   []*node
	inside *faultproxy.Proxy // to the primary, for this program, without faults
	direct *postgres.Driver
	tables string // file with the SQL of the tables; empty: this build's
}

func (s *postgresSite) start(ctx context.Context, _ *Schedule) (err error) {
	if s.dir, err = os.MkdirTemp("", "holdfast-chaos-"); err != nil {
		return err
	}
	n := &node{clock: clock(filepath.Join(s.dir, "clock"))}
	s.only = []*node{n}
	shim, err := buildShim(ctx, s.dir)
	if err := errors.Join(err, n.clock.shift(0), os.Chmod(s.dir, 0o755)); err != nil {
		return err
	}
	s.server, err = pgproc.StartWith(ctx, []string{"LD_PRELOAD=" + shim, "CHAOS_CLOCK=" + string(n.clock)}, "max_connections=200")
	if err != nil {
		return err
	}
	n.server = s.server
	if s.pooler, err = pgproc.StartPooler(ctx, s.server, "transaction", 40); err != nil {
		return err
	}
	n.pooler = s.pooler
	for i, dsn := range []string{s.server.DSN(), s.pooler.DSN()} {
		if n.proxies[i], err = faultproxy.NewOpaque(socketOf(dsn)); err != nil {
			return err
		}
	}
	if s.inside, err = faultproxy.NewOpaque(socketOf(s.server.DSN())); err != nil {
		return err
	}
	if err := s.wantPasswords(ctx); err != nil {
		return err
	}
	s.direct, err = postgres.Open(ctx, s.valuesDSN(), &postgres.Options{NoCheck: true}) // its tables are created now or in the class migration
	if err != nil {
		return err
	}
	return s.makeTables(ctx)
}

// socketOf returns the socket's folder in a server's DSN.
func socketOf(dsn string) string {
	dir, _, _ := strings.Cut(strings.TrimPrefix(dsn, "host="), " ")
	return filepath.Join(dir, ".s.PGSQL.5432")
}

// makeTables creates the tables of Holdfast, of pglock, and of the values that the locks guard.
func (s *postgresSite) makeTables(ctx context.Context) error {
	db, err := sql.Open("postgres", s.server.DSN())
	if err != nil {
		return err
	}
	defer db.Close()
	if s.tables == "" {
		err = s.direct.Migrate(ctx)
	} else {
		var text []byte
		if text, err = os.ReadFile(s.tables); err == nil {
			_, err = db.ExecContext(ctx, string(text))
		}
	}
	if err != nil {
		return err
	}
	locks, err := pglock.New(db)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, createValues)
	return errors.Join(err, locks.CreateTable())
}

func (s *postgresSite) stop() (errs error) {
	if s.direct != nil {
		errs = s.direct.Close()
	}
	for _, n := range s.only {
		errs = errors.Join(errs, n.close())
	}
	if s.inside != nil {
		errs = errors.Join(errs, s.inside.Close())
	}
	if s.pooler != nil {
		errs = errors.Join(errs, s.pooler.Stop())
	}
	if s.server != nil {
		errs = errors.Join(errs, s.server.Stop())
	}
	return errors.Join(errs, os.RemoveAll(s.dir))
}

func (s *postgresSite) nodes() []*node { return s.only }

func (s *postgresSite) leader(context.Context) int { return 0 }

func (s *postgresSite) actions() map[string]action {
	all := s.turnstiles().actions()
	maps.Copy(all, map[string]action{"kill-pooler": s.killPooler, "migrate": s.migrateTables, "rotate": s.rotate, "switch": s.promoteReplica})
	return all
}

// migrateTables runs Count migrations at once. It first marks the tables as older, so that the migration does
// all its work; a client that starts meanwhile waits.
func (s *postgresSite) migrateTables(f Fault, _ int, _ func(time.Duration)) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := sql.Open("postgres", s.server.DSN())
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "UPDATE holdfast.version SET version = version - 1"); err != nil {
		return err
	}
	errs := make(chan error, f.Count)
	for range f.Count {
		go func() { errs <- s.direct.Migrate(ctx) }()
	}
	for range f.Count {
		err = errors.Join(err, <-errs)
	}
	return err
}

func (s *postgresSite) killPooler(f Fault, _ int, rest func(time.Duration)) error {
	s.life.Lock()
	defer s.life.Unlock()
	s.pooler.Kill()
	rest(time.Duration(f.For))
	return restartServer(s.pooler.Restart)
}

// setConnections sets the connection strings of a client. pglock bypasses the pooler, which does not support its
// prepared statements.
func (s *postgresSite) setConnections(o *order, client int) {
	side := client % sides
	if o.Peer {
		side = 0
	}
	dsn := proxyDSN(s.only[0].proxies[side], "holdfast")
	o.Nodes, o.Stores.Row = []string{dsn}, dsn
	if side == 0 && !o.Peer {
		o.Nodes = []string{proxyDSN(s.only[0].proxies[side], user) + " passfile=" + s.passfile()}
	}
}

// proxyDSN returns the DSN of the database behind a proxy.
func proxyDSN(p *faultproxy.Proxy, user string) string {
	host, port, _ := net.SplitHostPort(p.Addr())
	return fmt.Sprintf("host=%s port=%s user=%s dbname=postgres sslmode=disable", host, port, user)
}

func (s *postgresSite) valuesDSN() string { return proxyDSN(s.inside, "holdfast") }

func (s *postgresSite) findStaleLocks(ctx context.Context, span *span, ttl time.Duration) ([]string, error) {
	return heldLocks(ctx, s.direct, span.prefix(), ttl)
}

// rowFenced has its values beside the locks. The write checks the row of the lock, which also covers the
// holder's earlier read.
func rowFenced(pool *pgxpool.Pool) *store {
	return &store{
		name: byRow,
		get: func(ctx context.Context, key string, _ heldLock) (string, error) {
			return selectRow(ctx, pool, key)
		},
		set: func(ctx context.Context, key string, h heldLock, value string) error {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
				defer cancel()
				tx.Rollback(ctx)
			}()
			if err := postgres.FenceTx(ctx, tx, h.lease); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, upsertValue, key, value); err != nil {
				return err
			}
			return tx.Commit(ctx)
		},
	}
}

// selectRow reads a value with a lock that only a writable server grants. After a switch-over the old primary
// still answers reads, and a write based on such a read would undo later writes.
func selectRow(ctx context.Context, pool *pgxpool.Pool, key string) (v string, err error) {
	err = pool.QueryRow(ctx, "SELECT value FROM chaos WHERE name = $1 FOR KEY SHARE", key).Scan(&v)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return v, err
}

// pglocks uses pglock with Holdfast's TTL and renewal interval.
type pglocks struct {
	db    *sql.DB
	locks *pglock.Client
	rec   *recorder
}

func openPglock(o *order, rec *recorder) (service, error) {
	db, err := sql.Open("postgres", o.Nodes[0])
	if err != nil {
		return nil, err
	}
	ttl := time.Duration(o.Schedule.TTL)
	locks, err := pglock.New(db, pglock.WithLeaseDuration(ttl), pglock.WithHeartbeatFrequency(ttl/3))
	return pglocks{db, locks, rec}, err
}

func (p pglocks) takeLock(ctx context.Context, key string, _ lockRequest) (heldLock, error) {
	beating := pglock.WithCustomHeartbeatContext(context.WithoutCancel(ctx)) // renewals must not end with the wait
	l, err := p.locks.AcquireContext(ctx, key, beating)
	if err != nil {
		return heldLock{}, err
	}
	return newBelief(p.rec, key, func() bool { return !l.IsReleased() }, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, storeTime)
		defer cancel()
		return p.locks.ReleaseContext(ctx, l)
	}), nil
}

func (pglocks) executeOrder(_ context.Context, order string) error { return unknownOrder(order) }

func (p pglocks) close() { p.db.Close() }
