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

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/sqllock"
)

// impostor is a server that speaks the MySQL protocol and does not lock rows.
type impostor struct {
	rows   int64 // rows that the second of two changes finds
	commit error // error of the second commit
	nowait error // error of SELECT … FOR UPDATE NOWAIT
	slow   bool  // the second of two changes is answered once the first is committed

	mu        sync.Mutex // guards the fields below
	down      bool       // answers nothing but errors
	changes   int
	commits   int
	committed chan struct{} // closed by the first commit
}

func (i *impostor) setDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

var errDown = errors.New("invalid connection")

func (i *impostor) Connect(context.Context) (sqldriver.Conn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.down {
		return nil, errDown
	}
	return &impostorConn{i}, nil
}
func (i *impostor) Driver() sqldriver.Driver { return nil }

type impostorConn struct{ *impostor }

func (c *impostorConn) Prepare(string) (sqldriver.Stmt, error) {
	return nil, errors.New("no statement is prepared")
}
func (c *impostorConn) Close() error                 { return nil }
func (c *impostorConn) Begin() (sqldriver.Tx, error) { return c, nil }
func (c *impostorConn) Rollback() error              { return nil }

func (c *impostorConn) Commit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.commits++; c.commits > 1 {
		return c.commit
	}
	if c.committed != nil {
		close(c.committed)
		c.committed = nil
	}
	return nil
}

func (c *impostorConn) ExecContext(ctx context.Context, text string, _ []sqldriver.NamedValue) (sqldriver.Result, error) {
	c.mu.Lock()
	committed := c.committed
	switch {
	case strings.Contains(text, "INSERT INTO holdfast_ticket"): // a new row to change
		c.changes, c.commits, c.committed = 0, 0, make(chan struct{})
	case strings.Contains(text, "SET place = place + 1"):
		c.changes++
	}
	second := strings.Contains(text, "SET place = place + 1") && c.changes > 1
	c.mu.Unlock()
	switch {
	case second && c.slow && committed != nil:
		select {
		case <-committed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		fallthrough
	case second:
		return sqldriver.RowsAffected(c.rows), nil
	}
	return impostorResult{}, nil
}

// impostorResult is the result of a statement that has changed one row.
type impostorResult struct{}

func (impostorResult) LastInsertId() (int64, error) { return 2e15, nil }
func (impostorResult) RowsAffected() (int64, error) { return 1, nil }

func (c *impostorConn) QueryContext(_ context.Context, text string, _ []sqldriver.NamedValue) (sqldriver.Rows, error) {
	c.mu.Lock()
	down := c.down
	c.mu.Unlock()
	if down {
		return nil, errDown
	}
	row := &oneRow{columns: 1, over: strings.Contains(text, "autocommit = 0")}
	if strings.HasPrefix(text, "SELECT @@") {
		row.columns += strings.Count(text, ",")
	}
	if strings.Contains(text, "NOWAIT") {
		return row, c.nowait
	}
	return row, nil
}

// oneRow is a result with one row of ones.
type oneRow struct {
	columns int
	over    bool
}

func (r *oneRow) Columns() []string { return make([]string, r.columns) }
func (r *oneRow) Close() error      { return nil }

func (r *oneRow) Next(to []sqldriver.Value) error {
	if r.over {
		return io.EOF
	}
	r.over = true
	for i := range to {
		to[i] = int64(1)
	}
	return nil
}

// serverError is an error in the format of the MySQL drivers.
type serverError string

func (e serverError) Error() string { return string(e) }

// Migrate, New and the doctor reject it. The first case is go-mysql-server with its engine in memory, the
// third is Dolt.
func TestDatabaseWithoutExclusionIsRejected(t *testing.T) {
	t.Parallel()
	conflict, syntax := serverError("Error 1213 (40001): serialization failure"), serverError("Error 1105 (HY000): syntax error near 'NOWAIT'")
	for name, c := range map[string]struct {
		server  *impostor
		fits    bool
		verdict driver.Verdict
	}{
		"both changes carried out":            {&impostor{rows: 1}, false, driver.VerdictFault},
		"both carried out, and no NOWAIT":     {&impostor{rows: 1, nowait: syntax}, false, driver.VerdictFault},
		"second refused at its commit":        {&impostor{rows: 1, commit: conflict}, true, driver.VerdictOK},
		"each statement at once":              {&impostor{}, true, driver.VerdictWarning},
		"both carried out, the second slowly": {&impostor{rows: 1, nowait: syntax, slow: true}, false, driver.VerdictFault},
		"row locks, and no NOWAIT":            {&impostor{nowait: syntax, slow: true}, true, driver.VerdictOK},
		"row locks, whose name is of no news": {&impostor{nowait: serverError("Error 3572 (HY000): not acquired")}, true, driver.VerdictOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := sql.OpenDB(c.server)
			defer db.Close()
			unchecked, err := sqllock.New(t.Context(), db, sqllock.MySQL, &sqllock.Options{NoCheck: true})
			if err != nil {
				t.Fatal(err)
			}
			defer unchecked.Close()
			opened, err := sqllock.New(t.Context(), db, sqllock.MySQL, nil)
			if err == nil {
				opened.Close()
			}
			for what, err := range map[string]error{"New": err, "Migrate": unchecked.Migrate(t.Context())} {
				if c.fits != (err == nil) || err != nil && (!errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "InnoDB")) {
					t.Errorf("%s() = %v, want that it is fit for locks: %v", what, err, c.fits)
				}
			}
			verdict := driver.Verdict("")
			for _, f := range unchecked.Diagnose(t.Context(), 0) {
				if f.Check == "isolation" {
					verdict = f.Verdict
				}
			}
			if verdict != c.verdict {
				t.Errorf("the doctor finds %q, want %q", verdict, c.verdict)
			}
		})
	}
}

