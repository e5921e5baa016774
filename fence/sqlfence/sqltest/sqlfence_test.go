// Package sqltest runs package sqlfence against real databases. It is a separate module, because the root
// module does not require database drivers.
package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/storetest"
)

// database is one database under test.
type database struct {
	*sql.DB
	fence *sqlfence.Fence
	arg   func(n int) string // placeholder of the n-th argument
}

func numberedPlaceholder(n int) string { return "$" + strconv.Itoa(n) }
func plainPlaceholder(int) string      { return "?" }

// databases opens a new, empty database of each kind.
var databases = map[string]func(*testing.T) *database{"PostgreSQL": openPostgreSQL, "SQLite": openSQLite, "MariaDB": openMariaDB, "MySQL": openMySQL}

// onEachDatabase runs test on a new, empty database of each kind.
func onEachDatabase(t *testing.T, test func(*testing.T, *database)) {
	t.Parallel()
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			if err := db.fence.Create(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			if err := db.fence.Create(t.Context(), db); err != nil {
				t.Errorf("a second Create: %v", err)
			}
			db.exec(t, `CREATE TABLE account (name varchar(20) PRIMARY KEY, balance bigint, fence bigint, fence_owner varchar(20))`)
			test(t, db)
		})
	}
}

// postgreSQL is one server for all tests; each test has its own schema.
var postgreSQL = sync.OnceValues(func() (*pgproc.Server, error) {
	server, err := pgproc.Start(context.Background(), "max_connections=300")
	if err == nil {
		atEnd(server.Stop)
	}
	return server, err
})

func openPostgreSQL(t *testing.T) *database {
	server, err := postgreSQL()
	if err != nil {
		t.Fatal(err)
	}
	admin := connectTo(t, "pgx", server.DSN())
	schema := fmt.Sprintf("test_%d", time.Now().UnixNano())
	if _, err := admin.Exec("CREATE SCHEMA " + schema); err != nil {
		t.Fatal(err)
	}
	return newDatabase(t, connectTo(t, "pgx", server.DSN()+" search_path="+schema), sqlfence.PostgreSQL, numberedPlaceholder)
}

func openSQLite(t *testing.T) *database {
	file := filepath.Join(t.TempDir(), "db")
	db := connectTo(t, "sqlite", "file:"+file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)")
	return newDatabase(t, db, sqlfence.SQLite, plainPlaceholder)
}

func newDatabase(t *testing.T, db *sql.DB, dialect sqlfence.Dialect, arg func(int) string) *database {
	f, err := sqlfence.New(dialect, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &database{DB: db, fence: f, arg: arg}
}

func connectTo(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func (db *database) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatal(err)
	}
}

// putBalance writes the balance of key under the guard key.
func (db *database) putBalance(t *testing.T, key string, token holdfast.Token, owner string, balance int) error {
	return db.fence.Do(t.Context(), db.DB, key, token, owner, func(tx *sql.Tx) error {
		if _, err := tx.Exec(`DELETE FROM account WHERE name = `+db.arg(1), key); err != nil {
			return err
		}
		_, err := tx.Exec(`INSERT INTO account (name, balance) VALUES (`+db.arg(1)+`, `+db.arg(2)+`)`, key, balance)
		return err
	})
}

// readBalance returns the balance of key, or -1 if there is none.
func (db *database) readBalance(t *testing.T, key string) int {
	t.Helper()
	n := -1
	err := db.QueryRow(`SELECT balance FROM account WHERE name = `+db.arg(1), key).Scan(&n)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	return n
}

// Programs that start together create the table together.
func TestCreateMayRunConcurrently(t *testing.T) {
	t.Parallel()
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			for range 10 {
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() {
						if err := db.fence.Create(t.Context(), db); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				db.exec(t, `DROP TABLE holdfast_fence`)
			}
		})
	}
}

// The package follows the rule of package fence.
func TestRule(t *testing.T) {
	balances := map[string]int{"before": 1, "after": 2}
	onEachDatabase(t, func(t *testing.T, db *database) {
		storetest.Rule(t, func(t *testing.T, key string, token holdfast.Token, owner, value string) error {
			return db.putBalance(t, key, token, owner, balances[value])
		}, func(t *testing.T, key string) any {
			if db.readBalance(t, key) == balances["after"] {
				return "after"
			}
			return "before"
		})
	})
}

func TestKeysAreCaseSensitive(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		if err := errors.Join(db.putBalance(t, "key", 9, "a", 1), db.putBalance(t, "KEY ", 3, "b", 2)); err != nil {
			t.Error(err)
		}
	})
}

func TestClaimRejectsOlderWriters(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		if err := db.putBalance(t, "k", 5, "old", 1); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := db.fence.Claim(t.Context(), db, "k", 6, "new"); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.putBalance(t, "k", 5, "old", 2); !errors.Is(err, fence.ErrStale) {
			t.Errorf("a write with an older token than a claim: %v, want ErrStale", err)
		}
		if token, owner, err := db.fence.Highest(t.Context(), db, "k"); token != 6 || owner != "new" || err != nil {
			t.Errorf("highest %d of %q, %v", token, owner, err)
		}
		if token, owner, err := db.fence.Highest(t.Context(), db, "unused"); token != 0 || owner != "" || err != nil {
			t.Errorf("unused guard: %d of %q, %v", token, owner, err)
		}
	})
}

