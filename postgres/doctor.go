package postgres

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	oldest    = 110000 // first server version that the schema runs on
	manyTurns = 10000  // age of a snapshot, in transactions, from which locks become slower
)

// Diagnose implements driver.Doctor.
func (d *Driver) Diagnose(ctx context.Context, ttl time.Duration) []driver.Finding {
	if err := d.calls.Enter(); err != nil {
		return driverkit.ClosedFindings(err)
	}
	defer d.calls.Leave()
	ttl = cmp.Or(ttl, driverkit.DoctorTTL)
	l := &doctorRun{Findings: driverkit.Findings{Node: d.node}, d: d, ttl: ttl, limit: pace.RequestTime(ttl, pace.Alone)}
	l.CheckFileModes(d.secrets...)
	conn, err := d.dialConn(d.calls.Alive, l.in.add)
	if err != nil {
		l.addFailure(ctx, "reach", err)
		return l.Found
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
		defer cancel()
		conn.Close(ctx)
	}()
	l.conn = conn
	l.OK("reach", "answers")
	l.runChecks(ctx)
	return l.Found
}

// doctorRun is one run of the doctor.
type doctorRun struct {
	driverkit.Findings
	d     *Driver
	conn  *pgx.Conn
	ttl   time.Duration // TTL of the leases
	in    inbox         // notifications of conn
	limit time.Duration // for one statement
}

// runChecks runs the checks in order, until one gets no answer.
func (l *doctorRun) runChecks(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pace.ExamTime())
	defer cancel()
	for _, check := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"round-trip", l.checkRoundTrip},
		{"version", l.checkVersion},
		{"role", l.checkRole},
		{"clock", l.checkClock},
		{"durability", l.checkDurability},
		{"replicas", l.checkReplicas},
		{"connections", l.checkConnections},
		{"pooler", l.checkPooler},
		{"tls", l.checkTransport},
		{"schema", l.checkSchema}, // last, as the schema may be missing
		{"rights", l.checkPermissions},
		{"tables", l.checkLogged},
		{"tables", l.checkSnapshots},
	} {
		if err := check.run(ctx); err != nil {
			l.addFailure(ctx, check.name, err)
			return
		}
	}
}

// addFailure notes why the database cannot be used, or why the checks stop.
func (l *doctorRun) addFailure(ctx context.Context, check string, err error) {
	if errorCode(err) == noRights {
		l.Add("rights", driver.VerdictFault, err.Error(), l.grantStatements(ctx))
		return
	}
	l.Fault(check, l.d.explainError(ctx, err, false))
}

// readRow reads one row.
func (l *doctorRun) readRow(ctx context.Context, sql string, args []any, to ...any) error {
	return l.conn.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...).Scan(to...)
}

func (l *doctorRun) checkRoundTrip(ctx context.Context) error {
	var one int
	return l.CheckRoundTrip(l.limit, func() error { return l.readRow(ctx, "SELECT 1", nil, &one) })
}

func (l *doctorRun) checkVersion(ctx context.Context) error {
	var number int
	var text string
	err := l.readRow(ctx, "SELECT current_setting('server_version_num')::int, current_setting('server_version')", nil, &number, &text)
	if err == nil {
		l.checkNumber(number, text)
	}
	return err
}

func (l *doctorRun) checkNumber(number int, text string) {
	if number < oldest {
		l.Add("version", driver.VerdictFault, "it is PostgreSQL "+text, "update it to 11 or newer")
		return
	}
	l.OK("version", "PostgreSQL %s", text)
}

// checkRole checks that the server accepts writes.
func (l *doctorRun) checkRole(ctx context.Context) error {
	var standby, reads bool
	err := l.readRow(ctx, "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool", nil, &standby, &reads)
	switch {
	case err != nil:
		return err
	case standby:
		l.Add("role", driver.VerdictFault, "it is a standby, which keeps no locks", "name the primary, or several hosts with target_session_attrs=read-write")
	case reads:
		l.Add("role", driver.VerdictFault, "transactions are read-only unless they say otherwise (default_transaction_read_only)",
			"set that off for this user and database")
	default:
		l.OK("role", "a primary that takes writes")
	}
	return nil
}