// The first grant makes up for it.
func TestExclusionIsCheckedAfterOutageAtOpen(t *testing.T) {
	t.Parallel()
	for _, locks := range []bool{false, true} {
		server := &impostor{rows: 1, down: true}
		if locks {
			server.nowait = serverError("Error 3572 (HY000): not acquired")
		}
		db := sql.OpenDB(server)
		defer db.Close()
		d, err := sqllock.New(t.Context(), db, sqllock.MySQL, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		server.setDown(false)
		for range 2 {
			g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: long})
			if locks != (err == nil) || err != nil && (!errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "InnoDB")) {
				t.Errorf("row locks %v: Acquire() = %+v, %v", locks, g, err)
			}
		}
	}
}

// LockRow rejects these tables. Two settings of MariaDB make it create tables with another engine.
func TestTablesWithoutTransactionsKeepLocks(t *testing.T) {
	for _, engine := range []string{"MyISAM", "Aria"} {
		t.Run(engine, func(t *testing.T) {
			forEach(t, []database{onMariaDB}, func(r *rig) {
				r.settings = "&enforce_storage_engine=" + engine + "&sql_mode=%27%27"
				for _, table := range []string{"lock", "ticket", "version"} {
					r.execSQL("DROP TABLE holdfast_" + table)
				}
				db := r.openPool(r.newRelay().Addr)
				d, err := sqllock.New(r.Context(), db, r.dialect, &sqllock.Options{Prefix: r.prefix, NoCheck: true})
				r.NoError(err)
				defer d.Close()
				r.NoError(d.Migrate(r.WaitContext()))
				bad := make(map[string]string)
				for _, f := range d.Diagnose(r.WaitContext(), 0) {
					if f.Bad() {
						bad[f.Check] = f.Text
					}
				}
				if !strings.Contains(bad["isolation"], "no transactions") || !strings.Contains(bad["durability"], engine) {
					r.Errorf("the doctor finds %q, want missing transactions and the engine %s", bad, engine)
				}
				tx := r.beginTx()
				if err := sqllock.LockRow(r.WaitContext(), tx, r.dialect, r.in("holdfast_version"), "version", 1); !errors.Is(err, driver.ErrInvalid) {
					r.Errorf("LockRow() = %v, want ErrInvalid", err)
				}
				r.Release(r.Acquire(r.newClient(), "k", long))
			})
		})
	}
}
