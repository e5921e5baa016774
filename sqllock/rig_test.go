package sqllock_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/tempo"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/sqllock"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
)

const (
	// long is a TTL that does not end within a test. brief is a TTL that gives a statement little time.
	long  = fixture.LongTTL
	brief = time.Second
)

// The servers are shared by all tests; each test has its own tables.
var (
	mariaDB  *mariaproc.Server
	mySQL    *mariaproc.Server // nil: not downloaded
	prefixes atomic.Int32
)

func TestMain(m *testing.M) {
	if name := os.Getenv(roleVariable); name != "" {
		tempo.Adopt()
		os.Exit(roles[name]())
	}
	fixture.Main(m, 6, func(ctx context.Context) (stop func() error, err error) {
		stop = func() (errs error) {
			for _, s := range []*mariaproc.Server{mariaDB, mySQL} {
				if s != nil {
					errs = errors.Join(errs, s.Stop())
				}
			}
			return errs
		}
		if mariaDB, err = mariaproc.Start(ctx, "--max-connections=400"); err == nil && !testing.Short() {
			mySQL, err = mariaproc.StartMySQL(ctx, "--max-connections=400")
		}
		if errors.Is(err, child.ErrNotFetched) {
			err = nil // newRig reports the missing server
		}
		if err = errors.Join(err, prepareServer(ctx, mariaDB), prepareServer(ctx, mySQL)); err != nil {
			return nil, errors.Join(err, stop())
		}
		return stop, nil
	})
}

// prepareServer creates the database for the tests.
func prepareServer(ctx context.Context, s *mariaproc.Server) error {
	if s == nil {
		return nil
	}
	db, err := sql.Open("mysql", "root@unix("+s.Socket()+")/")
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, "CREATE DATABASE test")
	return err
}

// database is a kind of database under test.
type database struct {
	name     string
	dialect  sqllock.Dialect
	second   bool   // MySQL instead of MariaDB
	settings string // session settings of clients
	schema   string // a database of the server; empty: test
}

var (
	onMariaDB = database{name: "MariaDB", dialect: sqllock.MySQL}
	onMySQL   = database{name: "MySQL", dialect: sqllock.MySQL, second: true}
	onSQLite  = database{name: "SQLite", dialect: sqllock.SQLite}
	servers   = []database{onMariaDB, onMySQL}
	kinds     = append(servers, onSQLite)
)

// rig holds the tables in a database and the clients that use them.
type rig struct {
	*fixture.Rig
	database
	prefix string
	file   string // the SQLite file
	db     *sql.DB
	most   int // connections per client
	wait   int // connections for waiters; 0: the default
}

// forEach runs a test on each database, in parallel.
func forEach(t *testing.T, all []database, test func(r *rig)) {
	t.Parallel()
	for _, b := range all {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			test(newRig(t, b))
		})
	}
}

func newRig(t testing.TB, b database) *rig {
	t.Helper()
	switch {
	case !b.second || mySQL != nil:
	case testing.Short():
		t.Skip("-short goes through MariaDB alone")
	case child.Required():
		t.Fatal("there is no MySQL: call tools/servers")
	default:
		t.Skip("there is no MySQL: tools/servers fetches it")
	}
	r := &rig{Rig: fixture.New(t), database: b, prefix: fmt.Sprintf("t%d_", prefixes.Add(1)), most: 4}
	if b.dialect == sqllock.SQLite {
		r.prefix, r.file = "holdfast_", filepath.Join(t.TempDir(), "locks.db")
		r.db = r.openPool("")
	} else {
		r.db = r.openPool(r.socketPath())
	}
	r.migrate()
	return r
}

// migrate creates the tables.
func (r *rig) migrate() {
	r.Helper()
	d, err := sqllock.New(r.Context(), r.db, r.dialect, &sqllock.Options{Prefix: r.prefix, NoCheck: true})
	r.NoError(err)
	defer d.Close()
	r.NoError(d.Migrate(r.Context()))
}

// socketPath returns the path at which the server listens.
func (r *rig) socketPath() string {
	if r.second {
		return mySQL.Socket()
	}
	return mariaDB.Socket()
}

