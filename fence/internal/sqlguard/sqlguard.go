// Package sqlguard is shared by packages sqlfence and pgxfence: the table of tokens, and the statements that
// check and raise them.
package sqlguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
)

// Dialect is the SQL dialect of a database.
type Dialect int

// The dialects. There is no default: a wrong guess would show in production only.
const (
	PostgreSQL Dialect = iota + 1
	MySQL              // and MariaDB
	SQLite             // 3.24 or newer
)

// DefaultTable is the name of the table unless the program sets another.
const DefaultTable = "holdfast_fence"

// Table holds the statements for the table of one database.
type Table struct {
	pkg                         string // prefix of each error
	name                        string // name of the table
	Create, raise, look, forget string
	mark, check                 string // statements before and after a claim, which fail depending on whether a transaction is open
	nests                       bool   // check fails if a transaction is open
	show                        string // returns the statement that created the table; empty: all tables of the database have transactions
}

// Querier runs one statement, in a transaction, on a connection or on a pool.
type Querier interface {
	Exec(ctx context.Context, query string, args ...any) error
	// Row returns one row. If there is none, its Scan returns an error that matches sql.ErrNoRows.
	Row(ctx context.Context, query string, args ...any) interface{ Scan(into ...any) error }
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

// The statements of each dialect; %[1]s is the table. raise does not change a row with a higher token, but
// locks it until the transaction ends. look reads the present row, whatever the transaction's snapshot.
var statements = map[Dialect]Table{
	PostgreSQL: {
		Create: `CREATE TABLE IF NOT EXISTS %[1]s (name text PRIMARY KEY, token bigint NOT NULL, owner text NOT NULL)`,
		// A repeated claim changes the row too. At REPEATABLE READ only a change makes the server reject a
		// transaction that waited for this one and has an older snapshot.
		raise: `INSERT INTO %[1]s AS f (name, token, owner) VALUES ($1, $2, $3)
			ON CONFLICT (name) DO UPDATE SET token = excluded.token, owner = excluded.owner
				WHERE f.token < excluded.token OR f.token = excluded.token AND f.owner = excluded.owner`,
		look:   `SELECT token, owner FROM %[1]s WHERE name = $1 FOR UPDATE`,
		forget: `DELETE FROM %[1]s WHERE name = $1`,
	},
	MySQL: {
		Create: `CREATE TABLE IF NOT EXISTS %[1]s (
			name varbinary(512) PRIMARY KEY, token bigint NOT NULL, owner varbinary(255) NOT NULL) ENGINE = InnoDB`,
		// Assignments take effect from left to right, so owner must come first. Each claim adds or removes a
		// zero byte after the owner, and so changes the row: a database that locks no rows and merges the
		// changes of two transactions (Dolt) then rejects the second.
		raise: `INSERT INTO %[1]s (name, token, owner) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE owner = CASE
				WHEN token < VALUES(token) OR token = VALUES(token) AND owner = CONCAT(VALUES(owner), X'00') THEN VALUES(owner)
				WHEN token = VALUES(token) AND owner = VALUES(owner) THEN CONCAT(owner, X'00')
				ELSE owner END, token = GREATEST(token, VALUES(token))`,
		look:   `SELECT token, TRIM(TRAILING X'00' FROM owner) FROM %[1]s WHERE name = ? FOR UPDATE`,
		forget: `DELETE FROM %[1]s WHERE name = ?`,
		mark:   `SAVEPOINT holdfast_claim`,
		check:  `RELEASE SAVEPOINT holdfast_claim`,
		show:   `SHOW CREATE TABLE %[1]s`,
	},
	SQLite: {
		Create: `CREATE TABLE IF NOT EXISTS %[1]s (name text PRIMARY KEY, token integer NOT NULL, owner text NOT NULL) WITHOUT ROWID`,
		raise: `INSERT INTO %[1]s (name, token, owner) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET token = excluded.token, owner = excluded.owner WHERE token < excluded.token`,
		look:   `SELECT token, owner FROM %[1]s WHERE name = ?`,
		forget: `DELETE FROM %[1]s WHERE name = ?`,
		check:  `BEGIN`,
		nests:  true,
	},
}

// New returns the statements for the given table; "" stands for the default name. pkg is the prefix of each
// error.
func New(pkg string, dialect Dialect, table string) (Table, error) {
	if table == "" {
		table = DefaultTable
	}
	s, ok := statements[dialect]
	if !ok {
		return Table{}, fmt.Errorf("%s: unknown dialect %d; give PostgreSQL, MySQL or SQLite", pkg, dialect)
	}
	if !tableName.MatchString(table) {
		return Table{}, fmt.Errorf("%s: table %q: give a plain name, with a schema if need be", pkg, table)
	}
	s.pkg, s.name = pkg, table
	for _, text := range []*string{&s.Create, &s.raise, &s.look, &s.forget, &s.show} {
		if *text != "" {
			*text = fmt.Sprintf(*text, table)
		}
	}
	return s, nil
}

// CreateTable creates the table unless it exists.
func (t *Table) CreateTable(ctx context.Context, q Querier) error {
	err := q.Exec(ctx, t.Create)
	if err != nil && ctx.Err() == nil {
		// On PostgreSQL two programs that create the same table at once collide (SQLSTATE 23505), even with IF
		// NOT EXISTS. The second attempt finds the table.
		err = q.Exec(ctx, t.Create)
	}
	if err != nil {
		return fmt.Errorf("%s: create the table: %w", t.pkg, t.explainError(err))
	}
	return t.CheckEngine(ctx, q)
}

// tableEngine finds the engine in the text of SHOW CREATE TABLE, where names and comments contain no line
// breaks.
var tableEngine = regexp.MustCompile(`(?m)^\).* ENGINE=(\w+)`)

// CheckEngine returns an error if the table has no transactions: a claim would lock nothing, and a rollback
// would not undo writes. MySQL and MariaDB create such a table if a setting names another engine than InnoDB.
// It opens no snapshot if the engine is InnoDB.
func (t *Table) CheckEngine(ctx context.Context, q Querier) error {
	if t.show == "" {
		return nil
	}
	var name, text, transactions string
	if err := q.Row(ctx, t.show).Scan(&name, &text); err != nil {
		return fmt.Errorf("%s: look at the table: %w", t.pkg, t.explainError(err))
	}
	found := tableEngine.FindStringSubmatch(text)
	if found == nil || found[1] == "InnoDB" {
		return nil
	}
	if err := q.Row(ctx, "SELECT transactions FROM information_schema.ENGINES WHERE engine = ?", found[1]).Scan(&transactions); err != nil {
		return fmt.Errorf("%s: look at the engine %s of the table: %w", t.pkg, found[1], err)
	}
	if transactions != "YES" {
		return fmt.Errorf("%s: the table %s is of the engine %s, which has no transactions; ALTER TABLE %s ENGINE = InnoDB", t.pkg, name, found[1], name)
	}
	return nil
}

// Claim records a token. For a stale token it returns a *fence.StaleError, and for an empty guard or owner
// holdfast.ErrInvalid.
func (t *Table) Claim(ctx context.Context, q Querier, guard string, token holdfast.Token, owner string) error {
	if token <= 0 {
		return &fence.StaleError{Key: guard, Token: token}
	}
	switch {
	case guard == "":
		return t.WrapError(guard, fmt.Errorf("%w: the guard is empty; give a name, such as the key of the lock", holdfast.ErrInvalid))
	case owner == "":
		return t.WrapError(guard, fmt.Errorf("%w: the owner is empty; give Lease.Owner, which tells leases with equal tokens apart", holdfast.ErrInvalid))
	}
	if err := q.Exec(ctx, t.raise, guard, int64(token), owner); err != nil {
		return t.WrapError(guard, err)
	}
	highest, holder, err := t.highestToken(ctx, q, guard)
	switch {
	case err != nil:
		return err
	case highest != token || holder != owner:
		return &fence.StaleError{Key: guard, Token: token, Highest: highest}
	}
	return nil
}

// ClaimIn is Claim in a transaction. The error matches sql.ErrTxDone if the database has rolled the
// transaction back, as MySQL, MariaDB and SQLite do after some errors. The claim was then recorded outside of
// the transaction, and does not protect what the program writes next.
func (t *Table) ClaimIn(ctx context.Context, q Querier, guard string, token holdfast.Token, owner string) error {
	if t.mark != "" {
		if err := q.Exec(ctx, t.mark); err != nil {
			return t.WrapError(guard, err)
		}
	}
	if err := t.Claim(ctx, q, guard, token, owner); err != nil || t.check == "" {
		return err
	}
	if err := q.Exec(ctx, t.check); (err != nil) != t.nests {
		err = errors.Join(sql.ErrTxDone, err)
		return t.WrapError(guard, fmt.Errorf("%w: the database has rolled it back after an error of an earlier statement; begin again", err))
	}
	return nil
}

// Highest returns the highest token seen for guard and the owner of its lease, or 0 and "".
func (t *Table) Highest(ctx context.Context, q Querier, guard string) (token holdfast.Token, owner string, err error) {
	token, owner, err = t.highestToken(ctx, q, guard)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, "", nil
	}
	return token, owner, err
}

