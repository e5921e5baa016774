package postgres_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/postgres"
)

const (
	// patience is how long anything may take that is certain to come.
	patience = 20 * time.Second
	// long is a TTL that does not end within a test.
	long = 40 * time.Second
)

// server is one server for all tests; each has a schema of its own.
var (
	server  *pgproc.Server
	schemas atomic.Int32
)

// TestMain lets more tests run at once than there are processors, as most of them
// wait.
func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "6")
	os.Exit(leaktest.Run(served{m}))
}

type served struct{ *testing.M }

func (s served) Run() int {
	var err error
	if server, err = pgproc.Start(context.Background(), "max_connections=400"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Stop()
	return s.M.Run()
}

// socket is where a server or pooler with this DSN listens.
func socket(dsn string) string {
	dir, _, _ := strings.Cut(strings.TrimPrefix(dsn, "host="), " ")
	return dir + "/.s.PGSQL.5432"
}

// rig is a schema of the server and its clients.
type rig struct {
	testing.TB
	socket string // to which clients go
	opts   postgres.Options
	pool   *pgxpool.Pool // straight to the server

	mu     sync.Mutex // guards what follows
	routes map[driver.Driver]*proxy
}

// start makes a schema for one parallel test.
func start(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newRig(t)
}

func newRig(t testing.TB) *rig { t.Helper(); return newRigOn(t, server) }

func newRigOn(t testing.TB, s *pgproc.Server) *rig {
	t.Helper()
	r := &rig{TB: t, socket: socket(s.DSN()), opts: postgres.Options{Schema: fmt.Sprintf("Test %d", schemas.Add(1))}, routes: make(map[driver.Driver]*proxy)}
	r.pool = r.connect(s.DSN())
	if err := postgres.Migrate(t.Context(), r.pool, &r.opts); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) connect(dsn string) *pgxpool.Pool {
	r.Helper()
	pool, err := pgxpool.New(r.Context(), dsn)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(pool.Close)
	return pool
}

// open returns the driver of one more client, behind a proxy of its own.
func (r *rig) open() (driver.Driver, error) { return r.openWith(r.opts) }

func (r *rig) openWith(opts postgres.Options) (*postgres.Driver, error) {
	p := newProxy(r, r.socket)
	host, port, _ := strings.Cut(p.listener.Addr().String(), ":")
	d, err := postgres.Open(r.Context(), fmt.Sprintf("host=%s port=%s user=holdfast dbname=postgres sslmode=disable", host, port), &opts)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routes[d] = p
	return d, nil
}

func (r *rig) driver() *postgres.Driver {
	r.Helper()
	d, err := r.openWith(r.opts)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { d.Close() })
	return d
}

func (r *rig) client() *holdfast.Client { r.Helper(); return r.clientOf(r.driver()) }

func (r *rig) clientOf(d driver.Driver) *holdfast.Client {
	r.Helper()
	c, err := holdfast.New(d, nil)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) route(d driver.Driver) *proxy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.routes[d]
}

func (r *rig) all(f func(p *proxy)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.routes {
		f(p)
	}
}

// stop makes the server look as if it were down.
func (r *rig) stop(down bool) {
	r.all(func(p *proxy) {
		p.set(func() { p.refuse = down })
		if down {
			p.cut()
		}
	})
}

// leftovers are all locks and tickets.
func (r *rig) leftovers() (left []string, err error) {
	rows, err := r.pool.Query(r.Context(), r.in(`
		SELECT 'lock ' || name FROM holdfast.lock WHERE owner IS NOT NULL AND expires > clock_timestamp() UNION ALL
		SELECT 'ticket ' || name FROM holdfast.ticket WHERE NOT gone`))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		left = append(left, text)
	}
	return left, rows.Err()
}

func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	r.Cleanup(cancel)
	return ctx
}

// service is r for the conformance suite.
func (r *rig) service() locktest.Service {
	return locktest.Service{
		Open: r.open, Nodes: 1,
		Cut:         func(d driver.Driver) { p := r.route(d); p.set(func() { p.hole = true }) },
		Mend:        func(d driver.Driver) { p := r.route(d); p.set(func() { p.hole = false }) },
		LoseReplies: func(k int) { r.all(func(p *proxy) { p.set(func() { p.lose = k }) }) },
		Delay:       func(d time.Duration) { r.all(func(p *proxy) { p.set(func() { p.delay = d }) }) },
		StopNodes:   func(int) { r.stop(true) }, StartNodes: func() { r.stop(false) },
		Deaf: r.opts.NoListen, Leftovers: r.leftovers,
	}
}

// in puts the schema of r into a statement.
func (r *rig) in(sql string) string {
	return strings.ReplaceAll(sql, "holdfast.", `"`+r.opts.Schema+`".`)
}

func (r *rig) exec(sql string, args ...any) {
	r.Helper()
	if _, err := r.pool.Exec(r.Context(), r.in(sql), args...); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.Helper()
	if err := r.pool.QueryRow(r.Context(), r.in(sql), args...).Scan(&n); err != nil {
		r.Fatal(err)
	}
	return n
}

func (r *rig) waiters(key string) int {
	r.Helper()
	return r.count("SELECT count(*) FROM holdfast.ticket WHERE name = $1 AND NOT gone", key)
}

// acquire asks again when answers came too late, as they may on a busy machine.
func (r *rig) acquire(c *holdfast.Client, key string, ttl time.Duration) *holdfast.Lease {
	r.Helper()
	for end := time.Now().Add(patience); ; {
		l, err := c.Acquire(r.within(), key, &holdfast.AcquireOptions{TTL: ttl})
		if err == nil {
			return l
		}
		if !errors.Is(err, holdfast.ErrUnavailable) || time.Now().After(end) {
			r.Errorf("Acquire(%q) = %v", key, err)
			panic("no lease")
		}
	}
}

func (r *rig) release(leases ...*holdfast.Lease) {
	r.Helper()
	for _, l := range leases {
		if err := l.Release(r.Context()); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			r.Fatalf("Release of %q = %v", l.Key(), err)
		}
	}
}

// eventually waits until ok returns true.
func (r *rig) eventually(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// cleared checks that nothing is left, long before it could lapse by itself.
func (r *rig) cleared() {
	r.Helper()
	r.eventually("nothing is left", func() bool {
		left, err := r.leftovers()
		return err == nil && len(left) == 0
	})
}
