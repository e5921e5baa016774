package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/postgres"
)

// network is the network of one pool. Its connections can die silently, as behind a firewall that drops them.
type network struct {
	mu    sync.Mutex // guards the fields below
	conns []*dyingConn
}

// dyingConn is a connection that, once dead, drops everything sent to either end.
type dyingConn struct {
	net.Conn
	dead, used    atomic.Bool // used: the client wrote to it after its death
	listens, left atomic.Bool // left: the client has closed it
}

// Close implements net.Conn.
func (c *dyingConn) Close() error {
	c.left.Store(true)
	return c.Conn.Close()
}

// Write implements net.Conn.
func (c *dyingConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("LISTEN ")) {
		c.listens.Store(true)
	}
	switch {
	case !c.dead.Load():
	case b[0] == 'X': // Terminate, which the server does not receive either
		return len(b), nil
	default:
		c.used.Store(true)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Read implements net.Conn.
func (c *dyingConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.dead.Load() {
			return n, err
		}
	}
}

// dial implements pgconn.DialFunc.
func (n *network) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &dyingConn{Conn: conn}
	n.conns = append(n.conns, c)
	return c, nil
}

// killConnections makes all connections die silently.
func (n *network) killConnections() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		c.dead.Store(true)
	}
}

// wastedCount returns how many connections the client used after their death.
func (n *network) wastedCount() (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		if c.used.Load() {
			count++
		}
	}
	return count
}

// listenerCount returns the number of listening connections. With left it counts only those that the client has
// closed.
func (n *network) listenerCount(left bool) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		if c.listens.Load() && c.left.Load() == left {
			count++
		}
	}
	return count
}

// poolThrough returns a pool of this size over n.
func (r *rig) poolThrough(n *network, size int32) *pgxpool.Pool {
	r.Helper()
	cfg, err := pgxpool.ParseConfig(server.DSN())
	r.NoError(err)
	cfg.MaxConns, cfg.ConnConfig.DialFunc = size, n.dial
	pool, err := pgxpool.NewWithConfig(r.Context(), cfg)
	r.NoError(err)
	r.Cleanup(pool.Close)
	return pool
}

// Only one request fails on a dead connection. The driver also sends pings of its own.
func TestDeadPoolCostsOneAttempt(t *testing.T) {
	r := startRig(t)
	const size = 10
	n := &network{}
	pool := r.poolThrough(n, size)
	d, err := postgres.New(t.Context(), pool, &postgres.Options{Schema: r.opts.Schema, NoListen: true})
	fixture.CloseAtEnd(r.Rig, d, err)
	r.fillPool(pool)()
	n.killConnections()
	r.AcquireGrant(d, "k", 6*shortTTL)
	if wasted := n.wastedCount(); wasted > 3 {
		t.Errorf("tried %d of %d dead connections", wasted, size)
	}
}

// fillPool takes all connections of a pool, as the program's transactions do. empty returns them.
func (r *rig) fillPool(pool *pgxpool.Pool) (empty func()) {
	r.Helper()
	var taken []*pgxpool.Conn
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(r.WaitContext())
		r.NoError(err)
		taken = append(taken, conn)
	}
	return func() {
		for _, conn := range taken {
			conn.Release()
		}
	}
}

// The program uses all connections of the pool. Leases are still renewed and checked.
func TestRenewalSurvivesExhaustedPool(t *testing.T) {
	r := startRig(t)
	n := &network{}
	pool := r.poolThrough(n, 2)
	d, err := postgres.New(t.Context(), pool, &r.opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	g := r.AcquireGrant(d, "k", endlessTTL)
	empty := r.fillPool(pool)
	defer empty()
	g.TTL = 4 * shortTTL // bounds the renewal, and only lengthens the lease
	for range 2 {
		if err := d.Renew(t.Context(), []driver.Grant{g})[0].Err; err != nil {
			t.Errorf("Renew() = %v", err)
		}
		if err := d.Check(t.Context(), g); err != nil {
			t.Errorf("Check() = %v", err)
		}
	}
	gone := g
	gone.Owner += "x"
	if err := d.Renew(t.Context(), []driver.Grant{gone})[0].Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew() of a lost lease = %v", err)
	}
	if n := d.RenewalConns(); n != 1 {
		t.Errorf("%d connections are open for renewals, want one for all", n)
	}
}

