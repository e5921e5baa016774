package mysql_test

import (
	"context"
	"database/sql"
	"os"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestBadURLsAreRefused(t *testing.T) {
	t.Parallel()
	fixture.BadURLs(t, func(ctx context.Context, url string) (*mysql.Driver, error) { return mysql.Open(ctx, url, nil) }, map[string]string{
		"redis://localhost":                     "mysql://user:password@host:3306/database",
		"mysql://u:h1dden@host:port/db":         "host:port",
		"mysql://u:h1dden@a,b/db":               "name the primary",
		"mysql://u:h1dden@host":                 "names no database",
		"mysql://u:h1dden@host/a?db=b":          "two databases",
		"mysql://u:h1dden@host/a?h1dden=1":      "is not known",
		"mysql://u:h1dden@host/a?prefix=a-b":    "give letters",
		"mariadb+unix://u:h1dden@/run/socket":   "names no database",
		"mariadb://u:h1dden@host/db?ca=/nosuch": "parameter ca",
	})
}

// TestAURLNamesADatabaseAndItsTables.
func TestAURLNamesADatabaseAndItsTables(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	s, err := mariaproc.Start(t.Context())
	fixture.Stopped(t, s, err)
	r := fixture.New(t)
	db, err := sql.Open("mysql", "root@unix("+s.Socket()+")/")
	r.Must(err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), "CREATE DATABASE app")
	r.Must(err)
	url := "mysql+unix://root@" + s.Socket() + "?db=app&prefix=app.of_"
	d, err := mysql.Open(r.Within(), url, &mysql.Options{NoCheck: true})
	fixture.Closed(r, d, err)
	r.Must(d.Migrate(r.Within()))
	r.Must(d.Migrate(r.Within()))
	other, err := mysql.Open(r.Within(), url, nil)
	fixture.Closed(r, other, err)
	g := r.Grant(other, "k", fixture.Long)
	var owner string
	r.Must(db.QueryRowContext(t.Context(), "SELECT owner FROM app.of_lock WHERE name = 'k'").Scan(&owner))
	if owner != g.Owner {
		t.Errorf("the table says %q, want %q", owner, g.Owner)
	}
	for _, f := range d.Diagnose(r.Within(), 0) {
		if f.Bad() && f.Check != "durability" { // the tests sync nothing
			t.Errorf("%+v", f)
		}
	}
	r.Must(other.Release(r.Within(), g, 0))
}
