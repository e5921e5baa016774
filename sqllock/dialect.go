package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// Dialect is the SQL that a database speaks.
type Dialect int

// There is no default dialect: a wrong guess would show in production only.
const (
	MySQL  Dialect = iota + 1 // 8 or newer, and MariaDB 10.2 or newer
	SQLite                    // 3.35 or newer
)

var (
	//go:embed schema/mysql.sql
	mysqlSQL string
	//go:embed schema/sqlite.sql
	sqliteSQL string
)

// dialectRules holds the differences between dialects.
type dialectRules struct {
	name    string
	schema  string
	now     string // SQL of the server's clock in µs; empty: this machine's clock is an argument
	anew    string // clause of an INSERT that ignores a row that exists
	session string // query with a row if sessions do not commit each statement; empty: they all do

	// noted and returned are two ways to get the token of an acquire without a read. If both are empty, each lock
	// is read first.
	noted    string // expression that returns its argument, {x}, as LastInsertId
	returned string // clause that returns the token as the only row

	pollTiming

	// For LockRow.
	// locksRows reports whether rows of the table can be locked; nil: they can.
	locksRows   func(ctx context.Context, s dialectRules, tx *sql.Tx, table string) (bool, error)
	seize       string // makes a transaction the only writer
	forUpdate   string // locks the rows of a SELECT
	mark, check string // run before and after: the error of check shows whether the transaction is open
}

// pollTiming are the poll intervals for a kind of database.
type pollTiming struct {
	poll, hasty time.Duration // of the first waiter: at first, and once the lock was held for long
	slowest     time.Duration // of a waiter with many before it
	blocked     time.Duration // of a waiter before the turnstile
	room        int           // number of concurrent statements if the pool has no bound
}

// remoteTiming has the intervals for a server over a network.
var remoteTiming = pollTiming{poll: 20 * time.Millisecond, hasty: 200 * time.Millisecond, slowest: 500 * time.Millisecond, blocked: blockedLook, room: 8}

var dialects = map[Dialect]dialectRules{
	// UNIX_TIMESTAMP depends on the time zone of the session and is ambiguous for an hour each year.
	MySQL: {
		name: "MySQL", schema: mysqlSQL, now: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
		session: "SELECT 1 FROM DUAL WHERE @@autocommit = 0", noted: "LAST_INSERT_ID({x})",
		pollTiming: remoteTiming, locksRows: locksRowsMySQL, forUpdate: " FOR UPDATE NOWAIT",
		mark: "SAVEPOINT holdfast_row_lock", check: "RELEASE SAVEPOINT holdfast_row_lock",
	},
	// All processes that use one file run on one machine, and so share its clock.
	SQLite: {
		name: "SQLite", schema: sqliteSQL, anew: " ON CONFLICT DO NOTHING", seize: "DELETE FROM ", check: "BEGIN",
		pollTiming: pollTiming{poll: 5 * time.Millisecond, hasty: 50 * time.Millisecond, slowest: 500 * time.Millisecond, room: 1},
	},
}

// statement is the text of a statement and the order of its arguments.
type statement struct {
	text  string
	order []int // number of the argument, from 1; 0: the clock
	write bool
}

// slot matches a placeholder for an argument or the clock. It is compiled at first use, because the command
// links many drivers and runs one.
var slot = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$(\d+)|\{now\}`) })

// translate converts a text with $1, $2 and {now} into the dialect.
func (s dialectRules) translate(text string) (out statement) {
	out.write = !strings.HasPrefix(text, "SELECT")
	out.text = slot().ReplaceAllStringFunc(text, func(found string) string {
		number, _ := strconv.Atoi(strings.TrimPrefix(found, "$")) // 0: the clock
		if number == 0 && s.now != "" {
			return s.now
		}
		out.order = append(out.order, number)
		return "?"
	})
	return out
}

// greaterOf returns an expression for the greater of two values.
func (s dialectRules) greaterOf(a, b string) string {
	return "CASE WHEN " + a + " > " + b + " THEN " + a + " ELSE " + b + " END"
}

// orderArgs orders the arguments as the statement expects them.
func (s statement) orderArgs(args []any) []any {
	if s.order == nil {
		return args
	}
	out := make([]any, len(s.order))
	for i, number := range s.order {
		if number == 0 {
			out[i] = time.Now().UnixMicro()
		} else {
			out[i] = args[number-1]
		}
	}
	return out
}

// defaultPrefix is the default prefix of table names.
const defaultPrefix = "holdfast_"

// plainPrefix matches a prefix that needs no quotes.
var plainPrefix = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,39}$`)
})

