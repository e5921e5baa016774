package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
)

// LockRow runs query, a SELECT of one row of one table, with FOR UPDATE NOWAIT appended. The row is locked until
// tx ends: a lock without a lock service, for work that fits into one transaction. LockRow blocks for two
// answers of the server.
//
// PostgreSQL accepts FOR UPDATE after a WITH, a function, a subquery and some views, and locks none of the rows
// that they return. So LockRow rejects a query that reads from anything but one table, with its partitions, or
// that contains a second SELECT. Run the second SELECT before, and pass its result as an argument. Rows that are
// read by a function in the query are not locked.
//
// At REPEATABLE READ and SERIALIZABLE a transaction reads the state at its first statement: even after it has
// locked the row it does not see the last writes of other holders. LockRow rejects these levels.
//
// As with QueryRow, Scan returns the error: ErrInvalid for a rejected query or level, after which tx can still
// be used; pgx.ErrTxClosed if a statement in tx was COMMIT or ROLLBACK; ErrHeld if another transaction has locked
// the row; pgx.ErrNoRows if there is no such row. After ErrHeld, as after any error of the server, roll back.
func LockRow(ctx context.Context, tx pgx.Tx, query string, args ...any) pgx.Row {
	query, args, err := rewriteQuery(ctx, tx, query, args)
	if err == nil {
		err = checkLockable(ctx, tx, query)
	}
	if err != nil {
		return rowLock{err: fmt.Errorf("postgres: row: %w", err)}
	}
	return rowLock{row: tx.QueryRow(ctx, query+"\nFOR UPDATE NOWAIT", args...)}
}

type rowLock struct {
	row pgx.Row
	err error // of a query that was not sent
}

// Scan implements pgx.Row.
func (r rowLock) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	err := r.row.Scan(dest...)
	if errorCode(err) == lockNotAvailable {
		return fmt.Errorf("postgres: row: %w: %w", &driver.HeldError{}, err)
	}
	return err
}

// rewriteQuery applies a pgx.QueryRewriter among args, such as pgx.NamedArgs, so that LockRow checks the query
// that is sent.
func rewriteQuery(ctx context.Context, tx pgx.Tx, query string, args []any) (string, []any, error) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		case pgx.QueryRewriter:
			text, rest, err := arg.RewriteQuery(ctx, tx.Conn(), query, args[i+1:])
			return text, append(slices.Clone(args[:i]), rest...), err
		default:
			return query, args, nil
		}
	}
	return query, args, nil
}

// tableKindSQL returns the isolation level. It also finds, among a relation and all its children, what is not a
// table of this database with rows of its own.
const tableKindSQL = `WITH RECURSIVE part AS (SELECT to_regclass($1::text)::oid AS id UNION SELECT inhrelid FROM pg_inherits JOIN part ON inhparent = id)
	SELECT current_setting('transaction_isolation'), name, kind FROM (SELECT) one LEFT JOIN (
		SELECT coalesce(relname, $1::text) AS name, CASE relkind WHEN 'v' THEN 'a view' WHEN 'm' THEN 'a materialized view'
			WHEN 'f' THEN 'a foreign table' ELSE 'no table' END AS kind
		FROM part LEFT JOIN pg_class ON oid = id WHERE relkind IS NULL OR relkind NOT IN ('r', 'p')) other ON true LIMIT 1`

// checkLockable returns nil if FOR UPDATE behind query locks each row that it returns.
func checkLockable(ctx context.Context, tx pgx.Tx, query string) error {
	table, err := tableOf(query)
	if err != nil {
		return err
	}
	var level string
	var name, kind *string // nil: a table
	err = tx.QueryRow(ctx, tableKindSQL, pgx.QueryExecModeExec, table).Scan(&level, &name, &kind)
	if err == nil {
		err = checkTxOpen(tx)
	}
	switch {
	case err != nil:
		return err
	case level != "read committed":
		return fmt.Errorf("%w: at %s the transaction goes on to read what was there before it had the lock; begin it at READ COMMITTED", driver.ErrInvalid, level)
	case name == nil:
		return nil
	}
	return fmt.Errorf("%w: %s is %s, whose rows FOR UPDATE does not lock for sure; read from the table itself", driver.ErrInvalid, *name, *kind)
}

// checkTxOpen returns an error if the server has ended the transaction. Without one, each statement commits by
// itself and its row locks end with it. Call it after a statement that has succeeded.
func checkTxOpen(tx pgx.Tx) error {
	if conn := tx.Conn(); conn != nil && conn.PgConn().TxStatus() == 'I' { // nil: tx is a fake of a test
		return fmt.Errorf("%w: something in it has sent COMMIT or ROLLBACK, so nothing stays locked; begin another", pgx.ErrTxClosed)
	}
	return nil
}