func TestForgottenGuardAcceptsAnyToken(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		err := errors.Join(db.putBalance(t, "k", 9, "a", 1), db.fence.Forget(t.Context(), db, "k"), db.putBalance(t, "k", 3, "b", 2))
		if err != nil {
			t.Error(err)
		}
	})
}

func TestFailedWriteIsRolledBack(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		failure := errors.New("no")
		write := func(tx *sql.Tx) error {
			_, err := tx.Exec(`INSERT INTO account (name, balance) VALUES ('k', 1)`)
			return errors.Join(err, failure)
		}
		if err := db.fence.Do(t.Context(), db.DB, "k", 9, "a", write); !errors.Is(err, failure) {
			t.Fatalf("Do: %v, want the write's error", err)
		}
		func() {
			defer func() { recover() }()
			db.fence.Do(t.Context(), db.DB, "k", 9, "a", func(tx *sql.Tx) error { panic("no") })
		}()
		if n := db.readBalance(t, "k"); n != -1 {
			t.Errorf("balance %d stands", n)
		}
		if err := db.putBalance(t, "k", 8, "b", 3); err != nil {
			t.Errorf("a claim that was rolled back still counts: %v", err)
		}
	})
}

// If the database has rolled the transaction back, the claim protects nothing that follows.
func TestClaimNoticesRolledBackTransaction(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		if db.arg(1) == numberedPlaceholder(1) {
			t.Skip("PostgreSQL carries nothing out in a transaction that has failed")
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec("ROLLBACK"); err != nil { // like an error that the program has ignored
			t.Fatal(err)
		}
		if err := db.fence.Claim(t.Context(), tx, "k", 5, "a"); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("Claim() = %v, want ErrTxDone", err)
		}
		if _, err := tx.Exec(`INSERT INTO account (name, balance) VALUES ('k', 1)`); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("a write after the claim = %v, want ErrTxDone", err)
		}
	})
}

// The table may come from another CREATE statement, or from a server setting.
func TestTableWithoutTransactionsIsRejected(t *testing.T) {
	t.Parallel()
	db := openMariaDB(t)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, text := range []string{"SET enforce_storage_engine = Aria", "SET sql_mode = ''"} {
		if _, err := conn.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for what, err := range map[string]error{
		"Create": db.fence.Create(t.Context(), conn), "Claim": db.fence.Claim(t.Context(), db, "k", 5, "a"),
		"Claim of a transaction": db.fence.Claim(t.Context(), tx, "k", 5, "a"),
	} {
		if err == nil || !strings.Contains(err.Error(), "ENGINE = InnoDB") {
			t.Errorf("%s() = %v, want that the table has no transactions", what, err)
		}
	}
	db.exec(t, "ALTER TABLE holdfast_fence ENGINE = InnoDB")
	if err := db.putBalance(t, "missing", 5, "a", 1); err == nil || errors.Is(err, fence.ErrStale) { // there is no table of accounts
		t.Errorf("a write after a claim = %v, want a missing table", err)
	}
	if token, _, err := db.fence.Highest(t.Context(), db, "missing"); token != 0 || err != nil {
		t.Errorf("the claim of a failed write = %d, %v, want it rolled back", token, err)
	}
}

// Some modes of MariaDB change operators and the text of SHOW CREATE TABLE.
func TestClaimWorksInEachSQLMode(t *testing.T) {
	t.Parallel()
	db := openMariaDB(t)
	if err := db.fence.Create(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for i, mode := range []string{"ORACLE", "ANSI,NO_BACKSLASH_ESCAPES", "TRADITIONAL", ""} {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.ExecContext(t.Context(), "SET sql_mode = '"+mode+"'"); err != nil {
			t.Fatal(err)
		}
		f, err := sqlfence.New(sqlfence.MySQL, nil) // a new Fence checks the table again
		if err != nil {
			t.Fatal(err)
		}
		token := holdfast.Token(10 * (i + 1))
		for range 3 {
			if err := f.Claim(t.Context(), conn, "k", token, "a"); err != nil {
				t.Errorf("%s: %v", mode, err)
			}
		}
		if err := f.Claim(t.Context(), conn, "k", token-1, "b"); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: Claim() of an older token = %v, want ErrStale", mode, err)
		}
	}
}

// On MySQL each claim changes the row, so that a database without row locks that merges transactions reports a
// conflict.
func TestRepeatedClaimChangesRow(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		if !strings.Contains(db.fence.Schema(), "InnoDB") {
			t.Skip("PostgreSQL and SQLite lock")
		}
		owner := func() (stored string) {
			if err := db.QueryRow("SELECT HEX(owner) FROM holdfast_fence WHERE name = 'k'").Scan(&stored); err != nil {
				t.Fatal(err)
			}
			return stored
		}
		last := ""
		for i := range 4 {
			if err := db.fence.Claim(t.Context(), db, "k", 5, "a"); err != nil {
				t.Fatal(err)
			}
			if now := owner(); now == last {
				t.Errorf("claim %d changed nothing: owner %s", i, now)
			} else {
				last = now
			}
		}
		for _, other := range []string{"b", "a\x00"} {
			if err := db.fence.Claim(t.Context(), db, "k", 5, other); !errors.Is(err, fence.ErrStale) {
				t.Errorf("the same token of %q = %v, want ErrStale", other, err)
			}
		}
		if token, owner, err := db.fence.Highest(t.Context(), db, "k"); token != 5 || owner != "a" || err != nil {
			t.Errorf("Highest() = %d of %q, %v", token, owner, err)
		}
	})
}

