package postgres_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/postgres"
)

var _ driver.Doctor = (*postgres.Driver)(nil)

// badFindings returns the findings that are not good.
func (r *rig) badFindings(dsn string) (bad []driver.Finding) {
	r.Helper()
	found, err := runDoctor(r.WaitContext(), dsn, time.Minute, &r.opts)
	r.NoError(err)
	for _, f := range found {
		if f.Bad() {
			bad = append(bad, f)
		}
		if f.Bad() && f.Fix == "" {
			r.Errorf("%+v has no fix", f)
		}
		if strings.Contains(f.Text+f.Fix, "hunter") {
			r.Errorf("%+v contains the password", f)
		}
	}
	return bad
}

// wantOneFinding checks that the doctor found one thing.
func (r *rig) wantOneFinding(dsn, check string, v driver.Verdict, words ...string) {
	r.Helper()
	found := r.badFindings(dsn)
	if len(found) != 1 || found[0].Check != check || found[0].Verdict != v {
		r.Errorf("found %+v, want one %s of %s", found, v, check)
		return
	}
	for _, word := range words {
		if text := found[0].Text + "; " + found[0].Fix; !strings.Contains(text, word) {
			r.Errorf("%q does not contain %q", text, word)
		}
	}
}

// useConnections keeps n connections of the server in use. A connection that is being closed still counts for a
// moment, so useConnections checks several times.
func (r *rig) useConnections(dsn string, n int) {
	r.Helper()
	looks := 0
	r.Eventually("the connections are in use", func() bool {
		if looks++; r.countRows("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") < n {
			looks = 0
			if conn, err := pgx.Connect(r.Context(), dsn); err == nil {
				r.Cleanup(func() { conn.Close(context.Background()) })
			}
		}
		return looks == 5
	})
}

// startDurable starts a server that does not lose commits in a crash. The other tests' server has that turned
// off.
func startDurable(t *testing.T, settings ...string) *pgproc.Server {
	t.Helper()
	return startAlone(t, append(settings, "fsync=on", "full_page_writes=on", "synchronous_commit=on")...)
}

func TestDoctorPassesHealthyDatabase(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, startDurable(t))
	d := r.newDriver()
	before := 0
	r.Eventually("the server has counted what made the tables", func() bool {
		before = r.countRows("SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables WHERE schemaname = '" + r.opts.Schema + "'")
		return before > 0
	})
	checks := make(map[string]bool)
	for _, f := range d.Diagnose(r.WaitContext(), 0) {
		if f.Bad() || f.Text == "" || f.Node == "" {
			t.Errorf("found %+v", f)
		}
		checks[f.Check] = true
	}
	for _, check := range []string{
		"reach", "round-trip", "version", "role", "clock", "durability", "replicas", "connections", "pooler", "tls", "schema", "rights", "tables",
	} {
		if !checks[check] {
			t.Errorf("no finding about %s", check)
		}
	}
	after := r.countRows("SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables WHERE schemaname = '" + r.opts.Schema + "'")
	if after != before {
		t.Errorf("the doctor wrote %d rows", after-before)
	}
}