// queryEnds are the words that may follow the table and its alias; empty: the end of the query.
var queryEnds = []string{"", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR"}

// tableOf returns the one table that query reads from, as the query names it. It returns an error if FOR
// UPDATE behind the query might lock none of its rows.
func tableOf(query string) (string, error) {
	all, err := splitLexemes(query)
	refuse := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("%w: the query "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	switch {
	case err != nil:
		return refuse("%w", err)
	case len(all) == 0 || all[0].word != "SELECT":
		return refuse("can lock no row for sure; begin it with SELECT")
	}
	from, depth := 0, 0
	for i, l := range all {
		switch {
		case l.text == "(":
			depth++
		case l.text == ")":
			depth--
		case l.text == ";":
			return refuse("has a semicolon; give one statement without it")
		case l.word == "TABLE", l.word == "SELECT" && i > 0:
			return refuse("has a second %s, whose rows it would not lock; give what that finds as an argument", l.word)
		case l.word == "INTO":
			return refuse("makes a table by INTO; leave that out")
		case l.word == "FROM" && from == 0 && depth == 0 && !slices.Contains([]string{"DISTINCT", "AS", "."}, cmp.Or(all[i-1].word, all[i-1].text)):
			from = i
		}
	}
	if from == 0 {
		return refuse("has no FROM, and so no row to lock")
	}
	at := func(i int) lexeme { return append(all, lexeme{}, lexeme{})[min(i, len(all))] }
	i := from + 1
	if at(i).word == "ONLY" {
		i++
	}
	var table strings.Builder
	table.WriteString(at(i).text)
	named := at(i).name
	for i++; at(i).text == "." && named; i += 2 {
		table.WriteString("." + at(i+1).text)
		named = at(i + 1).name
	}
	if at(i).word == "AS" {
		i++
	}
	if at(i).name && !slices.Contains(queryEnds, at(i).word) {
		i++ // alias of the table
	}
	if !named || !slices.Contains(queryEnds, at(i).word) || at(i).word == "" && at(i).text != "" {
		return refuse("reads from more than a table, near %q; name one table behind FROM, and nothing else", at(i).text)
	}
	return table.String(), nil
}

// lexeme is a token of the SQL parser: a word, a quoted name, a string, a number or any other character.
type lexeme struct {
	text string // as in the query
	word string // in upper case; empty: not a word
	name bool   // can name a table
}

// errOpen rejects a query whose end the server may see elsewhere. With one setting of the server, a backslash
// hides the end of a string.
var errOpen = errors.New("has a comment, string or name that does not end, or a string with a backslash; give strings as arguments")

var (
	space  = regexp.MustCompile(`^(?:[ \t\n\r\f\v]+|--[^\n\r]*)`)
	word   = regexp.MustCompile(`^[A-Za-z_\x80-\x{10FFFF}][A-Za-z0-9_$\x80-\x{10FFFF}]*`)
	quoted = regexp.MustCompile(`^"(?:[^"]|"")+"`)
	text   = regexp.MustCompile(`^'(?:[^'\\]|'')*'`)
	dollar = regexp.MustCompile(`^\$(?:[A-Za-z_\x80-\x{10FFFF}][A-Za-z0-9_\x80-\x{10FFFF}]*)?\$`)
)

// splitLexemes returns the lexemes of a query, without spaces and comments.
func splitLexemes(query string) (all []lexeme, err error) {
	if !utf8.ValidString(query) {
		return nil, errors.New("is no UTF-8")
	}
	for rest := query; rest != ""; {
		var l lexeme
		size := 0
		switch c := rest[0]; {
		case space.MatchString(rest):
			rest = rest[len(space.FindString(rest)):]
			continue
		case strings.HasPrefix(rest, "/*"):
			if size = commentLength(rest); size == 0 {
				return nil, errOpen
			}
			rest = rest[size:]
			continue
		case word.MatchString(rest):
			l.text, l.name = word.FindString(rest), true
			l.word = strings.ToUpper(l.text)
		case c == '"':
			l.text, l.name = quoted.FindString(rest), true
		case c == '\'':
			l.text = text.FindString(rest)
		case dollar.MatchString(rest):
			tag := dollar.FindString(rest)
			if size = strings.Index(rest[len(tag):], tag); size >= 0 {
				l.text = rest[:size+2*len(tag)]
			}
		default:
			_, size = utf8.DecodeRuneInString(rest)
			l.text = rest[:size]
		}
		if l.text == "" {
			return nil, errOpen
		}
		all = append(all, l)
		rest = rest[len(l.text):]
	}
	return all, nil
}

// commentLength returns the length of the comment at the start of query, with any nested comments; 0: it does
// not end.
func commentLength(query string) int {
	depth := 0
	for i := 0; i+1 < len(query); i++ {
		switch query[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			return i + 1
		}
	}
	return 0
}