func (l *doctorRun) checkClock(ctx context.Context) error {
	return l.CheckClock(func(at *int64) error { // a number, because the format of dates depends on the session
		return l.readRow(ctx, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", nil, at)
	})
}

// checkDurability checks whether a crash can undo grants.
func (l *doctorRun) checkDurability(ctx context.Context) error {
	var off []string
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		var value string
		if err := l.readRow(ctx, "SELECT current_setting($1::text)", []any{name}, &value); err != nil {
			return err
		}
		if value == "off" {
			off = append(off, name)
		}
	}
	if len(off) > 0 {
		names := strings.Join(off, ", ")
		l.Add("durability", driver.VerdictFault, names+" is off: a crash undoes grants that somebody relies on", "set "+names+" on")
		return nil
	}
	l.OK("durability", "a grant is on disk before anybody relies on it")
	return nil
}

func (l *doctorRun) checkReplicas(ctx context.Context) error {
	var n int
	var names string
	err := l.readRow(ctx, "SELECT count(*), current_setting('synchronous_standby_names') FROM pg_stat_replication", nil, &n, &names)
	switch {
	case err != nil:
		return err
	case n > 0 && names == "":
		l.Add("replicas", driver.VerdictWarning, fmt.Sprintf(
			"a failover to an asynchronous replica, of which there are %d, loses the newest grants, and two may hold a lock", n),
			"set synchronous_standby_names, or rely on FenceTx or tokens")
	default:
		l.OK("replicas", "%d", n)
	}
	return nil
}

func (l *doctorRun) checkConnections(ctx context.Context) error {
	var used, most int
	err := l.readRow(ctx, "SELECT count(*), current_setting('max_connections')::int FROM pg_stat_activity "+
		"WHERE backend_type = 'client backend'", nil, &used, &most)
	switch {
	case err != nil:
		return err
	case used > most/10*9:
		l.Add("connections", driver.VerdictWarning, fmt.Sprintf("%d of %d connections are in use: a renewal that gets none is late", used, most),
			tooManyFix)
	default:
		l.OK("connections", "%d of %d; this client opens %d at most", used, most, l.d.maxConns())
	}
	return nil
}

// checkPooler finds a pooler that breaks LISTEN, or a server on which all connections share one session.
func (l *doctorRun) checkPooler(ctx context.Context) error {
	there, shared, err := l.d.compareSessions(ctx, l.conn)
	switch {
	case there && errorCode(err) == tooMany: // checkConnections warns of it; there is no second session to compare
		l.OK("pooler", "none; %s", l.d.waitMethod())
		return nil
	case err != nil:
		return err
	case shared:
		l.Add("pooler", driver.VerdictWarning, "several connections share one session of the server: waiters poll, and no statement is prepared",
			"use a server that gives each connection a session of its own")
		return nil
	case there:
		l.OK("pooler", "none; %s", l.d.waitMethod())
		return nil
	}
	if _, err := l.conn.Exec(ctx, "LISTEN "+pgx.Identifier{l.d.owners.Client}.Sanitize(), pgx.QueryExecModeExec); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, pace.NotifyTime())
	defer cancel()
	heard, err := l.d.receivesOwnNotification(waiting, l.conn, &l.in)
	switch {
	case err != nil:
		return err
	case !heard:
		l.Add("pooler", driver.VerdictWarning, "LISTEN does not work through this connection pooler, so waiters poll",
			"give a direct connection, or one in session mode")
	default:
		l.OK("pooler", "one that passes notifications on; waiters block on no connections of their own, as it may give these to others")
	}
	return nil
}

