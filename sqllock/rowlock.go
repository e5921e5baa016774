package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// RowLock locks the rows of a table whose column has that value until tx ends. That is a lock without any lock service, for work that
// fits into one transaction. No tables of this package are needed. Read the rows behind it, as what was read before may be out of date.
//
// It writes the query itself, because FOR UPDATE behind a query of any kind may lock nothing, without an error. table may have a
// schema, or on MySQL a database, before it; both names are plain, as they go into the text.
//
// On PostgreSQL, MySQL and MariaDB 10.3 or newer others may go on with other rows. On MySQL and MariaDB a column without an index
// locks them all. SQLite locks no rows: there tx is the one writer of the whole file from then on, and before that waits for
// another, as long as busy_timeout says.
//
// Errors: ErrHeld when another transaction has the rows locked, or has changed them since this one began: roll back and begin
// anew. sql.ErrNoRows when there are none. ErrInvalid for a table whose rows it cannot lock: a view, a foreign table, one that is
// temporary, or on MySQL of another engine than InnoDB; it was not touched then. After any other error, roll back.
func RowLock(ctx context.Context, tx *sql.Tx, dialect Dialect, table, column string, value any) error {
	if err := rowLock(ctx, tx, dialect, table, column, value); err != nil {
		return fmt.Errorf("sqllock: row of %s: %w", table, err)
	}
	return nil
}

func rowLock(ctx context.Context, tx *sql.Tx, dialect Dialect, table, column string, value any) error {
	s, ok := dialects[dialect]
	switch {
	case !ok:
		return fmt.Errorf("%w: unknown dialect %d; give PostgreSQL, MySQL or SQLite", driver.ErrInvalid, dialect)
	case !named().MatchString(table) || !named().MatchString(column) || strings.Contains(column, "."):
		return fmt.Errorf("%w: table %q, column %q: give names of letters, digits and _, the table with a schema and a dot before it if need be",
			driver.ErrInvalid, table, column)
	}
	if s.lockable != "" {
		look := s.say(s.lockable)
		var locks bool
		if err := tx.QueryRowContext(ctx, look.text, look.with([]any{table})...).Scan(&locks); err != nil {
			return err
		}
		if !locks {
			return fmt.Errorf("%w: it is not there, or not a table whose rows %s locks; name that from which it reads", driver.ErrInvalid, s.name)
		}
	}
	if s.seize != "" {
		if _, err := tx.ExecContext(ctx, s.seize+table+" WHERE 0"); err != nil {
			return s.held(err)
		}
	}
	lock := s.say("SELECT 1 FROM " + table + " WHERE " + column + " = $1" + s.forUpdate)
	rows, err := tx.QueryContext(ctx, lock.text, lock.with([]any{value})...)
	if err != nil {
		return s.held(err)
	}
	defer rows.Close()
	found := false
	for rows.Next() { // each is locked when it is read
		found = true
	}
	if err := rows.Err(); err != nil || found {
		return s.held(err)
	}
	return sql.ErrNoRows
}

// held is err as that of a row that another transaction has, where it is.
func (s speech) held(err error) error {
	if err == nil {
		return nil
	}
	if k := s.kind(err); k == locked || k == yields {
		return fmt.Errorf("%w: %w", &driver.HeldError{}, err)
	}
	return err
}

// named is a name that needs no quotes, perhaps in a schema.
var named = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)
})

// What finds whether the table with that name keeps its rows itself, and all that is below it, so that FOR UPDATE locks them.
const (
	lockablePostgreSQL = `WITH RECURSIVE part AS (SELECT to_regclass($1)::oid AS id UNION SELECT inhrelid FROM pg_inherits JOIN part ON inhparent = id)
		SELECT bool_and(relkind IS NOT NULL AND relkind IN ('r', 'p')) FROM part LEFT JOIN pg_class ON oid = id`
	lockableMySQL = `SELECT COUNT(*) = 1 FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE' AND ENGINE = 'InnoDB'
		AND TABLE_NAME = SUBSTRING_INDEX($1, '.', -1) AND TABLE_SCHEMA = IF($1 LIKE '%.%', SUBSTRING_INDEX($1, '.', 1), DATABASE())`
)
