package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/postgres"
)

// endlessTTL is a TTL that does not end within a test.
const endlessTTL = fixture.LongTTL

// server is shared by all tests; each test has its own schema.
var (
	server  *pgproc.Server
	schemas atomic.Int32
)

func TestMain(m *testing.M) {
	fixture.Main(m, 6, func(ctx context.Context) (stop func() error, err error) {
		if server, err = pgproc.Start(ctx, "max_connections=400"); err != nil {
			return nil, err
		}
		return server.Stop, nil
	})
}

// socketPath returns the path at which a server or pooler with this DSN listens.
func socketPath(dsn string) string {
	dir, _, _ := strings.Cut(strings.TrimPrefix(dsn, "host="), " ")
	return dir + "/.s.PGSQL.5432"
}

// startAlone starts a server that the test may break.
func startAlone(t *testing.T, settings ...string) *pgproc.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	s, err := pgproc.Start(t.Context(), settings...)
	return fixture.StopAtEnd(t, s, err)
}

// rig holds a schema of the server and the clients that use it.
type rig struct {
	*fixture.Rig
	socket string // address for clients
	opts   postgres.Options
	pool   *pgxpool.Pool // directly to the server
}

// startRig makes a schema for one parallel test.
func startRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newRig(t)
}

func newRig(t testing.TB) *rig { t.Helper(); return newRigOn(t, server) }

func newRigOn(t testing.TB, s *pgproc.Server) *rig {
	t.Helper()
	r := &rig{Rig: fixture.New(t), socket: socketPath(s.DSN()), opts: postgres.Options{Schema: fmt.Sprintf("Test %d", schemas.Add(1))}}
	r.pool = r.openPool(s.DSN())
	if err := r.migrate(r.pool, r.opts); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) openPool(dsn string) *pgxpool.Pool {
	r.Helper()
	pool, err := pgxpool.New(r.Context(), dsn)
	r.NoError(err)
	r.Cleanup(pool.Close)
	return pool
}

// openLinked opens a driver for one more client, behind a proxy of its own.
func (r *rig) openLinked() (driver.Driver, error) { return r.openWith(r.opts) }

func (r *rig) openWith(opts postgres.Options) (*postgres.Driver, error) {
	l := r.newRelay()
	host, port, _ := strings.Cut(l.Addr, ":")
	d, err := postgres.Open(r.Context(), fmt.Sprintf("host=%s port=%s user=holdfast dbname=postgres sslmode=disable", host, port), &opts)
	if err != nil {
		return nil, err
	}
	r.Route(d, l)
	return d, nil
}

func (r *rig) newRelay() *fixture.Link {
	r.Helper()
	return fixture.Relay(r, r.socket, func() fixture.Protocol { return &fixture.PostgreSQL{} })
}

func (r *rig) newDriver() *postgres.Driver {
	r.Helper()
	d, err := r.openWith(r.opts)
	return fixture.CloseAtEnd(r.Rig, d, err)
}

func (r *rig) newClient() *holdfast.Client { r.Helper(); return r.Client(r.newDriver()) }

func (r *rig) linkOf(d driver.Driver) *fixture.Link { return r.Links(d)[0] }

// leftoverRows returns all locks and tickets.
func (r *rig) leftoverRows() (left []string, err error) {
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

// lockService returns r for the conformance suite.
func (r *rig) lockService() locktest.Service {
	s := r.Service(1, r.openLinked, r.leftoverRows)
	s.NoAlerts = r.opts.NoListen
	return s
}

// in replaces the schema in a statement by the schema of r.
func (r *rig) in(sql string) string {
	return strings.ReplaceAll(sql, "holdfast.", `"`+r.opts.Schema+`".`)
}

func (r *rig) execSQL(sql string, args ...any) {
	r.Helper()
	if _, err := r.pool.Exec(r.Context(), r.in(sql), args...); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) countRows(sql string, args ...any) (n int) {
	r.Helper()
	r.NoError(r.pool.QueryRow(r.Context(), r.in(sql), args...).Scan(&n))
	return n
}

func (r *rig) waiterCount(key string) int {
	r.Helper()
	return r.countRows("SELECT count(*) FROM holdfast.ticket WHERE name = $1 AND NOT gone", key)
}

// listenerCount returns the number of waiters that are notified when the lock is handed to them.
func (r *rig) listenerCount() int {
	r.Helper()
	return r.countRows("SELECT count(*) FROM holdfast.ticket WHERE ltrim(channel, '+') ~ '^[A-Z0-9]'")
}

// checkCleared waits until the tables are empty, long before the rows could expire.
func (r *rig) checkCleared() {
	r.Helper()
	r.Eventually("nothing is left", func() bool {
		left, err := r.leftoverRows()
		return err == nil && len(left) == 0
	})
}

// withoutCheck returns opts with NoCheck set.
func withoutCheck(opts postgres.Options) *postgres.Options {
	opts.NoCheck = true
	return &opts
}

// migrate creates the tables.
func (r *rig) migrate(pool *pgxpool.Pool, opts postgres.Options) error {
	d, err := postgres.New(r.Context(), pool, withoutCheck(opts))
	r.NoError(err)
	defer d.Close()
	return d.Migrate(r.Context())
}