// maxConns returns the highest number of connections that the driver opens: the pool, one for each waiter that
// blocks, the listening connection, and the reserve.
func (d *Driver) maxConns() int {
	d.waitConns.mu.Lock()
	defer d.waitConns.mu.Unlock()
	n := int(d.pool.Config().MaxConns) + d.waitConns.max + 1
	if !d.noListen {
		n++
	}
	return n
}

// waitMethod names the way in which waiters on direct connections are notified of their turn.
func (d *Driver) waitMethod() string {
	d.waitConns.mu.Lock()
	defer d.waitConns.mu.Unlock()
	switch {
	case d.waitConns.max > 0:
		return fmt.Sprintf("waiters block on connections of their own for a moment, %d at most, and then wait for notifications", d.waitConns.max)
	case d.noListen:
		return "waiters poll (NoListen)"
	}
	return "waiters wait for notifications"
}

func (l *doctorRun) checkTransport(context.Context) error {
	conn := l.conn.PgConn().Conn()
	if _, local := conn.(*net.UnixConn); local {
		l.OK("tls", "a socket of this machine")
		return nil
	}
	if text := tlsWeakness(l.conn.Config(), conn); text != "" {
		l.Add("tls", driver.VerdictWarning, text, "give sslmode=verify-full in the URL, and sslrootcert=FILE for an authority of your own")
		return nil
	}
	l.CheckTLS(conn, l.conn.Config().Password != "", l.conn.Config().TLSConfig)
	return nil
}

// tlsWeakness returns what an attacker on the network could do to conn, which was opened by config. It returns
// "" if there is no weakness or the URL disables TLS. Without sslmode the URL does not decide about TLS.
func tlsWeakness(config *pgx.ConnConfig, conn net.Conn) string {
	asked := []*tls.Config{config.TLSConfig}
	for _, f := range config.Fallbacks {
		asked = append(asked, f.TLSConfig)
	}
	unverified := func(c *tls.Config) bool {
		return c != nil && c.InsecureSkipVerify && c.VerifyPeerCertificate == nil && c.VerifyConnection == nil
	}
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	if _, secure := conn.(*tls.Conn); secure && slices.ContainsFunc(asked, unverified) {
		return "its certificate is not verified: whoever answers in its place gets what is sent, and grants locks"
	} else if !secure && slices.ContainsFunc(asked, func(c *tls.Config) bool { return c != nil }) && !net.ParseIP(host).IsLoopback() {
		return "it speaks no TLS, and the URL lets that pass: whoever is in between reads and changes what is sent"
	}
	return ""
}

func (l *doctorRun) checkSchema(ctx context.Context) error {
	in, err := l.d.schema.readState(ctx, l.conn)
	if err == nil {
		err = l.d.schema.checkVersion(in)
	}
	if err == nil {
		l.OK("schema", "version %d", in.version)
	}
	return err
}

// checkPermissions checks that the user has the permissions that locks need.
func (l *doctorRun) checkPermissions(ctx context.Context) error {
	rows, err := l.conn.Query(ctx, `
		SELECT p || ' on table ' || c.relname FROM pg_class c, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
			WHERE c.relnamespace = to_regnamespace($1::text) AND c.relname IN ('lock', 'ticket') AND NOT has_table_privilege(c.oid, p)
		UNION ALL SELECT 'EXECUTE on function ' || f.proname FROM pg_proc f
			WHERE f.pronamespace = to_regnamespace($1::text) AND NOT has_function_privilege(f.oid, 'EXECUTE')
		ORDER BY 1`, pgx.QueryExecModeExec, l.d.schema.name)
	if err != nil {
		return err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return err
	case len(missing) > 0:
		l.Add("rights", driver.VerdictFault, "missing: "+strings.Join(missing, ", "), l.grantStatements(ctx))
	default:
		l.OK("rights", "all that locks need")
	}
	return nil
}

