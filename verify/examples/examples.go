// Package examples has helpers for the tests of the examples.
package examples

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redis"
)

// ACL is the user of the examples' servers.
var ACL = []string{"app on >s3cret ~* &* +@all"}

// Admit lets the new nodes at url vote at once.
func Admit(t *testing.T, url string) {
	t.Helper()
	drv, err := redis.Open(t.Context(), url, &redis.Options{NoQuarantine: true, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := drv.Close(); err != nil {
		t.Fatal(err)
	}
}

// Lock returns a function that acquires and releases a lock with an example's client. It checks that the
// connection to server has the user, the database and the name of the program's own client.
func Lock(t *testing.T, server *redisproc.Server, db int) func(locks *holdfast.Client, err error) {
	return func(locks *holdfast.Client, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		lease, err := locks.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		list, err := server.Do("CLIENT", "LIST")
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(fmt.Sprintf("name=billing .* db=%d .* user=app ", db)).MatchString(fmt.Sprint(list)) {
			t.Errorf("no connection is that of the program's user, database and name:\n%v", list)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Database starts a PostgreSQL until the end of the test and runs schema.
func Database(t *testing.T, schema string) (dsn string, db *sql.DB) {
	t.Helper()
	server, err := pgproc.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	if db, err = sql.Open("pgx", server.DSN()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.ExecContext(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	return server.DSN(), db
}

// MariaDB starts a MariaDB with a database until the end of the test.
func MariaDB(t *testing.T) *sql.DB {
	t.Helper()
	server, err := mariaproc.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	dsn := "root@unix(" + server.Socket() + ")/"
	admin, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE app"); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", dsn+"app?parseTime=true")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// Late writes under a lease, and then under an earlier lease, whose write must fail with refused.
func Late(t *testing.T, locks *holdfast.Client, write func(*holdfast.Lease) error, refused error) {
	t.Helper()
	var leases [2]*holdfast.Lease
	for i := range leases {
		lease, err := locks.Acquire(t.Context(), "account/7", nil)
		if err != nil {
			t.Fatal(err)
		}
		if leases[i] = lease; i == 1 {
			err = write(lease)
		}
		if err := errors.Join(err, lease.Release(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(leases[0]); !errors.Is(err, refused) {
		t.Errorf("a write by the older lease: %v, want %v", err, refused)
	}
}

// Client returns another client of the locks at url, until the end of the test.
func Client(t *testing.T, url string) *holdfast.Client {
	t.Helper()
	drv, err := redis.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := holdfast.New(drv, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	return locks
}

// Take force-releases the lock on key.
func Take(t *testing.T, url, key string) {
	t.Helper()
	operator := Client(t, url)
	status, err := operator.Inspect(t.Context(), key)
	if err == nil {
		err = operator.ForceRelease(t.Context(), key, status.Token, "a test takes it")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Free fails unless key is free.
func Free(t *testing.T, url, key string) {
	t.Helper()
	status, err := Client(t, url).Inspect(t.Context(), key)
	if err != nil || status.Held {
		t.Errorf("the lock on %s: held %v, %v; want it to be free", key, status.Held, err)
	}
}

// Soon waits for an expected event and returns its value.
func Soon[T any](t *testing.T, what string, happened <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-happened:
	case <-time.After(90 * time.Second):
		t.Fatal("in 90 s, this has not happened: " + what)
	}
	return v
}

// Start calls run until the test ends or stop is called, and returns the channel of its error.
func Start(t *testing.T, run func(context.Context) error) (stop context.CancelFunc, ended <-chan error) {
	ctx, stop := context.WithCancel(context.Background())
	errs, gone := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(gone)
		errs <- run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-gone
	})
	return stop, errs
}
