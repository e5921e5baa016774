package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// createDatabase creates a database for one test and returns its DSN, so that the test can change settings of
// the whole database.
func (r *rig) createDatabase() string {
	r.Helper()
	name := strings.ReplaceAll(strings.ToLower(r.opts.Schema), " ", "_")
	r.execSQL("CREATE DATABASE " + name)
	return strings.Replace(server.DSN(), "dbname=postgres", "dbname="+name, 1)
}

// A table in a publication needs a replica identity.
func TestMigrateWorksWithPublicationForAllTables(t *testing.T) {
	r := startRig(t)
	dsn := r.createDatabase()
	r.pool = r.openPool(dsn)
	r.NoError(r.migrate(r.pool, r.opts))
	r.execSQL("ALTER TABLE holdfast.version REPLICA IDENTITY DEFAULT") // as earlier versions created it
	r.execSQL("UPDATE holdfast.version SET version = 2")               // so that migrate has something to do
	r.execSQL("CREATE PUBLICATION everything FOR ALL TABLES")
	for _, schema := range []string{r.opts.Schema, "fresh"} {
		r.opts.Schema = schema
		r.NoError(r.migrate(r.pool, r.opts))
	}
	d, err := postgres.Open(t.Context(), dsn, &r.opts)
	c := r.Client(fixture.CloseAtEnd(r.Rig, d, err))
	r.Release(r.Acquire(c, "k", endlessTTL))
}

// The owner of an existing schema needs no other permission, whatever the names are.
func TestMigrateNeedsOnlyItsSchema(t *testing.T) {
	r := startRig(t)
	role := "owner of " + r.opts.Schema
	quoted := pgx.Identifier{role}.Sanitize()
	r.execSQL("CREATE ROLE " + quoted + " LOGIN")
	pool := r.openPool(strings.Replace(server.DSN(), "user=holdfast", "user='"+role+"'", 1))
	for _, name := range []string{r.opts.Schema + " it's", r.opts.Schema + ` "holdfast."`} {
		_, err := r.pool.Exec(t.Context(), "CREATE SCHEMA "+pgx.Identifier{name}.Sanitize()+" AUTHORIZATION "+quoted)
		r.NoError(err)
		r.NoError(r.migrate(pool, postgres.Options{Schema: name}))
	}
	_, err := postgres.Schema(&postgres.Options{Schema: "a$$b"})
	r.checkError(err, driver.ErrInvalid, "$$")
	r.checkError(r.migrate(pool, postgres.Options{Schema: r.opts.Schema + " new"}), driver.ErrAuth, "permission denied for database", "owns the schema")
}

// A server that only resembles PostgreSQL may lack a function. The error must not recommend migrate, which
// would not help.
func TestMissingServerFunctionErrorOmitsMigrate(t *testing.T) {
	r := startRig(t)
	dsn := r.createDatabase()
	r.pool = r.openPool(dsn)
	r.execSQL("ALTER FUNCTION pg_catalog.hashtext(text) RENAME TO hashtext_of_another")
	check := func(err error, name string) {
		t.Helper()
		r.checkError(err, driver.ErrConfig, name, "PostgreSQL 11")
		if err != nil && strings.Contains(err.Error(), "holdfast migrate") {
			t.Errorf("error %q recommends migrate", err)
		}
	}
	check(r.migrate(r.pool, r.opts), "hashtext")
	r.execSQL("ALTER FUNCTION pg_catalog.hashtext_of_another(text) RENAME TO hashtext")
	r.NoError(r.migrate(r.pool, r.opts))
	d, err := postgres.Open(t.Context(), dsn, &r.opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	r.execSQL("ALTER FUNCTION pg_catalog.starts_with(text, text) RENAME TO begins_with")
	check(d.List(r.WaitContext(), "", func(driver.Status) bool { return true }), "starts_with")
}

// Each Inspect returns the same time.
func TestSinceStaysConstant(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	g := r.AcquireGrant(d, "k", endlessTTL)
	first, err := d.Inspect(r.WaitContext(), "k")
	r.NoError(err)
	for range 5 {
		again, err := d.Inspect(r.WaitContext(), "k")
		r.NoError(err)
		if !again.Since.Equal(first.Since) {
			t.Errorf("the lock was held since %v, then since %v", first.Since, again.Since)
		}
		r.NoError(d.List(r.WaitContext(), "k", func(st driver.Status) bool {
			if !st.Since.Equal(first.Since) {
				t.Errorf("the list shows the lock held since %v, want %v", st.Since, first.Since)
			}
			return true
		}))
	}
	r.NoError(d.Release(r.WaitContext(), g, 0))
}

// Tables of the same version may have slower functions of an earlier build. A user who does not own the
// functions leaves them.
func TestMigrateReplacesFunctionsOfEarlierBuild(t *testing.T) {
	r := startRig(t)
	body := func() (text string) {
		r.NoError(r.pool.QueryRow(t.Context(), r.in("SELECT prosrc FROM pg_proc WHERE oid = 'holdfast.waiters'::regproc")).Scan(&text))
		return text
	}
	now := body()
	r.execSQL("CREATE OR REPLACE FUNCTION holdfast.waiters(p_name text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$BEGIN RETURN 0; END$$")
	for name, grants := range map[string][]string{
		"guest of ":  {"USAGE ON SCHEMA {schema}", "SELECT ON ALL TABLES IN SCHEMA {schema}"},
		"member of ": {"USAGE ON SCHEMA {schema}", "SELECT ON ALL TABLES IN SCHEMA {schema}", "holdfast"}, // a member that would need SET ROLE first
	} {
		role := name + r.opts.Schema
		r.execSQL("CREATE ROLE " + pgx.Identifier{role}.Sanitize() + " LOGIN NOINHERIT")
		for _, grant := range grants {
			r.execSQL("GRANT " + strings.ReplaceAll(grant, "{schema}", strings.TrimSuffix(r.in("holdfast."), ".")) + " TO " + pgx.Identifier{role}.Sanitize())
		}
		r.NoError(r.migrate(r.openPool(strings.Replace(server.DSN(), "user=holdfast", "user='"+role+"'", 1)), r.opts))
		if body() == now {
			t.Errorf("%s replaced a function that it does not own", role)
		}
	}
	r.NoError(r.migrate(r.pool, r.opts))
	if got := body(); got != now {
		t.Errorf("the function is still %q", got)
	}
	c := r.newClient()
	r.Release(r.Acquire(c, "k", endlessTTL))
}