// grantStatements returns the statements that give this user all permissions that locks need.
func (l *doctorRun) grantStatements(ctx context.Context) string {
	var user string
	if l.conn == nil || l.readRow(ctx, "SELECT quote_ident(current_user)", nil, &user) != nil {
		user = "USER"
	}
	in := " SCHEMA " + l.d.schema.name + " TO " + user
	return "GRANT USAGE ON" + in + "; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN" + in + "; GRANT EXECUTE ON ALL FUNCTIONS IN" + in
}

// snapshotSQL finds the owner of the oldest snapshot. The server cannot clean up rows that changed after that
// snapshot, so each statement reads all these versions of a lock's row. A transaction that has written has the
// same effect. Columns that the user may not read are NULL.
const snapshotSQL = `SELECT turns, whose, name FROM (
		SELECT greatest(age(backend_xmin), age(backend_xid)), 'a transaction of the program', application_name FROM pg_stat_activity WHERE pid <> pg_backend_pid()
		UNION ALL SELECT age(backend_xmin), 'the replica', application_name FROM pg_stat_replication
		UNION ALL SELECT age(xmin), 'the replication slot', slot_name::text FROM pg_replication_slots
		UNION ALL SELECT age(transaction), 'the prepared transaction', gid FROM pg_prepared_xacts) s (turns, whose, name)
	WHERE turns > $1::int ORDER BY turns DESC LIMIT 1`

// idleSQL finds the transaction that has been idle for longest.
const idleSQL = `SELECT extract(epoch FROM clock_timestamp() - state_change)::bigint AS s, application_name FROM pg_stat_activity
	WHERE state LIKE 'idle in transaction%' AND datname = current_database() AND clock_timestamp() - state_change > $1::bigint * interval '1 microsecond'
	ORDER BY s DESC LIMIT 1`

// checkSnapshots finds an old snapshot, which keeps the server from cleaning up the rows of locks, and a
// transaction that may become one.
func (l *doctorRun) checkSnapshots(ctx context.Context) error {
	const bound = "transaction_timeout (from PostgreSQL 17 on) or idle_in_transaction_session_timeout"
	var turns, seconds int
	var whose, name string
	err := l.readRow(ctx, snapshotSQL, []any{manyTurns}, &turns, &whose, &name)
	if err == nil {
		what := "%s %q has a snapshot that is %d transactions old: old versions of rows cannot go, and locks become slower"
		l.Add("tables", driver.VerdictWarning, fmt.Sprintf(what, whose, name, turns), "end it, or drop the slot, and bound such transactions by "+bound)
		return nil
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = l.readRow(ctx, idleSQL, []any{driverkit.ToMicros(l.ttl)}, &seconds, &name)
	}
	if errors.Is(err, pgx.ErrNoRows) || errorCode(err) == noTable { // the user may lack these views; locks do not need them
		return nil
	}
	if err == nil {
		what := "a session of the program %q has been idle in a transaction for %v: what it has locked passes on to nobody, also a lock on which it relies " +
			"(FenceTx), and old versions of rows cannot go"
		l.Add("tables", driver.VerdictWarning, fmt.Sprintf(what, name, time.Duration(seconds)*time.Second), "end the transaction, and bound such ones by "+bound)
	}
	return err
}

// checkLogged finds unlogged tables, which a crash empties.
func (l *doctorRun) checkLogged(ctx context.Context) error {
	rows, err := l.conn.Query(ctx, "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace($1::text) AND relkind = 'r' AND relpersistence <> 'p'",
		pgx.QueryExecModeExec, l.d.schema.name)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return err
	case slices.Contains(names, "lock"):
		l.Add("tables", driver.VerdictFault, "the table of the locks is not logged: a crash empties it, and a standby does not have it",
			"ALTER TABLE "+l.d.schema.name+".lock SET LOGGED")
	default:
		l.OK("tables", "survive a crash")
	}
	return nil
}