// openPool opens the database, at a socket or through a relay.
func (r *rig) openPool(at string) *sql.DB {
	r.Helper()
	var db *sql.DB
	var err error
	switch {
	case r.dialect == sqllock.SQLite:
		db, err = sql.Open("sqlite", "file:"+r.file+"?_pragma=busy_timeout(200)&_pragma=journal_mode(wal)&_txlock=immediate")
	case strings.Contains(at, ":"):
		db, err = sql.Open("mysql", "root@tcp("+at+")/"+cmp.Or(r.schema, "test")+"?interpolateParams=true"+r.settings)
	default:
		db, err = sql.Open("mysql", "root@unix("+at+")/"+cmp.Or(r.schema, "test"))
	}
	r.NoError(err)
	r.Cleanup(func() { db.Close() })
	return db
}

// openLinked opens a driver for one more client; on a server, through a proxy of its own.
func (r *rig) openLinked() (driver.Driver, error) {
	if r.dialect == sqllock.SQLite {
		return sqlite.Open(r.Context(), "sqlite://"+r.file, nil)
	}
	l := r.newRelay()
	d, err := r.openOn(r.openPool(l.Addr))
	if err != nil {
		return nil, err
	}
	r.Route(d, l)
	return d, nil
}

func (r *rig) openOn(db *sql.DB) (*sqllock.Driver, error) {
	db.SetMaxOpenConns(r.most)
	return sqllock.New(r.Context(), db, r.dialect, &sqllock.Options{Prefix: r.prefix, MaxWaitConns: r.wait})
}

func (r *rig) newRelay() *fixture.Link {
	r.Helper()
	return fixture.Relay(r, r.socketPath(), func() fixture.Protocol { return &fixture.MySQL{} })
}

func (r *rig) newDriver() *sqllock.Driver {
	r.Helper()
	d, err := r.openLinked()
	fixture.CloseAtEnd(r.Rig, d, err)
	if file, ok := d.(*sqlite.Driver); ok {
		return file.Driver
	}
	return d.(*sqllock.Driver)
}

func (r *rig) newClient() *holdfast.Client { r.Helper(); return r.Client(r.newDriver()) }

func (r *rig) linkOf(d driver.Driver) *fixture.Link { return r.Links(d)[0] }

// in replaces the prefix in a statement by the prefix of r.
func (r *rig) in(text string) string { return strings.ReplaceAll(text, "holdfast_", r.prefix) }

func (r *rig) execSQL(text string) {
	r.Helper()
	_, err := r.db.ExecContext(r.Context(), r.in(text))
	r.NoError(err)
}

func (r *rig) countRows(text string) (n int) {
	r.Helper()
	r.NoError(r.db.QueryRowContext(r.Context(), r.in(text)).Scan(&n))
	return n
}

// waiterCount returns the number of tickets that have not expired.
func (r *rig) waiterCount() int {
	r.Helper()
	return r.countRows(fmt.Sprint("SELECT COUNT(*) FROM holdfast_ticket WHERE expires > ", time.Now().UnixMicro()))
}

// leftoverRows returns all locks and tickets.
func (r *rig) leftoverRows() (left []string, err error) {
	now := time.Now().UnixMicro()
	for kind, text := range map[string]string{
		"lock": "SELECT name FROM holdfast_lock WHERE owner <> '' AND expires > ", "ticket": "SELECT name FROM holdfast_ticket WHERE expires > ",
	} {
		rows, err := r.db.QueryContext(r.Context(), r.in(fmt.Sprint(text, now)))
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				return nil, err
			}
			left = append(left, kind+" "+name)
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// checkCleared waits until the tables are empty, long before the rows could expire.
func (r *rig) checkCleared() {
	r.Helper()
	r.Eventually("nothing is left", func() bool {
		left, err := r.leftoverRows()
		return err == nil && len(left) == 0
	})
}

// timeLeft returns the time until the lock "k" expires.
func (r *rig) timeLeft() time.Duration {
	r.Helper()
	return time.Until(time.UnixMicro(int64(r.countRows("SELECT expires FROM holdfast_lock WHERE name = 'k'"))))
}

// lockStamp returns the stamp of the lock "k".
func (r *rig) lockStamp() int {
	r.Helper()
	return r.countRows("SELECT stamp FROM holdfast_lock WHERE name = 'k'")
}

// lockService returns r for the conformance suite.
func (r *rig) lockService() locktest.Service {
	return r.Service(1, r.openLinked, r.leftoverRows)
}

// runTogether calls fn n times in parallel.
func runTogether(n int, fn func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { fn(i) })
	}
	all.Wait()
}
