package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// version is the version of schema.sql.
const version = 4

const defaultSchema = "holdfast"

//go:embed schema.sql
var schemaSQL string

// errVersion reports that another version of this package has made the schema, or that a part of it is
// missing.
var errVersion = errors.New("the schema does not fit")

// takeSQL takes a lock that is free or was handed to the owner. The SQL function handles all other cases,
// because it sees changes that were made while this statement waited for the row. The row records that there
// are no tickets, so that the newest version of the row decides.
const takeSQL = `WITH taken AS (
	UPDATE holdfast.lock SET
		token = CASE WHEN owner = $2 THEN token ELSE greatest(token + {block}, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) END,
		since = CASE WHEN owner = $2 THEN since ELSE clock_timestamp() END,
		owner = $2, holder = $4,
		expires = greatest(clock_timestamp() + $3 * interval '1 microsecond', CASE WHEN owner = $2 THEN expires END)
	WHERE name = $1 AND (owner = $2 AND expires > clock_timestamp() OR owner IS NULL AND NOT queued AND expires <= clock_timestamp()) RETURNING token
), made AS (
	INSERT INTO holdfast.lock SELECT $1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, $2, $4, clock_timestamp(),
		clock_timestamp() + $3 * interval '1 microsecond', false WHERE NOT EXISTS (SELECT FROM taken) ON CONFLICT DO NOTHING RETURNING token
), got AS (SELECT token FROM taken UNION ALL SELECT token FROM made)
SELECT token, NULL, NULL::jsonb, NULL::bigint, NULL::bigint, NULL::bigint FROM got
UNION ALL SELECT * FROM holdfast.acquire($1::text, $2::text, $3::bigint, $4::jsonb, $5::boolean, $6::text, $7::bigint, $8::bigint)
	WHERE NOT EXISTS (SELECT FROM got)`

// freeSQL frees a lock that has no waiter and no transaction that relies on it (FenceTx). The function handles
// all other cases. A crash may undo either.
const freeSQL = `WITH freed AS (
	UPDATE holdfast.lock SET owner = NULL, holder = NULL, expires = clock_timestamp() WHERE name = (
		SELECT name FROM holdfast.lock WHERE name = $1 AND owner = $2 AND NOT queued FOR UPDATE SKIP LOCKED)
	RETURNING set_config('synchronous_commit', 'off', true)
) SELECT CASE WHEN NOT EXISTS (SELECT FROM freed) THEN holdfast.release($1::text, $2::text, 0, false) END`

// renewSQL renews each lock that its owner still has. It never shortens one: it may be executed after another
// renewal with a longer TTL.
const renewSQL = `UPDATE holdfast.lock l SET expires = greatest(l.expires, clock_timestamp() + g.ttl * interval '1 microsecond')
	FROM unnest($1::text[], $2::text[], $3::bigint[]) AS g (name, owner, ttl)
	WHERE l.name = g.name AND l.owner = g.owner AND l.expires > clock_timestamp()
	RETURNING l.name, holdfast.waiters(l.name)`

// notifyForcedSQL notifies the holder's client of a force-release, with its author and reason. It also writes both to
// the mark of the gone owner, for a client that does not receive the notification.
const notifyForcedSQL = `WITH noted AS (
	UPDATE holdfast.ticket SET holder = jsonb_build_object('forced', $3::text) WHERE name = $1::text AND owner = $2::text AND gone
) SELECT holdfast.told($4::text, $5::text)`

// schema holds the statements for one schema.
type schema struct {
	raw, name                                                 string // name is quoted
	acquire, adopt, renew, free, release, force, tell, forced string
	enter, leave                                              string
	check, inspect, list, version, guard                      string
}