func TestDoctorFindsEachDatabaseFault(t *testing.T) {
	t.Parallel()
	s := startDurable(t)
	start := func(t *testing.T) *rig { t.Helper(); return newRigOn(t, s) }
	dsn := func(more string) string { return s.DSN() + " " + more }
	pooled := func(r *rig, mode string) string {
		p, err := pgproc.StartPooler(r.Context(), s, mode, 20)
		r.NoError(err)
		r.Cleanup(func() { p.Stop() })
		return p.DSN()
	}
	t.Run("a database that is down", func(t *testing.T) {
		r := start(t)
		p := r.newRelay()
		p.Set(func() { p.Refuse = true })
		r.wantOneFinding("postgres://holdfast:hunter2@"+p.Addr+"/postgres?sslmode=disable", "reach", driver.VerdictFault)
	})
	t.Run("no tables", func(t *testing.T) {
		r := start(t)
		r.opts.Schema = "none"
		r.wantOneFinding(dsn(""), "schema", driver.VerdictFault, "no tables for locks", "holdfast migrate")
	})
	t.Run("tables of another version", func(t *testing.T) {
		r := start(t)
		r.execSQL("UPDATE holdfast.version SET version = 0")
		r.wantOneFinding(dsn(""), "schema", driver.VerdictFault, "version 0", "holdfast migrate")
	})
	t.Run("a user without rights", func(t *testing.T) {
		r := start(t)
		name := "none " + r.opts.Schema
		quoted := pgx.Identifier{name}.Sanitize()
		r.execSQL("CREATE ROLE " + quoted + " LOGIN")
		as := strings.Replace(dsn(""), "user=holdfast", "user='"+name+"'", 1)
		grant := `GRANT USAGE ON SCHEMA "` + r.opts.Schema + `" TO ` + quoted
		r.wantOneFinding(as, "rights", driver.VerdictFault, "permission denied", grant)
		r.execSQL(grant)
		r.execSQL(`GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA "` + r.opts.Schema + `" TO ` + quoted)
		r.wantOneFinding(as, "rights", driver.VerdictFault, "DELETE on table lock, DELETE on table ticket", grant,
			"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES")
	})
	t.Run("a crash that undoes grants", func(t *testing.T) {
		start(t).wantOneFinding(dsn("options='-c synchronous_commit=off'"), "durability", driver.VerdictFault,
			"synchronous_commit is off", "set synchronous_commit on")
	})
	t.Run("a server that does not wait for its disk", func(t *testing.T) {
		newRigOn(t, server).wantOneFinding(server.DSN(), "durability", driver.VerdictFault, "fsync, full_page_writes is off")
	})
	t.Run("transactions that only read", func(t *testing.T) {
		start(t).wantOneFinding(dsn("options='-c default_transaction_read_only=on'"), "role", driver.VerdictFault, "default_transaction_read_only")
	})
	t.Run("a table that a crash empties", func(t *testing.T) {
		r := start(t)
		r.execSQL("ALTER TABLE holdfast.lock SET UNLOGGED")
		r.wantOneFinding(dsn(""), "tables", driver.VerdictFault, "not logged", "SET LOGGED")
	})
	t.Run("a pooler in transaction mode", func(t *testing.T) {
		r := start(t)
		r.wantOneFinding(pooled(r, "transaction"), "pooler", driver.VerdictWarning, "waiters poll", "session mode")
		if found := r.badFindings(pooled(r, "session")); len(found) > 0 {
			t.Errorf("in session mode: %+v", found)
		}
	})
	t.Run("connections that are used up", func(t *testing.T) {
		s := startDurable(t, "max_connections=14")
		r := newRigOn(t, s)
		r.useConnections(s.DSN(), 11) // and leaves some to the doctor, which closes one before it opens the next
		r.wantOneFinding(s.DSN(), "connections", driver.VerdictWarning, "of 14 connections", "pool_max_conns")
	})
	t.Run("no connection that is left", func(t *testing.T) {
		s := startDurable(t, "max_connections=12", "superuser_reserved_connections=0")
		r := newRigOn(t, s)
		r.useConnections(s.DSN(), 12)
		r.wantOneFinding(s.DSN(), "reach", driver.VerdictFault, "too many clients", "raise max_connections")
	})
	t.Run("certificates and keys", func(t *testing.T) {
		r := start(t)
		cert, err := redisproc.NewCertificate(t.TempDir())
		r.NoError(err)
		old, err := redisproc.NewCertificateLike(t.TempDir(), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
		r.NoError(err)
		url := func(addr, more string) string { return "postgres://holdfast:hunter2@" + addr + "/postgres?" + more }
		safe, verified := serveTLS(t, cert), "sslmode=verify-full&sslrootcert="+cert.Cert
		_, port, _ := net.SplitHostPort(safe)
		r.wantOneFinding(url(serveTLS(t, old), "sslmode=verify-full&sslrootcert="+old.Cert), "reach", driver.VerdictFault, "expired", "renew its certificate")
		r.wantOneFinding(url("127.0.0.2:"+port, verified), "reach", driver.VerdictFault, "127.0.0.2", "use a name of its certificate as the host")
		r.wantOneFinding(url(safe, "sslmode=verify-full"), "reach", driver.VerdictFault, "unknown authority",
			"give the CA that signed its certificate by sslrootcert")
		r.wantOneFinding(url(serveTLS(t, nil), verified), "reach", driver.VerdictFault, "refused TLS", "turn on ssl")
		r.NoError(os.Chmod(cert.Key, 0o644))
		r.wantOneFinding(dsn("sslcert="+cert.Cert+" sslkey='"+cert.Key+"'"), "files", driver.VerdictWarning, cert.Key, "chmod o= ")
	})
	t.Run("a certificate that nobody verifies", func(t *testing.T) {
		r := start(t)
		cert, err := redisproc.NewCertificate(t.TempDir())
		r.NoError(err)
		url := "postgres://holdfast@" + r.tlsAddress(cert) + "/postgres?sslrootcert=" + cert.Cert + "&sslmode="
		if found := r.badFindings(url + "verify-full"); len(found) > 0 {
			t.Errorf("with verify-full: %+v", found)
		}
		url, _, _ = strings.Cut(url, "?")
		r.wantOneFinding(url+"?sslmode=require", "tls", driver.VerdictWarning, "not verified", "verify-full", "sslrootcert")
		r.wantOneFinding(url, "tls", driver.VerdictWarning, "not verified", "verify-full", "sslrootcert")
	})
	t.Run("an old snapshot", func(t *testing.T) {
		s := startDurable(t) // a server of its own, because the fault would disturb other tests
		r := newRigOn(t, s)
		tx := r.beginAt(pgx.RepeatableRead)
		if found := r.badFindings(s.DSN()); len(found) > 0 {
			t.Errorf("of a new one: %+v", found)
		}
		r.execSQL("CREATE TABLE holdfast.turn (n int)")
		r.execSQL(`DO $$ BEGIN FOR i IN 1..10010 LOOP
			BEGIN INSERT INTO holdfast.turn VALUES (i); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$`)
		r.wantOneFinding(s.DSN(), "tables", driver.VerdictWarning, "transactions old", "slower", "idle_in_transaction_session_timeout")
		r.NoError(tx.Rollback(t.Context()))
		if found := r.badFindings(s.DSN()); len(found) > 0 {
			t.Errorf("after its end: %+v", found)
		}
	})
	t.Run("a session that is idle in a transaction", func(t *testing.T) {
		s := startDurable(t)
		r := newRigOn(t, s)
		tx, err := r.openPool(s.DSN() + " application_name=sleeper").Begin(t.Context())
		r.NoError(err)
		defer tx.Rollback(context.Background())
		var bad []driver.Finding
		r.Eventually("it is found", func() bool {
			found, err := runDoctor(r.WaitContext(), s.DSN(), time.Second, &r.opts)
			r.NoError(err)
			bad = slices.DeleteFunc(found, func(f driver.Finding) bool { return !f.Bad() || f.Check != "tables" })
			return len(bad) > 0
		})
		for _, word := range []string{`"sleeper"`, "idle in a transaction", "idle_in_transaction_session_timeout"} {
			if text := bad[0].Text + bad[0].Fix; !strings.Contains(text, word) {
				t.Errorf("%q lacks %q", text, word)
			}
		}
	})
	t.Run("nothing in a session with odd settings", func(t *testing.T) {
		if found := start(t).badFindings(dsn(oddSettings)); len(found) > 0 {
			t.Errorf("found %+v", found)
		}
	})
	t.Run("a name that is no database", func(t *testing.T) {
		r := start(t)
		socket := url.QueryEscape(strings.TrimSuffix(r.socket, "/.s.PGSQL.5432"))
		r.wantOneFinding("postgres://holdfast@/nowhere?host="+socket, "reach", driver.VerdictFault, `"nowhere"`, "create it")
	})
}

// serveTLS answers the request for TLS as a PostgreSQL server does, or rejects it, and sends nothing more.
func serveTLS(t *testing.T, cert *redisproc.Certificate) string {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.ReadFull(conn, make([]byte, 8)) // SSLRequest
			if cert == nil {
				conn.Write([]byte("N"))
			} else if pair, err := tls.LoadX509KeyPair(cert.Cert, cert.Key); err == nil {
				conn.Write([]byte("S"))
				tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}}).Handshake()
			}
			conn.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return "127.0.0.1:" + port
}