// All connections have died. Claims wait for connections of the pool, and pgx keeps a slot for each dead
// connection for 15 s.
func TestRenewalOutlivesDeadConnections(t *testing.T) {
	r := startRig(t)
	n := &network{}
	pool := r.poolThrough(n, 3)
	d, err := postgres.New(t.Context(), pool, &postgres.Options{Schema: r.opts.Schema, NoListen: true})
	fixture.CloseAtEnd(r.Rig, d, err)
	g := r.AcquireGrant(d, "k", endlessTTL)
	r.fillPool(pool)()
	r.NoError(d.Renew(t.Context(), []driver.Grant{g})[0].Err) // opens one beside the pool
	n.killConnections()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for i := range 4 {
		all.Go(func() { d.Acquire(ctx, driver.Request{Key: fmt.Sprint("other", i), TTL: 8 * shortTTL}) })
	}
	r.Eventually("claims wait on dead connections", func() bool { return n.wastedCount() >= 2 })
	g.TTL = 8 * shortTTL // bounds the renewal, and only lengthens the lease
	if err := d.Renew(t.Context(), []driver.Grant{g})[0].Err; err != nil {
		t.Errorf("Renew() = %v", err)
	}
}

// The server has the new password before the client's password file does. The waiter reports the error
// meanwhile, and then reads the new password from the file.
func TestWaitSurvivesPasswordRotation(t *testing.T) {
	t.Parallel()
	s := startAlone(t)
	r := newRigOn(t, s)
	r.execSQL("CREATE ROLE locked SUPERUSER LOGIN PASSWORD 'hunter1'")
	var dir string
	r.NoError(r.pool.QueryRow(t.Context(), "SHOW data_directory").Scan(&dir))
	r.execSQL("COPY (VALUES ('local all locked scram-sha-256'), ('local all all trust')) TO '" + dir + "/pg_hba.conf'")
	r.execSQL("SELECT pg_reload_conf()")
	file := filepath.Join(t.TempDir(), "pgpass")
	set := func(password string) { r.NoError(os.WriteFile(file, []byte("*:*:*:locked:"+password), 0o600)) }
	set("hunter1")
	host := url.QueryEscape(strings.TrimSuffix(socketPath(s.DSN()), "/.s.PGSQL.5432"))
	r.Eventually("the password is asked for", func() bool {
		_, err := postgres.Open(t.Context(), "postgres://locked:wrong@/postgres?host="+host, &r.opts)
		return errors.Is(err, driver.ErrAuth)
	})
	d, err := postgres.Open(t.Context(), "postgres://locked@/postgres?host="+host+"&passfile="+url.QueryEscape(file), &r.opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	l := r.Acquire(r.newClient(), "k", endlessTTL)
	got := fixture.AcquireAsync(r.WaitContext(), d, driver.Request{Key: "k", TTL: endlessTTL})
	r.Eventually("it waits", func() bool { return r.waiterCount("k") == 1 })

	r.execSQL("ALTER ROLE locked PASSWORD 'hunter2'")
	r.execSQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'locked'")
	var seen error
	r.Eventually("it reports the refusal", func() bool {
		seen = d.Nodes()[0].Err
		return errors.Is(seen, driver.ErrAuth)
	})
	r.checkError(seen, driver.ErrAuth, "password authentication failed", "right before")
	select {
	case err := <-got:
		t.Fatalf("Acquire() = %v while the password is changed, want that it waits", err)
	default:
	}
	set("hunter2")
	r.Eventually("it is back", func() bool { return d.Nodes()[0].State == driver.NodeUp })
	r.Release(l)
	if err := <-got; err != nil {
		t.Errorf("Acquire() = %v", err)
	}
}

// The driver reads authority, certificate and key of the client again for each connection.
func TestNewConnectionsUseRotatedCertificates(t *testing.T) {
	r := startRig(t)
	dir := t.TempDir()
	cert, err := redisproc.NewCertificate(dir)
	r.NoError(err)
	name := strings.ReplaceAll(r.opts.Schema, " ", "_")
	d, err := postgres.Open(t.Context(), fmt.Sprintf("postgres://holdfast@%s/postgres?sslmode=verify-full&sslrootcert=%s&sslcert=%s&sslkey=%s&application_name=%s",
		r.tlsAddress(cert), cert.Cert, cert.Cert, cert.Key, name), &r.opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	g := r.AcquireGrant(d, "k", endlessTTL)
	_, err = redisproc.NewCertificate(dir) // replaces the first one
	r.NoError(err)
	if r.countRows("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1", name) == 0 {
		t.Fatal("no connection was closed")
	}
	r.NoError(d.Check(r.WaitContext(), g))
	r.NoError(d.Release(r.WaitContext(), g, 0))
}

// When the pool leaves a primary that has become read-only, the listening connection leaves it too.
func TestListenerLeavesFormerPrimary(t *testing.T) {
	r := startRig(t)
	n := &network{}
	pool := r.poolThrough(n, 2)
	d, err := postgres.New(t.Context(), pool, &r.opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	c := r.Client(d)
	first := r.Acquire(c, "first", longTTL)
	r.forceLock(first)
	r.checkForced(first) // so the driver listens now
	var old []*pgxpool.Conn
	for range 2 {
		conn, err := pool.Acquire(r.WaitContext())
		r.NoError(err)
		_, err = conn.Exec(t.Context(), "SET default_transaction_read_only = on")
		r.NoError(err)
		old = append(old, conn)
	}
	for _, conn := range old {
		conn.Release()
	}
	r.Release(r.Acquire(c, "k", endlessTTL))
	r.Eventually("it listens elsewhere", func() bool { return n.listenerCount(true) == 1 && n.listenerCount(false) == 1 })
}

// A hook of the pool ignores its context. Renewals that would open their own connection through that hook use
// a connection of the pool.
func TestHangingHookDoesNotDelayRenewal(t *testing.T) {
	r := startRig(t)
	cfg, err := pgxpool.ParseConfig(server.DSN())
	r.NoError(err)
	var hangs atomic.Bool
	hook := make(chan struct{})
	cfg.AfterConnect = func(context.Context, *pgx.Conn) error {
		if hangs.Load() {
			<-hook
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	r.NoError(err)
	t.Cleanup(pool.Close)
	opts := r.opts
	opts.NoListen = true
	d, err := postgres.New(t.Context(), pool, &opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	t.Cleanup(func() { close(hook) })
	g := r.AcquireGrant(d, "k", endlessTTL)
	hangs.Store(true)
	for range 2 {
		renewed := fixture.RunAsync(func() driver.Renewal { return d.Renew(r.WaitContext(), []driver.Grant{g})[0] })
		select {
		case out := <-renewed:
			r.NoError(out.Err)
		case <-r.WaitContext().Done():
			t.Fatal("the renewal waited for the hook")
		}
	}
	closed := fixture.RunAsync(d.Close)
	select {
	case err := <-closed:
		r.NoError(err)
	case <-r.WaitContext().Done():
		t.Error("Close waited for the hook")
	}
}

// An attempt to connect hangs, and the next may succeed. The program uses the whole pool.
func TestShortLeaseBoundsConnectTime(t *testing.T) {
	r := startRig(t)
	cfg, err := pgxpool.ParseConfig(server.DSN())
	r.NoError(err)
	cfg.MaxConns = 2
	var hangs atomic.Bool
	limits := make(chan time.Duration, 1)
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !hangs.CompareAndSwap(true, false) {
			return dial(ctx, network, addr)
		}
		end, _ := ctx.Deadline()
		limits <- time.Until(end)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	r.NoError(err)
	t.Cleanup(pool.Close)
	opts := r.opts
	opts.NoListen = true
	d, err := postgres.New(t.Context(), pool, &opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	g := r.AcquireGrant(d, "k", endlessTTL)
	for range cfg.MaxConns {
		conn, err := pool.Acquire(r.WaitContext())
		r.NoError(err)
		t.Cleanup(conn.Release)
	}
	hangs.Store(true)
	g.TTL = 2 * time.Second
	d.Renew(r.WaitContext(), []driver.Grant{g})
	if limit := <-limits; limit > g.TTL/2 {
		t.Errorf("a connection attempt may take %v of a lease of %v", limit, g.TTL)
	}
}