func newSchema(name string) (schema, error) {
	if name == "" {
		name = defaultSchema
	}
	if len(name) > 63 || strings.ContainsFunc(name, unicode.IsControl) || strings.Contains(name, "$$") {
		return schema{}, fmt.Errorf("%w: schema %q: give a name of 1 to 63 bytes, without control characters and $$", driver.ErrInvalid, name)
	}
	s := schema{raw: name, name: pgx.Identifier{name}.Sanitize()}
	const columns = `SELECT l.name, CASE WHEN h THEN owner END, CASE WHEN h THEN holder END, token,
		(extract(epoch FROM greatest(least(since, at), 'epoch')) * 1000000)::bigint,
		(extract(epoch FROM greatest(least(expires, at + interval '100 years'), at) - at) * 1000000)::bigint, holdfast.waiters(l.name)
		FROM holdfast.lock l, clock_timestamp() at, LATERAL (SELECT owner IS NOT NULL AND expires > at AS h) held `
	for to, text := range map[*string]string{
		&s.acquire: takeSQL,
		&s.adopt:   `SELECT holdfast.adopt($1::text, $2::text, $3::text, $4::bigint, $5::jsonb)`,
		&s.renew:   renewSQL,
		&s.free:    freeSQL,
		&s.release: `SELECT holdfast.release($1::text, $2::text, $3::bigint, $4::boolean)`,
		&s.enter:   `SELECT * FROM holdfast.enter($1::text, $2::text, $3::bigint, $4::jsonb, $5::bigint, $6::bigint)`,
		&s.leave:   `SELECT holdfast.leave($1::text, $2::text, $3::bigint, $4::boolean)`,
		&s.force:   `SELECT holdfast.force($1::text, $2::bigint)`,
		&s.tell:    notifyForcedSQL,
		&s.forced: `SELECT t.owner, t.holder->>'forced' FROM unnest($1::text[], $2::text[]) AS g (name, owner)
			JOIN holdfast.ticket t ON t.name = g.name AND t.owner = g.owner AND t.gone WHERE t.holder->>'forced' IS NOT NULL`,
		&s.check: `SELECT EXISTS (SELECT FROM holdfast.lock WHERE name = $1::text AND owner = $2::text AND expires > clock_timestamp())`,
		&s.guard: `SELECT FROM holdfast.lock WHERE name = $1::text AND owner = $2::text
			AND expires > clock_timestamp() FOR KEY SHARE`,
		&s.inspect: columns + `WHERE l.name = $1::text`,
		&s.list:    columns + `WHERE starts_with(l.name, $1::text) AND (h OR holdfast.waiters(l.name) > 0)`,
		&s.version: `SELECT version, ARRAY(SELECT unnest($2::text[]) EXCEPT
			SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace($1::text) EXCEPT
			SELECT proname::text FROM pg_proc WHERE pronamespace = to_regnamespace($1::text) ORDER BY 1) FROM holdfast.version`,
	} {
		*to = s.in(text)
	}
	return s, nil
}

// in inserts the name of the schema and the size of a token block into a text.
func (s schema) in(text string) string {
	text = strings.ReplaceAll(text, "{block}", strconv.Itoa(driverkit.Block))
	quoted := func(text string) string { return strings.ReplaceAll(text, "'", "''") }
	pieces := strings.Split(text, "'holdfast.lock'")
	for i := range pieces {
		pieces[i] = strings.ReplaceAll(pieces[i], "holdfast.", s.name+".")
	}
	text = strings.Join(pieces, "'"+quoted(s.name)+".lock'")
	text = strings.ReplaceAll(text, "nspname = ''holdfast''", "nspname = ''"+quoted(quoted(s.raw))+"''")
	return strings.ReplaceAll(text, "CREATE SCHEMA holdfast;", "CREATE SCHEMA "+quoted(s.name)+";")
}

