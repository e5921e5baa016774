package postgres_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// runScript runs an SQL file in the schema of r.
func (r *rig) runScript(file string) {
	r.Helper()
	text, err := os.ReadFile(file)
	r.NoError(err)
	r.execSQL(strings.ReplaceAll(string(text), "EXISTS holdfast;", "EXISTS "+strings.TrimSuffix(r.in("holdfast."), ".")+";"), pgx.QueryExecModeSimpleProtocol)
}

// olderClient returns a client of an older version of the tables. It sends the same statements, because only
// functions have changed, and does not use the turnstile.
func (r *rig) olderClient() *holdfast.Client {
	r.Helper()
	d, err := r.openWith(*withoutCheck(r.opts))
	fixture.CloseAtEnd(r.Rig, d, err).AnyVersion()
	return r.Client(d)
}

// Many programs migrate the tables of an older version at once, while clients of both versions take turns and
// one holds a lease. No lease is lost, no client gets an error, and no two clients hold one lock.
func TestSchemaMigratesUnderLoad(t *testing.T) {
	for _, version := range []string{"2", "3"} {
		t.Run(version, func(t *testing.T) { testMigration(t, version) })
	}
}

func testMigration(t *testing.T, version string) {
	r := startRig(t)
	r.execSQL("DROP SCHEMA " + strings.TrimSuffix(r.in("holdfast."), ".") + " CASCADE")
	r.runScript("testdata/version-" + version + ".sql")
	r.checkRejected(server.DSN(), &r.opts, driver.ErrUnavailable, "version "+version, "version 4", "Migrate")

	held := r.Acquire(r.olderClient(), "held", 6*shortTTL) // and renews it
	var inside atomic.Int32
	turn := func(c *holdfast.Client) {
		l := r.Acquire(c, "k", endlessTTL)
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d holders", n)
		}
		time.Sleep(time.Millisecond) // so that two holders would overlap
		inside.Add(-1)
		r.Release(l)
	}
	var load, rest sync.WaitGroup
	var over atomic.Bool
	begun := make(chan struct{}, 4)
	for range cap(begun) {
		c := r.olderClient()
		load.Go(func() {
			for first := true; !over.Load(); first = false {
				if turn(c); first {
					begun <- struct{}{}
				}
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	for range 4 {
		rest.Go(func() {
			if err := r.migrate(r.pool, r.opts); err != nil {
				t.Error(err)
				return
			}
			c := r.newClient()
			for range 10 {
				turn(c)
			}
			if _, err := c.TryAcquire(r.WaitContext(), "held", nil); err == nil {
				t.Error("a client of the new version was granted a lock held by the old version")
			}
		})
	}
	rest.Wait()
	over.Store(true)
	load.Wait()
	r.AwaitRenewals(held, 1)
	if err := held.Context().Err(); err != nil {
		t.Errorf("the lease of the old version: %v", err)
	}
	r.Release(held)
	r.checkCleared()
}

// A program that starts after the migration is rejected (TestSchemaErrorsNameFix).
func TestRunningProgramAcceptsNewerTables(t *testing.T) {
	r := startRig(t)
	c := r.newClient()
	l := r.Acquire(c, "k", endlessTTL)
	r.execSQL("UPDATE holdfast.version SET version = 1000")
	r.NoError(l.Extend(r.WaitContext(), endlessTTL))
	r.Release(r.Acquire(c, "another", endlessTTL), l)
}

// The files differ only in the name of the schema.
func TestSchemaFileMatchesMigrate(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := postgres.Schema(nil); err != nil || strings.ReplaceAll(text, `"holdfast"`, "holdfast") != string(file) {
		t.Errorf("schema.sql differs from Schema() (%v)", err)
	}
	if want := fmt.Sprintf("p_token + %d,", driverkit.Block); !strings.Contains(string(file), want) {
		t.Errorf("schema.sql lacks %q", want)
	}
}
