package sqllock_test

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/sqllock"
)

// beginTx begins a transaction whose statements do not wait for locks.
func (r *rig) beginTx() *sql.Tx {
	r.Helper()
	tx, err := r.db.BeginTx(r.Context(), nil)
	r.NoError(err)
	r.Cleanup(func() { tx.Rollback() })
	return tx
}

// createAccounts creates a table of two accounts, and other kinds of tables beside it.
func (r *rig) createAccounts() {
	r.Helper()
	if r.dialect == sqllock.SQLite { // because the rig's transactions begin with a write
		r.db = r.openDeferring()
	}
	r.execSQL("CREATE TABLE holdfast_account (id varchar(9) PRIMARY KEY, balance bigint)")
	r.execSQL("INSERT INTO holdfast_account VALUES ('a', 1), ('b', 1)")
	r.execSQL("CREATE VIEW holdfast_plain AS SELECT * FROM holdfast_account")
	r.execSQL("CREATE VIEW holdfast_counted AS SELECT MAX(id) AS id FROM holdfast_account")
}

// openDeferring opens the file like a program that takes no locks.
func (r *rig) openDeferring() *sql.DB {
	r.Helper()
	db, err := sql.Open("sqlite", "file:"+r.file+"?_pragma=busy_timeout(50)")
	r.NoError(err)
	r.Cleanup(func() { db.Close() })
	return db
}

// lockRow calls LockRow on a table of r.
func (r *rig) lockRow(tx *sql.Tx, table, id string) error {
	return sqllock.LockRow(r.WaitContext(), tx, r.dialect, r.in(table), "id", id)
}

// Other transactions can neither lock nor write the row.
func TestLockRowLastsUntilTransactionEnds(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		r.createAccounts()
		first, second := r.beginTx(), r.beginTx()
		r.NoError(r.lockRow(first, "holdfast_account", "a"))
		if err := r.lockRow(second, "holdfast_account", "a"); !errors.Is(err, holdfast.ErrHeld) {
			r.Errorf("a row locked by another transaction: %v, want ErrHeld", err)
		}
		r.NoError(second.Rollback())
		third := r.beginTx()
		err := r.lockRow(third, "holdfast_account", "b")
		if whole := r.dialect == sqllock.SQLite; errors.Is(err, holdfast.ErrHeld) != whole || err != nil && !whole {
			r.Errorf("another row: %v", err)
		}
		r.NoError(third.Rollback())
		_, err = first.ExecContext(r.WaitContext(), r.in("UPDATE holdfast_account SET balance = balance + 1 WHERE id = 'a'"))
		r.NoError(err)
		r.NoError(first.Commit())
		last := r.beginTx()
		r.NoError(r.lockRow(last, "holdfast_account", "a"))
		var balance int
		if r.NoError(last.QueryRowContext(r.WaitContext(), r.in("SELECT balance FROM holdfast_account WHERE id = 'a'")).Scan(&balance)); balance != 2 {
			r.Errorf("balance = %d after the lock, want 2", balance)
		}
		if err := r.lockRow(last, "holdfast_account", "c"); !errors.Is(err, sql.ErrNoRows) {
			r.Errorf("missing row: %v, want sql.ErrNoRows", err)
		}
	})
}

// Another transaction has changed the row since this one read it.
func TestLockRowRejectsChangedRow(t *testing.T) {
	forEach(t, []database{onSQLite}, func(r *rig) {
		r.createAccounts()
		r.execSQL("PRAGMA journal_mode = wal") // without WAL no transaction can write while another reads
		tx := r.beginTx()
		var balance int
		r.NoError(tx.QueryRowContext(r.WaitContext(), r.in("SELECT balance FROM holdfast_account WHERE id = 'a'")).Scan(&balance))
		r.execSQL("UPDATE holdfast_account SET balance = 7 WHERE id = 'a'")
		if err := r.lockRow(tx, "holdfast_account", "a"); !errors.Is(err, holdfast.ErrHeld) {
			r.Errorf("LockRow() = %v, want ErrHeld", err)
		}
	})
}

