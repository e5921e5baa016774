package sqllock_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/sqllock"
)

// gapServer is a MySQL server with one lock that rejects new connections for a while: all connections are in
// use, or its clients lack a new certificate or password.
type gapServer struct {
	mu      sync.Mutex
	cond    *sync.Cond
	full    bool // accepts no connection
	hangs   bool // answers no login
	deaf    bool // such a login continues when its context has ended
	stalled bool // answers nothing
	noLock  bool // GET_LOCK fails, as behind a proxy that cannot reach the server
	opened  int
	conns   map[*gapConn]bool
	renewed []int // connection ids of the renewals
	owner   string
	token   int64
}

func newGapServer() *gapServer {
	s := &gapServer{conns: make(map[*gapConn]bool), token: 2e15}
	s.cond = sync.NewCond(&s.mu)
	return s
}

func (s *gapServer) update(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
	s.cond.Broadcast()
}

// cutConns breaks all connections. The clients notice at their next use.
func (s *gapServer) cutConns() { s.update(func() { s.eachConn(func(c *gapConn) { c.broken = true }) }) }

// silenceConns makes all connections drop all data that is sent.
func (s *gapServer) silenceConns() {
	s.update(func() { s.eachConn(func(c *gapConn) { c.silent = true }) })
}

func (s *gapServer) eachConn(fn func(*gapConn)) {
	for c := range s.conns {
		fn(c)
	}
}

func (s *gapServer) setFull(full bool) { s.update(func() { s.full = full }) }

// newPool returns a pool of connections to the server.
func (s *gapServer) newPool(open, idle int) *sql.DB {
	db := sql.OpenDB(s)
	db.SetMaxOpenConns(open)
	db.SetMaxIdleConns(idle)
	return db
}

// Connect implements sqldriver.Connector.
func (s *gapServer) Connect(ctx context.Context) (sqldriver.Conn, error) {
	stop := context.AfterFunc(ctx, func() { s.update(func() {}) })
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.hangs && (s.deaf || ctx.Err() == nil) {
		s.cond.Wait()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.full {
		return nil, errors.New("tls: failed to verify certificate: x509: certificate signed by unknown authority")
	}
	s.opened++
	c := &gapConn{s: s, id: s.opened}
	s.conns[c] = true
	return c, nil
}

// Driver implements sqldriver.Connector.
func (s *gapServer) Driver() sqldriver.Driver { return nil }

// gapConn is a connection that ends when its statement is cancelled, like a connection of go-sql-driver.
type gapConn struct {
	s              *gapServer
	id             int
	broken, silent bool // guarded by s.mu
}

func (c *gapConn) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c *gapConn) Begin() (sqldriver.Tx, error)           { return nil, errors.ErrUnsupported }
func (c *gapConn) Close() error                           { c.s.update(func() { delete(c.s.conns, c) }); return nil }

// IsValid implements sqldriver.Validator.
func (c *gapConn) IsValid() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return !c.broken
}

// ResetSession implements sqldriver.SessionResetter.
func (c *gapConn) ResetSession(context.Context) error {
	if !c.IsValid() {
		return sqldriver.ErrBadConn
	}
	return nil
}

// awaitServer returns when the server has executed a statement.
func (c *gapConn) awaitServer(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.s.update(func() {}) })
	defer stop()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for (c.s.stalled || c.silent) && !c.broken && ctx.Err() == nil {
		c.s.cond.Wait()
	}
	switch {
	case ctx.Err() != nil:
		c.broken = true
		return ctx.Err()
	case c.broken:
		return errors.New("invalid connection")
	}
	return nil
}