// Many leases write at once. Each writes the value that it has read, plus one. If a write could run apart from
// its check or from its read, the sum would not equal the number of accepted writes.
func TestCheckAndWriteAreOneStep(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		db.exec(t, `INSERT INTO account (name, balance) VALUES ('k', 0)`)
		var mu sync.Mutex
		accepted, last := 0, holdfast.Token(0)
		var all sync.WaitGroup
		gate := make(chan struct{}, 8)
		for token := range holdfast.Token(100) {
			all.Go(func() {
				gate <- struct{}{}
				defer func() { <-gate }()
				err := db.fence.Do(t.Context(), db.DB, "k", token+1, "lease", func(tx *sql.Tx) error {
					n := 0
					if err := tx.QueryRow(`SELECT balance FROM account WHERE name = 'k'`).Scan(&n); err != nil {
						return err
					}
					mu.Lock()
					defer mu.Unlock()
					if token+1 < last {
						t.Errorf("token %d wrote after token %d", token+1, last)
					}
					last = token + 1
					accepted++
					_, err := tx.Exec(`UPDATE account SET balance = `+db.arg(1)+` WHERE name = 'k'`, n+1)
					return err
				})
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := db.readBalance(t, "k"); n != accepted || n == 0 {
			t.Errorf("sum %d of %d accepted writes", n, accepted)
		}
	})
}

// The update needs one statement and no Fence.
func TestTokenColumnPerRow(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		db.exec(t, `INSERT INTO account (name, balance, fence, fence_owner) VALUES ('k', 0, 0, '')`)
		put := func(token holdfast.Token, owner string, balance int) error {
			query := fmt.Sprintf(`UPDATE account SET balance = %s, fence = %s, fence_owner = %s
				WHERE name = 'k' AND (fence < %s OR fence = %s AND fence_owner = %s)`,
				db.arg(1), db.arg(2), db.arg(3), db.arg(4), db.arg(5), db.arg(6))
			res, err := db.Exec(query, balance, int64(token), owner, int64(token), int64(token), owner)
			return sqlfence.CheckApplied("k", token, res, err)
		}
		for i, row := range []struct {
			token holdfast.Token
			owner string
			stale bool
		}{{7, "a", false}, {7, "a", false}, {7, "b", true}, {6, "a", true}, {8, "b", false}} {
			if err := put(row.token, row.owner, 5); errors.Is(err, fence.ErrStale) != row.stale || err != nil && !row.stale {
				t.Errorf("write %d: %v, want stale %v", i, err, row.stale)
			}
		}
	})
}

func TestMissingTableErrorNamesCreate(t *testing.T) {
	t.Parallel()
	dialects := map[string]sqlfence.Dialect{
		"PostgreSQL": sqlfence.PostgreSQL, "SQLite": sqlfence.SQLite, "MariaDB": sqlfence.MySQL, "MySQL": sqlfence.MySQL,
	}
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			f, err := sqlfence.New(dialects[name], &sqlfence.Options{Table: "not_there"})
			if err != nil {
				t.Fatal(err)
			}
			err = f.Do(t.Context(), db.DB, "k", 1, "a", func(*sql.Tx) error { return nil })
			if err == nil || !strings.Contains(err.Error(), "make the table once with Create") {
				t.Errorf("Do without a table: %v", err)
			}
		})
	}
}

func TestEmptyGuardAndOwnerAreRejected(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		for _, lease := range [][2]string{{"", "a"}, {"k", ""}} {
			err := db.fence.Do(t.Context(), db.DB, lease[0], 1, lease[1], func(*sql.Tx) error { return nil })
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("guard and owner %q: %v, want ErrInvalid", lease, err)
			}
		}
	})
}

func TestCheckAppliedNamesMissingRow(t *testing.T) {
	t.Parallel()
	err := sqlfence.CheckApplied("invoice/43", 1, driver.RowsAffected(0), nil)
	if !errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), `no row for "invoice/43" was changed: it does not exist, or has seen`) {
		t.Errorf("the error for no row: %v", err)
	}
}
