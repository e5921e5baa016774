//go:build linux

package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
)

// tlsServer is a server with TLS and a replaceable certificate, and the proxy through which clients connect.
type tlsServer struct {
	*fixture.Rig
	root  *sql.DB
	proxy *faultproxy.Proxy
	dir   string
	ca    string // file with the authorities that clients trust
}

func newTLSServer(t *testing.T) *tlsServer {
	t.Helper()
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	dir, err := os.MkdirTemp("", "holdfast-") // a folder that the server's user can read
	s := &tlsServer{Rig: fixture.New(t), dir: dir, ca: filepath.Join(dir, "ca.pem")}
	s.NoError(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s.NoError(os.Chmod(dir, 0o755))
	c := s.newCertificate()
	s.trustCertificate()
	server, err := mariaproc.Start(t.Context(), "--ssl-cert="+c.Cert, "--ssl-key="+c.Key)
	fixture.StopAtEnd(t, server, err)
	s.root, err = sql.Open("mysql", "root@unix("+server.Socket()+")/")
	s.NoError(err)
	t.Cleanup(func() { s.root.Close() })
	s.execSQL("CREATE DATABASE locks")
	s.proxy, err = faultproxy.NewOpaque(server.Socket())
	s.NoError(err)
	t.Cleanup(func() { s.proxy.Close() })
	return s
}

// openDriver creates the tables and returns a driver over them.
func (s *tlsServer) openDriver() *mysql.Driver {
	s.Helper()
	d, err := mysql.Open(s.WaitContext(), "mysql://root@"+s.proxy.Addr()+"/locks?ca="+s.ca, &mysql.Options{NoCheck: true})
	fixture.CloseAtEnd(s.Rig, d, err)
	s.NoError(d.Migrate(s.WaitContext()))
	return d
}

// newCertificate creates a new self-signed certificate.
func (s *tlsServer) newCertificate() *redisproc.Certificate {
	s.Helper()
	c, err := redisproc.NewCertificate(s.dir)
	s.NoError(errors.Join(err, os.Chmod(c.Cert, 0o644), os.Chmod(c.Key, 0o644)))
	return c
}

// trustCertificate makes the clients trust the current certificate.
func (s *tlsServer) trustCertificate() {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "tls.crt"))
	s.NoError(errors.Join(err, os.WriteFile(s.ca, text, 0o600)))
}

func (s *tlsServer) execSQL(text string) {
	s.Helper()
	_, err := s.root.ExecContext(s.WaitContext(), text)
	s.NoError(err)
}

// The server and the client's ca file get a new certificate while the client runs. Its next connection trusts
// it.
func TestNewConnectionTrustsReplacedAuthority(t *testing.T) {
	t.Parallel()
	s := newTLSServer(t)
	d := s.openDriver()
	g := s.AcquireGrant(d, "k", fixture.LongTTL)
	s.newCertificate()
	s.trustCertificate()
	s.execSQL("FLUSH SSL")
	s.proxy.Cut()
	s.NoError(d.Renew(s.WaitContext(), []driver.Grant{g})[0].Err)
}

// Cancelled callers have cost all connections, and the client cannot open new ones until it trusts the server's
// new certificate.
func TestRenewalSurvivesLossOfClaimConnections(t *testing.T) {
	t.Parallel()
	s := newTLSServer(t)
	d := s.openDriver()
	g := s.AcquireGrant(d, "k", fixture.LongTTL)
	s.NoError(d.Renew(s.WaitContext(), []driver.Grant{g})[0].Err)
	s.newCertificate()
	s.execSQL("FLUSH SSL")
	lock, err := s.root.Conn(s.WaitContext())
	s.NoError(err)
	_, err = lock.ExecContext(s.WaitContext(), "LOCK TABLES locks.holdfast_lock WRITE")
	s.NoError(err)
	stuck := func() (n int) {
		s.NoError(s.root.QueryRowContext(s.WaitContext(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%holdfast_lock l %'").Scan(&n))
		return n
	}
	for gone := false; !gone; { // until no connection is left for a read
		before := stuck()
		ctx, cancel := context.WithCancel(s.Context())
		failed := fixture.RunAsync(func() error {
			_, err := d.Inspect(ctx, "k")
			return err
		})
		s.Eventually("it waits for the table, or fails", func() bool { return stuck() > before || len(failed) > 0 })
		cancel()
		gone = !errors.Is(<-failed, context.Canceled)
	}
	_, err = lock.ExecContext(s.WaitContext(), "UNLOCK TABLES")
	s.NoError(errors.Join(err, lock.Close()))
	ctx, cancel := context.WithTimeout(s.Context(), pace.Scale(2*time.Second))
	defer cancel()
	s.NoError(d.Renew(ctx, []driver.Grant{g})[0].Err)
}