// A read under the lock sees the latest commit, however many locks the transaction takes.
func TestLockRowReadsLatestCommit(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		r.createAccounts()
		tx := r.beginTx()
		r.NoError(r.lockRow(tx, "holdfast_account", "a"))
		r.execSQL("UPDATE holdfast_account SET balance = 7 WHERE id = 'b'")
		r.NoError(r.lockRow(tx, "holdfast_account", "b"))
		var balance int
		if r.NoError(tx.QueryRowContext(r.WaitContext(), r.in("SELECT balance FROM holdfast_account WHERE id = 'b'")).Scan(&balance)); balance != 7 {
			r.Errorf("balance = %d after the lock, want 7", balance)
		}
	})
}

// With some values of sql_mode, SHOW CREATE TABLE leaves the engine out.
func TestLockRowFindsEngineInAnySQLMode(t *testing.T) {
	forEach(t, []database{onMariaDB}, func(r *rig) {
		r.createAccounts()
		r.execSQL("CREATE TABLE holdfast_old (id varchar(9)) ENGINE = MyISAM")
		for _, mode := range []string{"ORACLE", "NO_TABLE_OPTIONS", "ANSI,NO_BACKSLASH_ESCAPES"} {
			r.settings = "&sql_mode=%27" + mode + "%27"
			tx, err := r.openPool(r.newRelay().Addr).BeginTx(r.Context(), nil)
			r.NoError(err)
			if err := r.lockRow(tx, "holdfast_account", "a"); err != nil {
				r.Errorf("%s: LockRow() = %v", mode, err)
			}
			if err := r.lockRow(tx, "holdfast_old", "a"); !errors.Is(err, holdfast.ErrInvalid) {
				r.Errorf("%s: LockRow() on MyISAM = %v, want ErrInvalid", mode, err)
			}
			r.NoError(tx.Rollback())
		}
	})
}

// If the database has rolled the transaction back, later statements would run without one.
func TestLockRowNoticesRolledBackTransaction(t *testing.T) {
	forEach(t, []database{onMariaDB, onMySQL, onSQLite}, func(r *rig) {
		r.createAccounts()
		tx := r.beginTx()
		_, err := tx.ExecContext(r.WaitContext(), "ROLLBACK") // as after an error that the program has ignored
		r.NoError(err)
		if err := r.lockRow(tx, "holdfast_account", "a"); !errors.Is(err, sql.ErrTxDone) {
			r.Errorf("LockRow() = %v, want ErrTxDone", err)
		}
		if _, err := tx.ExecContext(r.WaitContext(), r.in("UPDATE holdfast_account SET balance = 9")); !errors.Is(err, sql.ErrTxDone) {
			r.Errorf("a write after the lock = %v, want ErrTxDone", err)
		}
	})
}

// MariaDB rolls the whole transaction back if a row has changed since its snapshot, by default from 11.6 on.
func TestLockRowEndsRolledBackTransaction(t *testing.T) {
	for _, autocommit := range []int{0, 1} {
		t.Run(fmt.Sprint("autocommit=", autocommit), func(t *testing.T) {
			forEach(t, []database{onMariaDB}, func(r *rig) {
				r.createAccounts()
				r.settings = fmt.Sprint("&innodb_snapshot_isolation=1&autocommit=", autocommit)
				tx, err := r.openPool(r.newRelay().Addr).BeginTx(r.Context(), nil)
				r.NoError(err)
				defer tx.Rollback()
				var balance int
				r.NoError(tx.QueryRowContext(r.WaitContext(), r.in("SELECT balance FROM holdfast_account WHERE id = 'a'")).Scan(&balance))
				r.execSQL("UPDATE holdfast_account SET balance = 7 WHERE id = 'a'")
				if err := r.lockRow(tx, "holdfast_account", "a"); !errors.Is(err, holdfast.ErrHeld) {
					r.Errorf("LockRow() = %v, want ErrHeld", err)
				}
				if err := r.lockRow(tx, "holdfast_account", "b"); !errors.Is(err, sql.ErrTxDone) {
					r.Errorf("LockRow() of the next row = %v, want ErrTxDone", err)
				}
			})
		})
	}
}