// ExecContext implements sqldriver.ExecerContext.
func (c *gapConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	if err := c.awaitServer(ctx); err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	switch {
	case strings.Contains(query, "FORCE INDEX"):
		c.s.renewed = append(c.s.renewed, c.id)
		return gapResult(c.s.token), nil
	case strings.Contains(query, "owner = ?") && strings.Contains(query, "LAST_INSERT_ID(CASE"): // an unread acquire
		if c.s.owner != "" {
			return gapResult(0), nil
		}
		c.s.owner = args[1].Value.(string)
	case strings.Contains(query, "WHERE name = ? AND stamp = ?") && strings.Contains(query, "token = ?"): // a change of a row that was read
		c.s.owner = args[2].Value.(string)
	case strings.Contains(query, "INSERT INTO holdfast_lock"):
		if c.s.owner != "" {
			return gapResult(0), nil
		}
		c.s.owner = args[2].Value.(string)
	}
	return gapResult(c.s.token), nil
}

// gapResult is the result of a statement that has matched one row; 0: none.
type gapResult int64

// LastInsertId implements sqldriver.Result.
func (r gapResult) LastInsertId() (int64, error) { return int64(r), nil }

// RowsAffected implements sqldriver.Result.
func (r gapResult) RowsAffected() (int64, error) { return min(int64(r), 1), nil }

// QueryContext implements sqldriver.QueryerContext.
func (c *gapConn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if err := c.awaitServer(ctx); err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	row := func(columns ...sqldriver.Value) (sqldriver.Rows, error) { return &gapRows{columns}, nil }
	id, now := int64(c.id), time.Now().UnixMicro()
	switch {
	case c.s.noLock && strings.Contains(query, "GET_LOCK"):
		return nil, serverError("Error 9001 (HY000): Max connect timeout reached while reaching hostgroup 0 after 10000ms")
	case strings.Contains(query, "holdfast_version"):
		return row(int64(1))
	case strings.Contains(query, "SELECT l.name"):
		return row("k", c.s.owner, c.s.token, int64(1), int64(time.Hour/time.Microsecond), int64(0))
	case strings.Contains(query, "GET_LOCK(?, 0)"), strings.Contains(query, "IS_USED_LOCK"):
		if strings.Contains(query, "IS_USED_LOCK") {
			return row(id, id)
		}
		return row(int64(1), id)
	case strings.Contains(query, "GET_LOCK"):
		return row(int64(1))
	case strings.Contains(query, "DATABASE()"):
		return row("locks")
	case strings.Contains(query, "FROM (SELECT"): // a read of the lock
		owner, expires := c.s.owner, now
		if owner != "" {
			expires += int64(time.Hour / time.Microsecond)
		}
		return row(now, int64(1), c.s.token, owner, "{}", now-10, expires, int64(0), nil, nil, nil, nil, nil, int64(0), int64(0))
	}
	return &gapRows{}, nil
}

// gapRows holds one row or none.
type gapRows struct{ row []sqldriver.Value }

func (r *gapRows) Columns() []string { return make([]string, len(r.row)) }
func (r *gapRows) Close() error      { return nil }
func (r *gapRows) Next(dest []sqldriver.Value) error {
	if r.row == nil {
		return io.EOF
	}
	copy(dest, r.row)
	r.row = nil
	return nil
}

// runInGap runs a test in a bubble, with a driver whose pools have the settings of package mysql.
func runInGap(t *testing.T, test func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB)) {
	synctest.Test(t, func(t *testing.T) {
		s := newGapServer()
		db, renewDB := s.newPool(7, 7), s.newPool(3, 1)
		defer db.Close()
		defer renewDB.Close()
		d, err := sqllock.New(t.Context(), db, sqllock.MySQL, &sqllock.Options{NoCheck: true, RenewDB: renewDB})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		test(t, s, d, db)
	})
}

const gapTTL = 8 * time.Second

// takeLock acquires the lock for gapTTL.
func takeLock(t *testing.T, d *sqllock.Driver) driver.Grant {
	t.Helper()
	g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: gapTTL})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// wantRenewed fails unless a renewal succeeds before the lease ends.
func wantRenewed(t *testing.T, d *sqllock.Driver, g driver.Grant) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), g.TrustedUntil)
	defer cancel()
	if r := d.Renew(ctx, []driver.Grant{g})[0]; r.Err != nil {
		t.Errorf("Renew() = %v", r.Err)
	}
}