// tlsAddress returns the address of a relay that speaks TLS before the server. It reads the certificate for
// each connection and verifies a client's certificate if there is one.
func (r *rig) tlsAddress(cert *redisproc.Certificate) string {
	r.Helper()
	config := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := cert.Client()
		if err != nil {
			return nil, err
		}
		return &tls.Config{Certificates: c.Certificates, ClientCAs: c.RootCAs, ClientAuth: tls.VerifyClientCertIfGiven}, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	r.NoError(err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer client.Close()
				request := make([]byte, 8)
				if _, err := io.ReadFull(client, request); err != nil || request[7] != 47 { // 47: SSLRequest; the other short message cancels a statement
					return
				}
				client.Write([]byte("S"))
				server, err := net.Dial("unix", r.socket)
				if err != nil {
					return
				}
				secure := tls.Server(client, &tls.Config{GetConfigForClient: config})
				all.Go(func() {
					io.Copy(secure, server)
					client.Close()
				})
				io.Copy(server, secure)
				server.Close()
			})
		}
	})
	r.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// plainConn is a connection without TLS to the address in to.
type plainConn struct {
	net.Conn
	to netip.AddrPort
}

// RemoteAddr implements net.Conn.
func (p plainConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(p.to) }

// A connection within this machine, or a URL that asks for no TLS, gets no warning.
func TestDoctorWarnsOfClearTextFallback(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url, to string
		warns   bool
	}{
		{"postgres://h/db", "10.0.0.1:5432", true},
		{"postgres://h/db?sslmode=prefer", "192.0.2.1:5432", true},
		{"postgres://h/db?sslmode=allow", "[2001:db8::1]:5432", true},
		{"postgres://h/db?sslmode=disable", "10.0.0.1:5432", false},
		{"postgres://h/db", "127.0.0.1:5432", false},
		{"postgres://h/db", "[::1]:5432", false},
	} {
		if text := postgres.TLSWeakness(c.url, plainConn{to: netip.MustParseAddrPort(c.to)}); (text != "") != c.warns {
			t.Errorf("%s at %s: %q, want a warning: %v", c.url, c.to, text, c.warns)
		}
	}
}

// runDoctor opens a driver for url and returns the doctor's findings.
func runDoctor(ctx context.Context, url string, ttl time.Duration, opts *postgres.Options) ([]driver.Finding, error) {
	var o postgres.Options
	if opts != nil {
		o = *opts
	}
	o.NoCheck = true
	d, err := postgres.Open(ctx, url, &o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Diagnose(ctx, ttl), nil
}
