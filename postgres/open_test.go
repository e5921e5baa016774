package postgres_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// checkRejected checks the error of Open, and that it shows no password.
func (r *rig) checkRejected(url string, opts *postgres.Options, is error, words ...string) {
	r.Helper()
	d, err := postgres.Open(r.Context(), url, opts)
	if err == nil {
		d.Close()
	}
	r.checkError(err, is, words...)
}

func (r *rig) checkError(err, is error, words ...string) {
	r.Helper()
	if !errors.Is(err, is) {
		r.Errorf("error %v, want one that matches %v", err, is)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			r.Errorf("error %q does not contain %q", err, word)
		}
	}
	if strings.Contains(err.Error(), "hunter") {
		r.Errorf("error %q contains a password", err)
	}
}

func TestSchemaErrorsNameFix(t *testing.T) {
	r := startRig(t)
	none := postgres.Options{Schema: "none"}
	r.checkRejected(server.DSN(), &none, driver.ErrUnavailable, `"none"`, "Migrate")
	r.execSQL("UPDATE holdfast.version SET version = 0")
	r.checkRejected(server.DSN(), &r.opts, driver.ErrUnavailable, "version 0", "Migrate")
	r.execSQL("UPDATE holdfast.version SET version = 1000")
	r.checkRejected(server.DSN(), &r.opts, driver.ErrUnavailable, "version 1000", "update the program")
	err := r.migrate(r.pool, r.opts)
	if err == nil || !strings.Contains(err.Error(), "version 1000") {
		t.Errorf("Migrate() of a newer schema = %v", err)
	}
	r.execSQL("UPDATE holdfast.version SET version = 1")
	r.checkRejected(server.DSN(), &r.opts, driver.ErrUnavailable, "version 1", "Migrate")
	r.NoError(r.migrate(r.pool, r.opts))
	d := r.newDriver()
	for _, part := range []string{"FUNCTION holdfast.force", "TABLE holdfast.ticket CASCADE"} {
		r.execSQL("DROP " + part)
		_, err = d.Force(r.WaitContext(), "k", 1, "")
		r.checkError(err, driver.ErrUnavailable, "Migrate")
		_, name, _ := strings.Cut(strings.TrimSuffix(part, " CASCADE"), ".")
		r.checkRejected(server.DSN(), &r.opts, driver.ErrUnavailable, "lacks", name, "Migrate")
	}
	r.NoError(r.migrate(r.pool, r.opts))
	r.AcquireGrant(r.newDriver(), "k", endlessTTL)
	r.checkRejected(server.DSN()+" holdfast_schema=nowhere", nil, driver.ErrUnavailable, `"nowhere"`)
}