func (t *Table) highestToken(ctx context.Context, q Querier, guard string) (token holdfast.Token, owner string, err error) {
	if err = q.Row(ctx, t.look, guard).Scan(&token, &owner); err != nil {
		err = t.WrapError(guard, err)
	}
	return token, owner, err
}

// Forget deletes the row of guard.
func (t *Table) Forget(ctx context.Context, q Querier, guard string) error {
	if err := q.Exec(ctx, t.forget, guard); err != nil {
		return t.WrapError(guard, err)
	}
	return nil
}

// CheckApplied returns a *fence.StaleError if a conditional write has found no row.
func CheckApplied(guard string, token holdfast.Token, rows int64) error {
	if rows == 0 {
		return &fence.StaleError{Key: guard, Token: token}
	}
	return nil
}

// WrapError adds the guard to an error, and for a known mistake what to do.
func (t *Table) WrapError(guard string, err error) error {
	return fmt.Errorf("%s: guard %q: %w", t.pkg, guard, t.explainError(err))
}

// explainError adds the fix if the table is missing, or if its statement is of another dialect. It reads the
// text of err, because each database driver has its own error type.
func (t *Table) explainError(err error) error {
	text := strings.ToLower(err.Error())
	_, table, ok := strings.Cut(strings.ToLower(t.name), ".")
	if !ok {
		table = strings.ToLower(t.name)
	}
	switch {
	case strings.Contains(text, table) && (strings.Contains(text, "not exist") || strings.Contains(text, "n't exist") || strings.Contains(text, "no such table")):
		return fmt.Errorf("%w; make the table once with Create, or with the statement of Schema", err)
	case strings.Contains(text, "syntax"):
		return fmt.Errorf("%w; give New the dialect of this database", err)
	}
	return err
}
