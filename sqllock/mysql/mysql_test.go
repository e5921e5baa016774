package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestBadURLsAreRejected(t *testing.T) {
	t.Parallel()
	fixture.CheckBadURLs(t, func(ctx context.Context, url string) (*mysql.Driver, error) { return mysql.Open(ctx, url, nil) }, map[string]string{
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

func TestURLNamesDatabaseAndTables(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	s, err := mariaproc.Start(t.Context())
	fixture.StopAtEnd(t, s, err)
	r := fixture.New(t)
	db, err := sql.Open("mysql", "root@unix("+s.Socket()+")/")
	r.NoError(err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), "CREATE DATABASE app")
	r.NoError(err)
	url := "mysql+unix://root@" + s.Socket() + "?db=app&prefix=app.of_"
	d, err := mysql.Open(r.WaitContext(), url, &mysql.Options{NoCheck: true})
	fixture.CloseAtEnd(r, d, err)
	r.NoError(d.Migrate(r.WaitContext()))
	r.NoError(d.Migrate(r.WaitContext()))
	other, err := mysql.Open(r.WaitContext(), url, nil)
	fixture.CloseAtEnd(r, other, err)
	g := r.AcquireGrant(other, "k", fixture.LongTTL)
	var owner string
	r.NoError(db.QueryRowContext(t.Context(), "SELECT owner FROM app.of_lock WHERE name = 'k'").Scan(&owner))
	if owner != g.Owner {
		t.Errorf("the table contains %q, want %q", owner, g.Owner)
	}
	for _, f := range d.Diagnose(r.WaitContext(), 0) {
		if f.Bad() && f.Check != "durability" { // the test servers do not sync
			t.Errorf("%+v", f)
		}
	}
	r.NoError(other.Release(r.WaitContext(), g, 0))
}

// The MySQL driver's own error recommends a parameter that no URL of this package has.
func TestOldLoginErrorOmitsUnsafeAdvice(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	greeting := "\x0a5.0.0\x00" + "\x01\x00\x00\x00" + "12345678\x00" + "\x00\x82" + "\x21" + "\x02\x00" + "\x08\x00" + "\x15" +
		strings.Repeat("\x00", 10) + "123456789012\x00" + "mysql_native_password\x00"
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "%c\x00\x00\x00%s", len(greeting), greeting)
			conn.Read(make([]byte, 1000))
			fmt.Fprint(conn, "\x01\x00\x00\x02\xfe") // request the old login method
			conn.Read(make([]byte, 1000))
			conn.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.MaxWait())
	defer cancel()
	_, err = mysql.Open(ctx, "mysql://app:h1dden@"+l.Addr().String()+"/app", nil)
	if !errors.Is(err, driver.ErrAuth) || strings.Contains(err.Error(), "allow") || !strings.Contains(err.Error(), "caching_sha2_password") {
		t.Errorf("Open() = %v, want ErrAuth and a way to log in that is safe", err)
	}
}
