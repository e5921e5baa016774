package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// LockRow locks the rows of table whose column has value, until tx ends: a lock without a lock service, for work
// that fits into one transaction. It needs no tables of this package. Call it first in the transaction, and read
// the rows afterwards: rows that were read before may be out of date. If the transaction reads a snapshot (MySQL
// and MariaDB at REPEATABLE READ, their default), a read before the call makes all later reads out of date too.
//
// LockRow writes the query itself, because FOR UPDATE in an arbitrary query may lock nothing, without an error.
// table may have a schema, or on MySQL a database, before it. Both names go into the text of the query, so they
// must be plain.
//
// On MySQL and MariaDB 10.3 or newer, other transactions can use other rows, unless the column has no index: then
// all rows are locked. SQLite locks no rows: there tx becomes the only writer of the whole file, and waits for
// another writer for as long as busy_timeout allows.
//
// Errors: ErrHeld if another transaction has locked the rows, or has changed them since tx began: roll back and
// begin again. sql.ErrNoRows if there is no such row. ErrInvalid for a table whose rows cannot be locked: a view,
// a foreign or temporary table, or on MySQL a table of another engine than InnoDB; the table is untouched then.
// sql.ErrTxDone if the database has rolled the transaction back, as MySQL, MariaDB and SQLite do after some errors
// of earlier statements. After any other error, roll back.
//
// If the database rolls the whole transaction back because of this lock (a deadlock, or innodb_snapshot_isolation
// of MariaDB 11.6 and newer), LockRow ends tx, so that no later statement runs outside a transaction.
func LockRow(ctx context.Context, tx *sql.Tx, dialect Dialect, table, column string, value any) error {
	if err := rowLock(ctx, tx, dialect, table, column, value); err != nil {
		return fmt.Errorf("sqllock: row of %s: %w", table, err)
	}
	return nil
}

func rowLock(ctx context.Context, tx *sql.Tx, dialect Dialect, table, column string, value any) error {
	s, ok := dialects[dialect]
	switch {
	case !ok:
		return fmt.Errorf("%w: unknown dialect %d; give MySQL or SQLite", driver.ErrInvalid, dialect)
	case !plainTableName().MatchString(table) || !plainTableName().MatchString(column) || strings.Contains(column, "."):
		return fmt.Errorf("%w: table %q, column %q: give names of letters, digits and _, the table with a schema and a dot before it if need be",
			driver.ErrInvalid, table, column)
	}
	if s.locksRows != nil {
		locks, err := s.locksRows(ctx, s, tx, table)
		switch {
		case err != nil:
			return err
		case !locks:
			return fmt.Errorf("%w: it is not there, or not a table whose rows %s locks; name that from which it reads", driver.ErrInvalid, s.name)
		}
	}
	if s.mark != "" {
		if _, err := tx.ExecContext(ctx, s.mark); err != nil {
			return err
		}
	}
	err := s.lockRows(ctx, tx, table, column, value)
	open, failed := s.transactionOpen(ctx, tx)
	switch {
	case !open:
		tx.Rollback() // the server has rolled back; this makes later statements of tx fail
		if err == nil || errors.Is(err, sql.ErrNoRows) {
			err = fmt.Errorf("%w: the database has rolled it back after an error of an earlier statement; begin again", sql.ErrTxDone)
		}
	case err == nil:
		err = failed
	}
	return err
}

// lockRows locks the rows.
func (s dialectRules) lockRows(ctx context.Context, tx *sql.Tx, table, column string, value any) error {
	if s.seize != "" {
		if _, err := tx.ExecContext(ctx, s.seize+table+" WHERE 0"); err != nil {
			return s.heldError(err)
		}
	}
	lock := s.translate("SELECT 1 FROM " + table + " WHERE " + column + " = $1" + s.forUpdate)
	rows, err := tx.QueryContext(ctx, lock.text, lock.orderArgs([]any{value})...)
	if err != nil {
		return s.heldError(err)
	}
	defer rows.Close()
	found := false
	for rows.Next() { // reading a row locks it
		found = true
	}
	if err := rows.Err(); err != nil || found {
		return s.heldError(err)
	}
	return sql.ErrNoRows
}

// transactionOpen reports whether the database still has the transaction. Without it each statement commits by
// itself and its locks end with it.
func (s dialectRules) transactionOpen(ctx context.Context, tx *sql.Tx) (bool, error) {
	if s.check == "" { // any further statement of an ended transaction fails anyway
		return true, nil
	}
	_, err := tx.ExecContext(ctx, s.check)
	if s.name == "SQLite" { // BEGIN fails inside a transaction
		return err != nil, nil
	}
	return err == nil || s.kindOf(err) != unmarked, err
}

// heldError returns err, wrapped in ErrHeld if another transaction has the row.
func (s dialectRules) heldError(err error) error {
	if err == nil {
		return nil
	}
	if s.isHeld(err) {
		return fmt.Errorf("%w: %w", &driver.HeldError{}, err)
	}
	return err
}

// plainTableName matches a table name that needs no quotes, with or without a schema.
var plainTableName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)
})

// engineMySQL reads the engine of a table if SHOW CREATE TABLE leaves it out, as on MariaDB with some values
// of sql_mode.
const engineMySQL = `SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE' AND ENGINE IS NOT NULL
	AND TABLE_NAME = SUBSTRING_INDEX($1, '.', -1) AND TABLE_SCHEMA = IF($1 LIKE '%.%', SUBSTRING_INDEX($1, '.', 1), DATABASE())`

// tableOptions matches the end of SHOW CREATE TABLE, where names and comments have no line breaks.
var tableOptions = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^\).* ENGINE=(\w+)`) })

// locksRowsMySQL reads SHOW CREATE TABLE, because that opens no snapshot. On MySQL any query of
// information_schema opens one, and reads under the lock would then show rows from before the lock.
func locksRowsMySQL(ctx context.Context, s dialectRules, tx *sql.Tx, table string) (locks bool, err error) {
	rows, err := tx.QueryContext(ctx, "SHOW CREATE TABLE "+table)
	if err != nil {
		if k := s.kindOf(err); k == lacks || k == nameless {
			return false, nil
		}
		return false, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil || len(columns) != 2 || !rows.Next() { // a view has four columns
		return false, cmp.Or(err, rows.Err())
	}
	var text string
	if err := rows.Scan(new(string), &text); err != nil {
		return false, err
	}
	if !strings.HasPrefix(text, "CREATE TABLE ") { // a temporary table
		return false, nil
	}
	if found := tableOptions().FindStringSubmatch(text); found != nil {
		return found[1] == "InnoDB", nil
	}
	rows.Close() // the connection can take the next statement only then
	look := s.translate(engineMySQL)
	var engine string
	if err := tx.QueryRowContext(ctx, look.text, look.orderArgs([]any{table})...).Scan(&engine); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, err
	}
	return engine == "InnoDB", nil
}