// LockRow rejects a name if FOR UPDATE would lock none of its rows.
func TestLockRowLocksOrFails(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		r.createAccounts()
		tables := []string{"holdfast_account; SELECT", "a.b.c", ""}
		if r.dialect == sqllock.MySQL {
			r.execSQL("CREATE TABLE holdfast_old (id varchar(9)) ENGINE = MyISAM")
			tables = append(tables, "holdfast_nothing", "holdfast_plain", "holdfast_counted", "holdfast_old", "test.holdfast_old", "information_schema.TABLES")
			tx := r.beginTx()
			r.NoError(r.lockRow(tx, "test.holdfast_account", "a"))
			for _, text := range []string{"CREATE TEMPORARY TABLE holdfast_account (id varchar(9)) ENGINE = InnoDB", "INSERT INTO holdfast_account VALUES ('a')"} {
				_, err := tx.ExecContext(r.WaitContext(), r.in(text))
				r.NoError(err)
			}
			if err := r.lockRow(tx, "holdfast_account", "a"); !errors.Is(err, holdfast.ErrInvalid) {
				r.Errorf("a temporary table that shadows another: %v, want ErrInvalid", err)
			}
			_, err := tx.ExecContext(r.WaitContext(), r.in("DROP TEMPORARY TABLE holdfast_account"))
			r.NoError(err)
			r.NoError(tx.Rollback())
		}
		for _, table := range tables {
			tx := r.beginTx()
			if err := r.lockRow(tx, table, "a"); !errors.Is(err, holdfast.ErrInvalid) {
				r.Errorf("%q: %v, want ErrInvalid", table, err)
			}
			r.NoError(tx.Rollback())
		}
		tx := r.beginTx()
		if err := sqllock.LockRow(r.WaitContext(), tx, 0, "account", "id", "a"); !errors.Is(err, holdfast.ErrInvalid) {
			r.Errorf("missing dialect: %v, want ErrInvalid", err)
		}
		if err := sqllock.LockRow(r.WaitContext(), tx, r.dialect, "account", "id = 'b' OR id", "a"); !errors.Is(err, holdfast.ErrInvalid) {
			r.Errorf("missing column: %v, want ErrInvalid", err)
		}
	})
}

// Each writer locks, reads and writes a row in one transaction.
func TestLockRowPreventsLostUpdates(t *testing.T) {
	gates.Nightly(t, "rowlock")
	const writers, length = 4, 30 * time.Second
	forEach(t, servers, func(r *rig) {
		var version string
		r.NoError(r.db.QueryRowContext(r.WaitContext(), "SELECT version()").Scan(&version))
		r.createAccounts()
		table, increments := r.in("holdfast_account"), make([]int64, writers)
		end := time.Now().Add(length)
		var all sync.WaitGroup
		for i := range increments {
			all.Go(func() {
				for time.Now().Before(end) {
					switch err := incrementAccount(r, table); {
					case err == nil:
						increments[i]++
					case errors.Is(err, holdfast.ErrHeld):
						time.Sleep(time.Millisecond)
					default:
						r.Errorf("writer %d: %v", i, err)
						return
					}
				}
			})
		}
		all.Wait()
		var confirmed, balance int64
		for _, n := range increments {
			confirmed += n
		}
		r.NoError(r.db.QueryRowContext(r.WaitContext(), "SELECT balance FROM "+table+" WHERE id = 'a'").Scan(&balance))
		if lost := confirmed + 1 - balance; lost != 0 || confirmed == 0 {
			r.Errorf("%d of %d updates were lost", lost, confirmed)
		}
		r.Logf("%s: %d updates by %d writers, %d lost", version, confirmed, writers, confirmed+1-balance)
	})
}

// incrementAccount adds 1 to an account by a read and a write.
func incrementAccount(r *rig, table string) error {
	tx, err := r.db.BeginTx(r.Context(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := r.lockRow(tx, "holdfast_account", "a"); err != nil {
		return err
	}
	var balance int64
	if err := tx.QueryRowContext(r.Context(), "SELECT balance FROM "+table+" WHERE id = 'a'").Scan(&balance); err != nil {
		return err
	}
	if _, err := tx.ExecContext(r.Context(), fmt.Sprintf("UPDATE %s SET balance = %d WHERE id = 'a'", table, balance+1)); err != nil {
		return err
	}
	return tx.Commit()
}