func TestErrorNamesMissingPermissions(t *testing.T) {
	r := startRig(t)
	r.execSQL("CREATE ROLE " + pgx.Identifier{"none " + r.opts.Schema}.Sanitize() + " LOGIN")
	dsn := strings.Replace(server.DSN(), "user=holdfast", "user='none "+r.opts.Schema+"'", 1)
	r.checkRejected(dsn, &r.opts, driver.ErrUnavailable, "permission denied", "grant USAGE")
	err := r.migrate(r.openPool(dsn), postgres.Options{Schema: "other"})
	if err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("Migrate() without permissions = %v", err)
	}
	r.execSQL(`GRANT USAGE ON SCHEMA "` + r.opts.Schema + `" TO "none ` + r.opts.Schema + `"`)
	r.execSQL(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "` + r.opts.Schema + `" TO "none ` + r.opts.Schema + `"`)
	d, err := postgres.Open(t.Context(), dsn, &r.opts)
	r.NoError(err)
	c := r.Client(d)
	r.Release(r.Acquire(c, "k", endlessTTL)) // these permissions are enough
}

func TestWrongPasswordErrorHidesPassword(t *testing.T) {
	t.Parallel()
	s := startAlone(t)
	r := newRigOn(t, s)
	r.execSQL("CREATE ROLE locked LOGIN PASSWORD 'hunter1'")
	var dir string
	r.NoError(r.pool.QueryRow(t.Context(), "SHOW data_directory").Scan(&dir))
	r.execSQL("COPY (VALUES ('local all locked scram-sha-256'), ('local all all trust')) TO '" + dir + "/pg_hba.conf'")
	r.execSQL("SELECT pg_reload_conf()")
	socket := url.QueryEscape(strings.TrimSuffix(socketPath(s.DSN()), "/.s.PGSQL.5432"))
	r.Eventually("the password is asked for", func() bool {
		_, err := postgres.Open(t.Context(), "postgres://locked@/postgres?host="+socket, &r.opts)
		said, ok := errors.AsType[*pgconn.PgError](err)
		return ok && said.Code == "28P01"
	})
	r.checkRejected("postgres://locked:hunter2@/postgres?host="+socket, &r.opts, driver.ErrUnavailable, "password authentication failed", "correct")
	r.checkRejected("postgres://holdfast@/nowhere?host="+socket, &r.opts, driver.ErrUnavailable, `"nowhere"`, "create it")
	for _, bad := range []string{
		"postgres://locked:hunter2@h:port/db", "postgres://locked:hun%ter2@h/db", "postgres://locked:hunter2@h/db?sslmode=maybe",
		"postgres://locked:hunter2@[h/db", "host=h password=hunter2 sslmode=maybe", "postgres://locked:hunter/2@h/db?port=x", "redis://u:hunter2@h",
	} {
		r.checkRejected(bad, nil, driver.ErrInvalid, "postgres://")
	}
	r.checkRejected("postgres://locked:hunter2@h/db", &postgres.Options{Schema: strings.Repeat("x", 64)}, driver.ErrInvalid, "schema")
}

// Nothing listens at these addresses: a URL that is accepted ends in an error that names a host.
func TestUnescapedPasswordIsRejected(t *testing.T) {
	t.Parallel()
	for dsn, fix := range map[string]string{
		"postgres://u:hun@hunter2@127.0.0.1:1/x":                      "write @ as %40",
		"postgresql://u:hun@hunter2@127.0.0.1:1/x":                    "write @ as %40",
		"postgres://u:p@127.0.0.1:1,v:hunter2@127.0.0.1:1/x":          "write @ as %40",
		"postgres://127.0.0.1:1/hunter2@127.0.0.1:1/x":                "/ as %2F",
		"postgres://127.0.0.1:1?hunter2@127.0.0.1:1/x":                "? as %3F",
		"postgres://127.0.0.1:1#hunter2@127.0.0.1:1/x":                "# as %23",
		"postgres://127.0.0.1:1/x?password=a#hunter2":                 "write # as %23",
		"postgres://127.0.0.1:1/x?host=hunter2@127.0.0.1":             "elsewhere with @ as %40",
		"host=hunter2@127.0.0.1 port=1":                               "write @ as %40",
		"postgres://127.0.0.1:1/x?host=127.0.0.1,hunter2%40127.0.0.1": "write @ as %40",
	} {
		d, err := postgres.Open(t.Context(), dsn, &postgres.Options{NoCheck: true})
		if err == nil {
			d.Close()
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), fix) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: error %v, want ErrInvalid with %q and without the password", dsn, err, fix)
		}
	}
	for _, dsn := range []string{"postgres://u:hun%40t%2Fe%3Fr%23@127.0.0.1:1/x", "postgres://127.0.0.1:1/x?user=u%40server", "user=u@server host=127.0.0.1 password=p@#"} {
		d, err := postgres.Open(t.Context(), dsn, &postgres.Options{NoCheck: true})
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		d.Close()
	}
}

// The error does not call the database a standby.
func TestErrorNamesReadOnlyDatabase(t *testing.T) {
	r := startRig(t)
	d, err := postgres.Open(t.Context(), server.DSN()+" options='-c default_transaction_read_only=on'", &r.opts)
	r.NoError(err)
	defer d.Close()
	_, err = d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: endlessTTL, NoWait: true})
	r.checkError(err, driver.ErrUnavailable, "read-only transaction", "default_transaction_read_only off", "if this is a standby")
}

// pgx tries an address with and without TLS. The error names the address once.
func TestErrorNamesEachAddressOnce(t *testing.T) {
	t.Parallel()
	d, err := postgres.Open(t.Context(), "postgres://me:hunter2@127.0.0.1:1/postgres", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = d.Inspect(t.Context(), "k")
	if err == nil || strings.Count(err.Error(), "refused") != 1 || strings.Contains(err.Error(), "\n") {
		t.Errorf("Inspect() = %v, want one line that names the address once", err)
	}
}

// Open returns no error, TryAcquire fails, and Acquire waits.
func TestAcquireWaitsForDatabaseThatIsDown(t *testing.T) {
	r := startRig(t)
	p := r.newRelay()
	p.Set(func() { p.Refuse = true })
	d, err := postgres.Open(t.Context(), "postgres://holdfast:hunter2@"+p.Addr+"/postgres?sslmode=disable", &r.opts)
	r.NoError(err)
	c := r.Client(d)
	_, err = c.TryAcquire(r.WaitContext(), "k", nil)
	r.checkError(err, holdfast.ErrUnavailable, p.Addr)
	told := make(chan error, 10)
	got := fixture.AcquireAsync(r.WaitContext(), d, driver.Request{Key: "k", TTL: endlessTTL, OnObstacle: func(err error) { told <- err }})
	r.checkError(<-told, holdfast.ErrUnavailable)
	p.Set(func() { p.Refuse = false })
	if err := <-got; err != nil {
		t.Errorf("the wait ended with %v", err)
	}
}

func TestErrorNamesExhaustedPool(t *testing.T) {
	r := startRig(t)
	cfg, err := pgxpool.ParseConfig(server.DSN() + " pool_max_conns=2")
	r.NoError(err)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	r.NoError(err)
	defer pool.Close()
	d, err := postgres.New(r.Context(), pool, withoutCheck(r.opts))
	r.NoError(err)
	defer d.Close()
	for range 2 {
		conn, err := pool.Acquire(t.Context())
		r.NoError(err)
		defer conn.Release()
	}
	_, err = d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: shortTTL, NoWait: true}) // short: nothing is granted
	r.checkError(err, driver.ErrUnavailable, "all 2 connections of the pool are in use")
	if e := d.Nodes()[0]; e.State != driver.NodeUp {
		t.Errorf("the database is %s: %v", e.State, e.Err)
	}
}

func TestConcurrentMigrateCreatesOneSchema(t *testing.T) {
	r := startRig(t)
	r.execSQL("DROP SCHEMA " + strings.TrimSuffix(r.in("holdfast."), ".") + " CASCADE")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := r.migrate(r.pool, r.opts); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := r.countRows("SELECT count(*) FROM holdfast.version"); n != 1 {
		t.Errorf("%d rows of versions", n)
	}
	text, err := postgres.Schema(&r.opts)
	r.NoError(err)
	l := r.Acquire(r.newClient(), "k", endlessTTL)
	r.execSQL(text, pgx.QueryExecModeSimpleProtocol) // as if run by hand, with locks held
	if err := l.Extend(r.WaitContext(), endlessTTL); err != nil {
		t.Errorf("after the SQL was run again: %v", err)
	}
	r.Release(l)
}

// isolationLevels are the isolation levels above READ COMMITTED.
var isolationLevels = []string{"repeatable read", "serializable"}

// isolatedDriver returns a driver whose statements run at this isolation level by default.
func (r *rig) isolatedDriver(level string) *postgres.Driver {
	r.Helper()
	d, err := postgres.Open(r.Context(), server.DSN()+" default_transaction_isolation='"+level+"'", &r.opts)
	return fixture.CloseAtEnd(r.Rig, d, err)
}

// The database's default level may be stricter. Statements that the server then rejects are no outage, however
// many.
func TestLocksWorkAtAnyIsolationLevel(t *testing.T) {
	for _, level := range isolationLevels {
		t.Run(level, func(t *testing.T) {
			r := startRig(t)
			held := 0
			var mu sync.Mutex
			var all sync.WaitGroup
			for range 20 {
				d := r.isolatedDriver(level)
				c := r.Client(d)
				d.Notify(func(e driver.NodeEvent) {
					if e.Err != nil && strings.Contains(e.Err.Error(), "40001") {
						t.Errorf("%+v", e)
					}
				})
				all.Go(func() {
					for range 4 {
						l := r.Acquire(c, "k", endlessTTL)
						mu.Lock()
						held++
						if held > 1 {
							t.Errorf("%d holders", held)
						}
						mu.Unlock()
						time.Sleep(time.Millisecond) // so that two holders would overlap
						mu.Lock()
						held--
						mu.Unlock()
						r.Release(l)
					}
				})
			}
			all.Wait()
			r.checkCleared()
		})
	}
}

// The release waited for the row while a waiter queued up behind an earlier one.
func TestReleaseFindsTicketNewerThanItsSnapshot(t *testing.T) {
	for _, level := range append(isolationLevels, "read committed") {
		t.Run(level, func(t *testing.T) {
			r := startRig(t)
			d := r.isolatedDriver(level)
			for i, owner := range []string{"holder", "first"} {
				if ok, err := d.AcquireOnce(r.WaitContext(), "k", owner); err != nil || ok != (i == 0) {
					t.Fatalf("%s: Take() = %v, %v", owner, ok, err)
				}
			}
			free := func(owner string) error {
				return d.Release(r.WaitContext(), driver.Grant{Key: "k", Owner: owner, TTL: endlessTTL}, 0)
			}
			tx := r.beginDirect()
			_, err := tx.Exec(t.Context(), r.in("SELECT FROM holdfast.lock WHERE name = 'k' FOR UPDATE"))
			r.NoError(err)
			done := make(chan error, 2)
			go func() {
				_, err := d.AcquireOnce(r.WaitContext(), "k", "second")
				done <- err
			}()
			r.awaitBlocked(1)
			go func() { done <- free("holder") }()
			r.awaitBlocked(2)
			r.NoError(tx.Commit(r.WaitContext()))
			r.NoError(<-done)
			r.NoError(<-done)
			r.NoError(free("first"))
			if r.countRows("SELECT count(*) FROM holdfast.lock WHERE owner = 'second'") != 1 {
				t.Error("the lock was not handed to the waiter")
			}
		})
	}
}

// Closing the *sql.DB ends no lock.
func TestDatabaseSQLSharesThePool(t *testing.T) {
	r := startRig(t)
	pool := r.openPool(server.DSN())
	db := stdlib.OpenDBFromPool(pool)
	d, err := postgres.New(t.Context(), pool, &r.opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	g := r.AcquireGrant(d, "k", endlessTTL)
	var token int64
	r.NoError(db.QueryRowContext(t.Context(), r.in("SELECT token FROM holdfast.lock WHERE name = $1"), "k").Scan(&token))
	if token != g.Token {
		t.Errorf("token %d, want %d", token, g.Token)
	}
	r.NoError(db.Close())
	r.NoError(d.Release(r.WaitContext(), g, 0))
	_, err = postgres.New(t.Context(), nil, nil)
	r.checkError(err, driver.ErrInvalid, "pgxpool.New", "stdlib.OpenDBFromPool")
}

func TestOpenWarnsOfUnreachableDatabase(t *testing.T) {
	t.Parallel()
	for _, allowed := range []bool{true, false} {
		var log bytes.Buffer
		opts := &driver.OpenOptions{Logger: slog.New(slog.NewTextHandler(&log, nil)), AllowDown: allowed}
		d, err := driver.Open(t.Context(), "postgres://me:hunter2@127.0.0.1:1/x", opts)
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		warned := strings.Contains(log.String(), `level=WARN msg="the service cannot be used now; calls wait for it" service=postgres cause=`) &&
			strings.Contains(log.String(), "127.0.0.1")
		if warned != allowed || strings.Contains(log.String(), "hunter") {
			t.Errorf("AllowDown %v: log = %q", allowed, log.String())
		}
	}
}