// tables holds the statements for the tables with one prefix.
type tables struct {
	dialectRules
	prefix string

	read, look, put, insert, freeAlone, stir, join, stay, leave, sweep, list, queue, version statement
	lapsed, drop                                                                             statement // for MySQL: sweep, row by row
	first, take                                                                              statement // empty: not in this dialect
	takeFree                                                                                 statement // for SQLite
	takeInside                                                                               statement // like take, also for a reserved lock
}

// version is the version of the schemas.
const version = 1

func newTables(dialect Dialect, prefix string) (*tables, error) {
	s, ok := dialects[dialect]
	if prefix == "" {
		prefix = defaultPrefix
	}
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: unknown dialect %d; give MySQL or SQLite", driver.ErrInvalid, dialect)
	case !plainPrefix().MatchString(prefix):
		return nil, fmt.Errorf("%w: Prefix %q: give letters, digits and _, at most 40, with a schema and a dot before them if need be", driver.ErrInvalid, prefix)
	}
	t := &tables{dialectRules: s, prefix: prefix}
	for to, text := range map[*statement]string{
		&t.read: readSQL("0"), &t.look: readSQL(waitersSQL), &t.list: listSQL, &t.queue: queueSQL,
		&t.put: `UPDATE holdfast_lock SET stamp = $1, token = $2, owner = $3, holder = $4, since = $5, expires = $6, places = places + $7
			WHERE name = $8 AND stamp = $9`,
		&t.freeAlone: `UPDATE holdfast_lock SET stamp = $1, owner = '', holder = '', since = {now}, expires = {now}, places = places + $2
			WHERE name = $3 AND stamp = $4`,
		&t.insert:  `INSERT INTO holdfast_lock (name, stamp, token, owner, holder, since, expires, places) VALUES ($1, $2, $3, $4, $5, $6, $7, 0)` + s.anew,
		&t.stir:    `UPDATE holdfast_lock SET stamp = $2, places = places + $3 WHERE name = $1`,
		&t.join:    `INSERT INTO holdfast_ticket (name, owner, place, holder, expires) VALUES ($1, $2, $3, $4, $5)` + s.anew,
		&t.stay:    `UPDATE holdfast_ticket SET expires = $3 WHERE name = $1 AND owner = $2`,
		&t.leave:   `DELETE FROM holdfast_ticket WHERE name = $1 AND owner = $2`,
		&t.sweep:   `DELETE FROM holdfast_ticket WHERE expires <= {now}`,
		&t.lapsed:  `SELECT name, owner FROM holdfast_ticket WHERE expires <= {now} LIMIT ` + strconv.Itoa(listPageSize),
		&t.drop:    `DELETE FROM holdfast_ticket WHERE name = $1 AND owner = $2 AND expires <= {now}`,
		&t.version: `SELECT MAX(version) FROM holdfast_version`,
	} {
		*to = s.translate(t.in(text))
	}
	if s.noted != "" || s.returned != "" {
		token := func(expression string) string { return strings.ReplaceAll(cmp.Or(s.noted, "{x}"), "{x}", expression) }
		t.first = s.translate(t.in(`INSERT INTO holdfast_lock (name, stamp, token, owner, holder, since, expires, places)
			VALUES ($1, $2, ` + token("{now}") + `, $3, $4, {now}, {now} + $5, 0)` + s.anew + s.returned))
		take := t.in(`UPDATE holdfast_lock SET stamp = $1, token = ` + token(s.greaterOf("token + {block}", "{now}")) + `, owner = $2, holder = $3,
			since = {now}, expires = {now} + $4 WHERE name = $5 AND owner = '' AND places = $6`)
		t.take = s.translate(take + " AND expires <= {now}" + s.returned)
		t.takeInside = s.translate(take + s.returned)
	}
	if dialect == SQLite {
		t.takeFree = s.translate(t.in(takeFreeSQL))
	}
	return t, nil
}