// createdNames returns the names of the tables and functions that schema.sql creates.
var createdNames = sync.OnceValue(func() (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^CREATE (?:TABLE IF NOT EXISTS|OR REPLACE FUNCTION) holdfast\.(\w+)`).FindAllStringSubmatch(schemaSQL, -1) {
		names = append(names, m[1])
	}
	return names
})

// state holds the version of the schema in the database, and the parts that it lacks.
type state struct {
	version int
	missing []string // parts
}

func (s schema) readState(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (in state, err error) {
	err = q.QueryRow(ctx, s.version, pgx.QueryExecModeExec, s.name, createdNames()).Scan(&in.version, &in.missing)
	return in, err
}

// checkSchema checks once that this package can work with the schema.
func (d *Driver) checkSchema(ctx context.Context, conn *pgx.Conn) error {
	if d.checked.Load() {
		return nil
	}
	in, err := d.schema.readState(ctx, conn)
	if err != nil {
		return err
	}
	if err := d.schema.checkVersion(in); err != nil {
		return err
	}
	d.checked.Store(true)
	if conn.Config().StatementCacheCapacity > 0 {
		same, err := isDirect(ctx, conn)
		d.straight.Store(same)
		return err
	}
	return nil
}

// isDirect reports whether conn leads directly to the server. A pooler reports invented process numbers.
func isDirect(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var pid uint32
	err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid)
	return pid == conn.PgConn().PID(), err
}

func (s schema) checkVersion(in state) error {
	switch v := in.version; {
	case v < version:
		return fmt.Errorf("%w: the tables in schema %s have version %d, and version %d is needed; run holdfast migrate, or call Migrate in a program",
			errVersion, s.name, v, version)
	case v == version && len(in.missing) > 0:
		return fmt.Errorf("%w: schema %s lacks %s, which somebody has dropped; run holdfast migrate, or call Migrate in a program",
			errVersion, s.name, strings.Join(in.missing, ", "))
	case v > version:
		return fmt.Errorf("%w: the tables in schema %s have version %d, and this program knows version %d; update the program", errVersion, s.name, v, version)
	}
	return nil
}

// Migrate creates the tables and functions, or brings them up to date, in one transaction. Open the driver with
// NoCheck to call it. Several programs may call it at once. If the schema is up to date, Migrate only replaces
// functions of another build of the same version, if its user owns them. It blocks until the database has
// answered or ctx ends. Its user must own the schema or have permission to create it; programs that lock need
// neither. Errors: ErrUnavailable, ErrAuth and ErrConfig, the last also for a schema of a newer version.
func (d *Driver) Migrate(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return d.schema.migrate(ctx, tx) })
	switch {
	case err == nil:
		return nil
	case errorCode(err) == noRights:
		err = driverkit.PermanentError{Err: fmt.Errorf("%w: %w; take a user who owns the schema, or may create it in this database", driver.ErrAuth, err)}
	default:
		err = d.explainError(ctx, err, false)
	}
	return fmt.Errorf("postgres: migrate: %w", d.unavailableError(err))
}

func (s schema) migrate(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('holdfast'), 1)", pgx.QueryExecModeExec); err != nil {
		return err
	}
	var there bool
	err := tx.QueryRow(ctx, "SELECT to_regclass($1::text) IS NOT NULL", pgx.QueryExecModeExec, s.in("holdfast.version")).Scan(&there)
	if err != nil {
		return err
	}
	if there {
		switch in, err := s.readState(ctx, tx); {
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			return err
		case err == nil && in.version == version && len(in.missing) == 0:
			return s.replaceFunctions(ctx, tx)
		case err == nil && in.version > version:
			return s.checkVersion(in)
		}
	}
	_, err = tx.Exec(ctx, s.in(schemaSQL), pgx.QueryExecModeSimpleProtocol)
	return err
}

// function matches a statement of schema.sql that creates a function: its name and its body.
var function = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?ms)^CREATE OR REPLACE FUNCTION holdfast\.(\w+)\(.*?\$\$(.*?)\$\$;$`)
})

// replaceFunctions replaces functions whose text differs from this build: builds of one version differ only in
// speed. It leaves functions that this user may not replace: functions of another user, or of a role whose
// permissions the user does not inherit.
func (s schema) replaceFunctions(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT proname::text, prosrc FROM pg_proc
		WHERE pronamespace = to_regnamespace($1::text) AND pg_has_role(proowner, 'USAGE') AND has_schema_privilege(pronamespace, 'CREATE')`,
		pgx.QueryExecModeExec, s.name)
	if err != nil {
		return err
	}
	bodies := make(map[string]string)
	var name, body string
	if _, err := pgx.ForEachRow(rows, []any{&name, &body}, func() error { bodies[name] = body; return nil }); err != nil {
		return err
	}
	for _, f := range function().FindAllStringSubmatch(schemaSQL, -1) {
		if there, ours := bodies[f[1]]; !ours || there == s.in(f[2]) {
			continue
		}
		if _, err := tx.Exec(ctx, s.in(f[0]), pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return nil
}

// Schema returns the SQL that Driver.Migrate runs, for projects that keep their schema in files; opts may be nil.
func Schema(opts *Options) (string, error) {
	if opts == nil {
		opts = &Options{}
	}
	s, err := newSchema(opts.Schema)
	if err != nil {
		return "", err
	}
	return s.in(schemaSQL), nil
}
