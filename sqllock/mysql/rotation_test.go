//go:build linux

package mysql_test

import (
	"database/sql"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
)

// TestReplacedAuthorityIsTrusted: the server and the file of ca get a new certificate while a client lives. Its next connection trusts it.
func TestReplacedAuthorityIsTrusted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "holdfast-") // the server's user can read it
	must(err)
	defer os.RemoveAll(dir)
	must(os.Chmod(dir, 0o755))
	certify := func() *redisproc.Certificate {
		c, err := redisproc.NewCertificate(dir)
		must(errors.Join(err, os.Chmod(c.Cert, 0o644), os.Chmod(c.Key, 0o644)))
		return c
	}
	c := certify()
	server, err := mariaproc.Start(t.Context(), "--ssl-cert="+c.Cert, "--ssl-key="+c.Key)
	fixture.Stopped(t, server, err)
	root, err := sql.Open("mysql", "root@unix("+server.Socket()+")/")
	must(err)
	defer root.Close()
	_, err = root.ExecContext(t.Context(), "CREATE DATABASE locks")
	must(err)
	proxy, err := faultproxy.NewOpaque(server.Socket())
	must(err)
	defer proxy.Close()
	d, err := mysql.Open(t.Context(), "mysql://root@"+proxy.Addr()+"/locks?ca="+c.Cert, &mysql.Options{NoCheck: true})
	must(err)
	defer d.Close()
	must(d.Migrate(t.Context()))
	g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Minute, NoWait: true})
	must(err)
	certify()
	_, err = root.ExecContext(t.Context(), "FLUSH SSL")
	must(err)
	proxy.Cut()
	must(d.Renew(t.Context(), []driver.Grant{g})[0].Err)
}