// in inserts the prefix and the size of a token block into a text. The name of an index has no schema, because
// an index belongs to the schema of its table. In an ON clause of SQLite the table has no schema either.
func (t *tables) in(text string) string {
	schema, bare, found := strings.Cut(t.prefix, ".")
	if !found {
		schema, bare = "", t.prefix
	}
	pairs := []string{
		"{block}", strconv.Itoa(driverkit.Block), "{half}", strconv.FormatInt(stampEnd, 10), "holdfast_ticket_", bare + "ticket_", defaultPrefix, t.prefix,
		"{bare}", bare,
	}
	if schema != "" && t.name == "SQLite" {
		pairs = append([]string{"ON holdfast_ticket ", "ON " + bare + "ticket ", "EXISTS holdfast_ticket_", "EXISTS " + t.prefix + "ticket_"}, pairs...)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// firstSQL returns a column of the first ticket in the queue. It skips the owner's ticket, which the owner
// deletes once it has the lock.
func firstSQL(column string) string {
	return `(SELECT t.` + column + ` FROM holdfast_ticket t WHERE t.name = $1 AND t.expires > {now} AND t.owner <> COALESCE(l.owner, '')
		ORDER BY t.place, t.owner LIMIT 1)`
}

// waitersSQL counts the waiters of a lock.
const waitersSQL = `(SELECT COUNT(*) FROM holdfast_ticket t WHERE t.name = l.name AND t.expires > {now} AND t.owner <> l.owner)`

// readSQL reads all on which decisions about a lock depend. It always returns one row, which has the clock.
func readSQL(waiters string) string {
	return `SELECT o.at, l.stamp, l.token, l.owner, l.holder, l.since, l.expires, l.places, m.place, m.expires,
		` + firstSQL("owner") + `, ` + firstSQL("holder") + `, ` + firstSQL("place") + `,
		EXISTS (SELECT 1 FROM holdfast_ticket d WHERE d.expires <= {now}), ` + waiters + `
		FROM (SELECT {now} AS at) o LEFT JOIN holdfast_lock l ON l.name = $1 LEFT JOIN holdfast_ticket m ON m.name = $1 AND m.owner = $2`
}

// takeFreeSQL takes a lock that is free and has no other waiter, or confirms a hand-over to the owner, as
// claim.nextRow decides these cases. On SQLite no other writer comes between its condition and its change.
const takeFreeSQL = `INSERT INTO holdfast_lock AS l (name, stamp, token, owner, holder, since, expires, places) SELECT $1, $2, $3, $4, $5, $3, $6, 0
	WHERE NOT EXISTS (SELECT 1 FROM holdfast_ticket t WHERE t.name = $1 AND t.expires > $3 AND t.owner <> $4
		AND t.owner <> COALESCE((SELECT o.owner FROM holdfast_lock o WHERE o.name = $1), ''))
	OR EXISTS (SELECT 1 FROM holdfast_lock o WHERE o.name = $1 AND o.owner = $4)
	ON CONFLICT (name) DO UPDATE SET stamp = excluded.stamp, owner = excluded.owner, holder = excluded.holder, expires = excluded.expires,
		token = CASE WHEN l.owner = excluded.owner THEN l.token ELSE MAX(l.token + {block}, excluded.since) END,
		since = CASE WHEN l.owner = excluded.owner THEN l.since ELSE excluded.since END
	WHERE l.owner = excluded.owner OR l.owner = '' OR l.expires <= excluded.since
	RETURNING token, EXISTS (SELECT 1 FROM holdfast_ticket t WHERE t.name = $1 AND t.owner = $4),
		EXISTS (SELECT 1 FROM holdfast_ticket t WHERE t.name = $1 AND t.owner <> $4)`

// listSQL returns a page of locks that are held or waited for, ordered by name, from $1 on and without $2.
var listSQL = `SELECT {now}, l.name, l.token, l.owner, l.holder, l.since, l.expires, ` + waitersSQL + ` FROM holdfast_lock l
	WHERE l.name >= $1 AND l.name <> $2 AND (l.owner <> '' AND l.expires > {now} OR EXISTS (
		SELECT 1 FROM holdfast_ticket t WHERE t.name = l.name AND t.expires > {now} AND t.owner <> l.owner)) ORDER BY l.name LIMIT ` + strconv.Itoa(listPageSize)

// listPageSize is the number of locks per listing statement.
const listPageSize = 500

// queueSQL lists the waiters, in order.
const queueSQL = `SELECT t.owner, t.holder FROM holdfast_ticket t LEFT JOIN holdfast_lock l ON l.name = t.name
	WHERE t.name = $1 AND t.expires > {now} AND t.owner <> COALESCE(l.owner, '') ORDER BY t.place, t.owner LIMIT $2`

// argumentList returns a list of n placeholders, beginning with number first.
func argumentList(first, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("$" + strconv.Itoa(first+i))
	}
	return b.String()
}

// renewStatement returns the renewal of n locks for one TTL. It never shortens a lease, because it may be
// executed after a renewal for a longer TTL. Executed twice, it never restores an old stamp. Each execution
// changes every row that it finds.
func (t *tables) renewStatement(n int) statement {
	returning := ""
	if t.name == "SQLite" {
		returning = " RETURNING " + strings.ReplaceAll(standingSQL, "l.", "{bare}lock.") // RETURNING knows neither aliases nor schemas
	}
	return t.translate(t.in(t.renewSQL() + `name IN (` + argumentList(3, n) + `) AND owner IN (` + argumentList(3+n, n) + `)` + returning))
}

// renewSQL returns the beginning of a statement that renews locks that have not expired, and changes their
// stamps as renewedStamp does. A hint makes the server find rows by name: on a small table MariaDB would
// otherwise read all rows, and wait for the row of another lock.
func (t *tables) renewSQL() string {
	hint := ""
	if t.name == "MySQL" {
		hint = "FORCE INDEX (PRIMARY) "
	}
	return `UPDATE holdfast_lock ` + hint + `SET stamp = CASE WHEN stamp < {half} THEN stamp ELSE stamp - {half} END + $1,
	expires = CASE WHEN expires < {now} + $2 THEN {now} + $2 ELSE expires END WHERE expires > {now} AND `
}

// renewedStamp returns the stamp of a row after a renewal that adds by.
func renewedStamp(stamp, by int64) int64 {
	if stamp >= stampEnd {
		stamp -= stampEnd
	}
	return stamp + by
}

// renewKnown returns the renewal of n locks whose stamps the client knows.
func (t *tables) renewKnown(n int) statement {
	var rows strings.Builder
	for i := range n {
		if i > 0 {
			rows.WriteString(" OR ")
		}
		fmt.Fprintf(&rows, "name = $%d AND stamp = $%d", 3+2*i, 4+2*i)
	}
	return t.translate(t.in(t.renewSQL() + "(" + rows.String() + ")"))
}

// standingSQL is the column list for the state of a lock after a renewal.
const standingSQL = `l.name, l.owner, l.token, l.stamp, l.expires - {now}, ` + waitersSQL

// selectStandings returns the statement that reads the states of n locks.
func (t *tables) selectStandings(n int) statement {
	return t.translate(t.in(`SELECT ` + standingSQL + ` FROM holdfast_lock l WHERE l.name IN (` + argumentList(1, n) + `)`))
}

// Schema returns the SQL that Driver.Migrate runs, for projects that keep their schema in files; opts may be nil.
func Schema(dialect Dialect, opts *Options) (string, error) {
	if opts == nil {
		opts = &Options{}
	}
	t, err := newTables(dialect, opts.Prefix)
	if err != nil {
		return "", fmt.Errorf("sqllock: %w", err)
	}
	return t.in(t.schema), nil
}