// loseIdle breaks the idle connections of the pool, as cancelled callers do.
func loseIdle(t *testing.T, s *gapServer, db *sql.DB) {
	t.Helper()
	for range db.Stats().Idle {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn.Raw(func(any) error { return sqldriver.ErrBadConn })
		conn.Close()
	}
}

// A cancelled attempt would lose its connection, and the server accepts no other.
func TestRenewalSurvivesSlowServerInGap(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		g := takeLock(t, d)
		synctest.Wait() // the renewal pool now has a connection
		s.setFull(true)
		s.update(func() { s.stalled = true })
		go func() {
			time.Sleep(gapTTL * 2 / 3)
			s.update(func() { s.stalled = false })
		}()
		wantRenewed(t, d, g)
	})
}

// The renewal connection has died silently, and another connection of the client works.
func TestGapRenewalReplacesDeadConnection(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		g := takeLock(t, d)
		synctest.Wait()
		s.silenceConns()
		loseIdle(t, s, db)
		if err := db.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.setFull(true)
		wantRenewed(t, d, g)
	})
}

// The renewal connection has broken, and cancelled callers have cost all other connections of the pool.
func TestRenewalsKeepOneClaimConnection(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		s.update(func() { s.owner = "another" })
		if _, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: gapTTL, NoWait: true}); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		s.update(func() { s.owner, s.full = "", true })
		g := takeLock(t, d)
		time.Sleep(gapTTL / 10) // the client notices that renewals have no connection
		loseIdle(t, s, db)
		wantRenewed(t, d, g)
	})
}

// takeInside returns a grant of d that was acquired through the turnstile. From then on the server accepts no
// new connection.
func takeInside(t *testing.T, s *gapServer, d *sqllock.Driver) driver.Grant {
	t.Helper()
	s.update(func() { s.owner = "another" })
	got := make(chan driver.Grant, 1)
	go func() {
		g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: gapTTL})
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	synctest.Wait() // the waiter is inside
	s.setFull(true)
	s.update(func() { s.owner = "" })
	g := <-got
	if g.Owner == "" {
		t.FailNow()
	}
	return g
}

// A waiter is at the turnstile, and its connection is the only one that the client has left.
func TestRenewalUsesConnectionInsideTurnstile(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		g := takeInside(t, s, d)
		loseIdle(t, s, db)
		wantRenewed(t, d, g)
	})
}

// The renewal gets no answer, and the release uses another connection.
func TestRenewalInsideTurnstileDoesNotDelayRelease(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		g := takeInside(t, s, d)
		loseIdle(t, s, db)
		synctest.Wait()
		s.silenceConns()
		go d.Renew(t.Context(), []driver.Grant{g})
		time.Sleep(100 * time.Millisecond) // the renewal waits for an answer
		s.setFull(false)
		d.Release(t.Context(), g, 0) // continues in the background
		time.Sleep(gapTTL / 2)
		s.update(func() {
			if s.owner != "" {
				t.Error("the lock is not free")
			}
		})
	})
}

// Servers and proxies cut old connections, so the driver replaces its renewal connection in time.
func TestRenewalConnectionIsReplacedEarly(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		renewals := func() (n int) { s.update(func() { n = s.renewed[len(s.renewed)-1] }); return n }
		g := takeLock(t, d)
		wantRenewed(t, d, g)
		first := renewals()
		s.setFull(true)
		time.Sleep(10 * time.Minute)
		loseIdle(t, s, db)
		g.TrustedUntil = time.Now().Add(gapTTL)
		wantRenewed(t, d, g)
		if now := renewals(); now != first {
			t.Errorf("renewals used connection %d, want %d while none can be opened", now, first)
		}
		s.setFull(false)
		time.Sleep(10 * time.Minute)
		g.TrustedUntil = time.Now().Add(gapTTL)
		wantRenewed(t, d, g)
		if now := renewals(); now == first {
			t.Errorf("renewals still use connection %d", now)
		}
	})
}

// The server accepts new connections but answers no login, while the renewal connection grows old.
func TestUnansweredLoginKeepsRenewalConnection(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, _ *sql.DB) {
		g := takeLock(t, d)
		wantRenewed(t, d, g)
		s.update(func() { s.hangs = true })
		time.Sleep(10 * time.Minute)
		g.TrustedUntil = time.Now().Add(gapTTL)
		wantRenewed(t, d, g)
		s.update(func() { s.hangs = false })
	})
}

// The renewal connection has broken, and no new login is answered, in either pool.
func TestUnansweredLoginKeepsOtherConnections(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		g := takeLock(t, d)
		synctest.Wait()
		s.cutConns()
		loseIdle(t, s, db)
		if err := db.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.update(func() { s.hangs = true })
		wantRenewed(t, d, g)
		s.update(func() { s.hangs = false })
	})
}

// The program's connector waits for a login and ignores its context.
func TestHangingConnectorDoesNotBlockClose(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		takeLock(t, d)
		synctest.Wait()
		s.cutConns()
		loseIdle(t, s, db)
		s.update(func() { s.hangs, s.deaf = true, true })
		time.Sleep(10 * time.Second) // until the driver asks whether the database is there
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			d.Close()
		}()
		time.Sleep(time.Minute)
		select {
		case <-closed:
		default:
			t.Error("Close waited for the login")
		}
		s.update(func() { s.hangs = false })
		<-closed
	})
}

// An unanswered statement may be the fault of the server, not of the connections.
func TestUnansweredStatementKeepsConnectionsInGap(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		g := takeLock(t, d)
		synctest.Wait()
		var idle []*sql.Conn
		for range 3 {
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			idle = append(idle, conn)
		}
		for _, conn := range idle {
			conn.Close()
		}
		s.update(func() { s.full, s.stalled = true, true })
		ctx, cancel := context.WithTimeout(t.Context(), gapTTL)
		defer cancel()
		if _, err := d.Inspect(ctx, "k"); err == nil {
			t.Error("a stalled server answered")
		}
		s.update(func() { s.stalled = false })
		synctest.Wait()
		if left := db.Stats().OpenConnections; left != 2 {
			t.Errorf("%d connections are open, want 2: all except the unanswered one", left)
		}
		s.setFull(false)
		_ = g
	})
}

// The connection broke while the client had no lease. The next lease finds a new connection.
func TestGrantReopensBrokenRenewalConnection(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, db *sql.DB) {
		g := takeLock(t, d)
		synctest.Wait()
		if err := d.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}
		s.update(func() { s.owner = "" })
		time.Sleep(2 * time.Second) // not at one of the driver's own pings
		s.cutConns()
		g = takeLock(t, d)
		synctest.Wait()
		s.setFull(true)
		loseIdle(t, s, db)
		wantRenewed(t, d, g)
	})
}

// A proxy fails when its server restarts.
func TestWaitersReturnToTurnstileAfterFailure(t *testing.T) {
	runInGap(t, func(t *testing.T, s *gapServer, d *sqllock.Driver, _ *sql.DB) {
		s.update(func() { s.owner, s.noLock = "another", true })
		wait := func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if g, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: gapTTL}); err == nil {
				t.Fatalf("a held lock was granted: %+v", g)
			}
		}
		wait()
		if e := d.Nodes()[0]; e.State != driver.NodePolling || !strings.Contains(e.Err.Error(), "GET_LOCK failed") {
			t.Fatalf("the node is %v, %v", e.State, e.Err)
		}
		s.update(func() { s.noLock = false })
		time.Sleep(2 * time.Minute)
		wait()
		if e := d.Nodes()[0]; e.State != driver.NodeUp {
			t.Errorf("after two minutes the node is %v, %v", e.State, e.Err)
		}
	})
}
