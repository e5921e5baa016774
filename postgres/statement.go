package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// failure is the error of a failed statement.
type failure struct {
	err   error
	doubt bool // it may have been executed, or may still be
	busy  bool // not sent, as the pool had no free connection: no fault of the server
	again bool // not executed: send it again at once
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// mayHaveRun reports whether a statement that failed with err may have been executed.
func mayHaveRun(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.doubt
}

// reply holds the rows that a statement returned.
type reply[T any] struct {
	rows  []T
	sent  time.Time
	doubt bool // an earlier attempt got no answer and may be executed late
}

// runOnce runs a statement on a connection of the pool.
func runOnce[T any](ctx context.Context, d *Driver, scan pgx.RowToFunc[T], sql string, args []any) (r reply[T], failed *failure) {
	begun := time.Now()
	defer func() {
		switch {
		case failed == nil, failed.busy:
		case errorCode(failed) == readOnly, errors.Is(ctx.Err(), context.DeadlineExceeded) && time.Since(begun) >= pace.RequestTime(0, pace.Alone):
			d.replaceConnections(begun)
		}
	}()
	conn, err := d.pool.Acquire(ctx)
	if s := d.pool.Stat(); err != nil && ctx.Err() != nil && s.AcquiredConns() >= s.MaxConns() {
		err = fmt.Errorf("no answer in time, and all %d connections of the pool are in use; give it more: %w", s.MaxConns(), err)
		return r, &failure{err: err, busy: true}
	}
	if err != nil {
		return r, d.explainError(ctx, err, false)
	}
	defer func() {
		if conn.Conn().IsClosed() {
			closeSocketSoon(conn.Conn())
		}
		conn.Release()
	}()
	d.backend.Store(conn.Conn().PgConn().PID())
	if err := d.checkSchema(ctx, conn.Conn()); err != nil {
		return r, d.explainError(ctx, err, false)
	}
	if r, failed = sendStatement(ctx, d, conn.Conn(), scan, sql, args); failed == nil {
		d.answered.Store(time.Now().UnixNano())
	}
	return r, failed
}

// closeSocketSoon closes the socket of a closed connection after a short time. If the connection was closed in the
// middle of a statement, pgx would wait 15 s for the server to end it, and the pool would keep its place for
// as long.
func closeSocketSoon(conn *pgx.Conn) {
	socket := conn.PgConn().Conn()
	time.AfterFunc(pace.OverdueTime(), func() { socket.Close() })
}

// sendStatement runs a statement on conn.
func sendStatement[T any](ctx context.Context, d *Driver, conn *pgx.Conn, scan pgx.RowToFunc[T], sql string, args []any) (r reply[T], failed *failure) {
	r.sent = time.Now()
	rows, _ := conn.Query(ctx, sql, append([]any{d.execMode()}, args...)...) // rows reports its error
	limit := mostBytes
	if sql == d.schema.list {
		limit = math.MaxInt
	}
	var err error
	if r.rows, err = collectRows(rows, scan, limit, func() { conn.Close(ctx) }); err == nil {
		return r, nil
	}
	if errorCode(err) == prepared {
		d.noteShared()
		return r, &failure{err: err, again: true}
	}
	if errorCode(err) == readOnly {
		conn.Close(ctx)
	}
	said, ok := errors.AsType[*pgconn.PgError](err)
	refused := ok && said.Severity == "ERROR"
	return r, d.explainError(ctx, err, !refused && !pgconn.SafeToRetry(err))
}

// collectRows returns all rows. If they have more than limit bytes, it calls abort, which ends the connection:
// the server may send rows without end.
func collectRows[T any](rows pgx.Rows, scan pgx.RowToFunc[T], limit int, abort func()) (all []T, err error) {
	defer rows.Close()
	for size := 0; rows.Next(); {
		for _, value := range rows.RawValues() {
			size += len(value)
		}
		if size += rowBytes; size > limit {
			abort()
			return nil, fmt.Errorf("the answer has more than %d MB; look what answers at this address", limit>>20)
		}
		row, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

// replaceConnections closes the idle connections of the pool, the others once they are free, and the listening
// connection, unless the database has answered since begun. After a silent failure, or behind a primary that
// has become read-only, all of them are useless: each would cost an attempt, and a lease has time for few.
func (d *Driver) replaceConnections(begun time.Time) {
	last := d.replaced.Load()
	if since := begun.UnixNano(); d.answered.Load() > since || last > since || !d.replaced.CompareAndSwap(last, time.Now().UnixNano()) {
		return
	}
	d.pool.Reset()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hangUp()
}

// execMode returns the protocol for a statement. Without a pooler, the server can prepare statements, which
// halves its work per statement but costs a round trip once.
func (d *Driver) execMode() pgx.QueryExecMode {
	if d.straight.Load() && d.owners.Count() > few {
		return pgx.QueryExecModeCacheStatement
	}
	return pgx.QueryExecModeExec
}

// queryRows runs a statement that may be repeated, until ctx ends. It repeats the statement at once if the
// connection breaks, as after a restart of the server, or if the server asks for that because of a conflicting
// statement.
func queryRows[T any](ctx context.Context, d *Driver, scan pgx.RowToFunc[T], sql string, args ...any) (reply[T], error) {
	return repeatStatement(ctx, d, func(bool) (reply[T], *failure) { return runOnce(ctx, d, scan, sql, args) })
}

// repeatStatement is queryRows for a statement that run sends. broken reports to run that a connection broke
// before.
func repeatStatement[T any](ctx context.Context, d *Driver, run func(broken bool) (reply[T], *failure)) (reply[T], error) {
	doubt := false
	for tries := 1; ; tries++ {
		r, err := run(doubt)
		r.doubt = doubt
		if err == nil {
			d.reportAnswer(nil)
			return r, nil
		}
		doubt = doubt || err.doubt
		yields := err.again || errorCode(err) == conflict || errorCode(err) == deadlock
		if (yields || err.doubt && tries < mostTries) && ctx.Err() == nil {
			continue
		}
		err.doubt = doubt
		if err.busy {
			return r, d.states.Unavailable(err)
		}
		down := d.unavailableError(err)
		if ctx.Err() == nil || !isExcused(ctx) {
			d.reportAnswer(down)
		}
		return r, down
	}
}

// errNoRow reports an answer without a row, as from a server that only speaks the protocol.
var errNoRow = errors.New("the answer has no row; look what answers at this address")

// queryRow is queryRows for a statement that returns a row.
func queryRow[T any](ctx context.Context, d *Driver, scan pgx.RowToFunc[T], sql string, args ...any) (reply[T], error) {
	r, err := queryRows(ctx, d, scan, sql, args...)
	if err == nil && len(r.rows) == 0 {
		err = d.unavailableError(errNoRow)
	}
	return r, err
}

// callerKey is the context key of the caller's own context, for a statement that may outlive its caller.
type callerKey struct{}

// isExcused reports whether the end of ctx shows nothing about the server: the caller has left, or this process
// was suspended and could not read an answer in time.
func isExcused(ctx context.Context) bool {
	caller, _ := ctx.Value(callerKey{}).(context.Context)
	deadline, limited := ctx.Deadline()
	return errors.Is(ctx.Err(), context.Canceled) || caller != nil && caller.Err() != nil || limited && time.Since(deadline) > stoodStill
}

// queryOne runs a statement that returns a row.
func queryOne[T any](ctx context.Context, d *Driver, scan pgx.RowToFunc[T], sql string, args ...any) (row T, err error) {
	if err := d.calls.Enter(); err != nil {
		return row, err
	}
	defer d.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	r, err := queryRows(ctx, d, scan, sql, args...)
	switch {
	case err != nil:
		return row, err
	case len(r.rows) == 0:
		return row, pgx.ErrNoRows
	}
	return r.rows[0], nil
}

const (
	mostTries = 3
	few       = 5 // attempts at locks before statements are prepared

	mostBytes    = 8 << 20 // bound of one answer, except of a list
	messageBytes = 1 << 20 // bound of one message of the server
	rowBytes     = 100     // overhead of a row beside its values

	// stoodStill is the delay of a timeout that proves that this process was suspended: a running process is
	// never as late.
	stoodStill = 100 * time.Millisecond
)

// unavailableError wraps the reason why the database has not answered.
func (d *Driver) unavailableError(err error) error {
	if errors.Is(err, driver.ErrUnavailable) {
		return err
	}
	return d.states.Unavailable(nil, driver.NodeError{Node: d.node, Err: err})
}

// Error codes of the server.
const (
	conflict         = "40001" // only above READ COMMITTED
	deadlock         = "40P01"
	readOnly         = "25006"
	noRights         = "42501"
	noRoom           = "53100"
	noDatabase       = "3D000"
	noSchema         = "3F000"
	noTable          = "42P01"
	noFunction       = "42883"
	wrongPassword    = "28P01"
	wrongUser        = "28000"
	lockNotAvailable = "55P03"
	queryCanceled    = "57014"
	noSetting        = "42704"
	tooMany          = "53300"
	prepared         = "42P05" // another connection with the same session has prepared it
)

// unsupportedText is the error for a server that lacks what every PostgreSQL has.
const unsupportedText = "the server lacks what locks need: %w; use PostgreSQL 11 or newer, and not a server that only speaks its protocol"

func errorCode(err error) string {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		return said.Code
	}
	return ""
}

// explainError returns err with its cause and its fix.
func (d *Driver) explainError(ctx context.Context, err error, doubt bool) *failure {
	f := &failure{err: err, doubt: doubt}
	if refused, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		err = connectError{err, refused}
		f.err = err
	}
	lasts := func(format string, args ...any) { f.err = driverkit.PermanentError{Err: fmt.Errorf(format, args...)} }
	switch errorCode(err) {
	case wrongPassword, wrongUser:
		lasts("%w: %w; correct user and password", driver.ErrAuth, err)
		if d.checked.Load() { // the password was right before: it is being rotated
			f.err = fmt.Errorf("%w: %w; user and password were right before: correct them where this program reads them, or on the server", driver.ErrAuth, err)
		}
	case noSetting:
		lasts("%w; correct the parameters of the URL, or leave it out", err)
	case noDatabase:
		lasts("%w; create it, or name another", err)
	case noTable, noFunction:
		if !strings.Contains(err.Error(), d.schema.raw+".") { // not an object of the schema
			lasts(unsupportedText, err)
			break
		}
		fallthrough
	case noSchema:
		lasts("schema %s has no tables for locks, or not all of them: %w; run holdfast migrate, or call Migrate in a program", d.schema.name, err)
	case noRights:
		lasts("%w: %w; grant USAGE on schema %s, and SELECT, INSERT, UPDATE, DELETE on its tables", driver.ErrAuth, err, d.schema.name)
	case readOnly:
		f.err = fmt.Errorf("no writes are taken: %w; name the primary if this is a standby, or else set default_transaction_read_only off", err)
	case noRoom:
		f.err = fmt.Errorf("%w; make room on the disk, as locks that are held lapse meanwhile", err)
	default:
		if strings.HasPrefix(errorCode(err), "9") { // PostgreSQL has no such class; H2 numbers its errors like this
			lasts(unsupportedText, err)
		} else if errors.Is(err, errVersion) {
			f.err = driverkit.PermanentError{Err: err}
		} else if refused, ok := errors.AsType[connectError](err); ok {
			if mend := connectFix(refused); mend != "" {
				f.err = fmt.Errorf("%w; %s", f.err, mend)
			}
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			f.err = fmt.Errorf("no answer in time: %w", f.err)
		}
	}
	return f
}

// tlsNaming names the libpq settings for TLS. The server's certificate must name the host.
var tlsNaming = driverkit.TLSNaming{Authority: "sslrootcert", Pair: "sslcert and sslkey"}

// connectFix returns the fix for a connect error that may also go away by itself; empty: the error's text
// is enough.
func connectFix(err error) string {
	switch {
	case errorCode(err) == tooMany:
		return tooManyFix
	case strings.Contains(err.Error(), withoutTLS):
		return "turn on ssl on the server, or choose another sslmode"
	}
	return tlsNaming.TLSFix(err.Error())
}

// tooManyFix is the fix for a server without free connections.
const tooManyFix = "raise max_connections, or bound the pools of the programs (pool_max_conns)"

// connectError is a connect error with a text of one line. pgx tries each address with and without TLS, and
// reports each attempt on a line that names the address up to three times.
type connectError struct {
	error
	refused *pgconn.ConnectError
}

func (c connectError) Unwrap() error { return c.error }

// connectAttempt matches the line of one attempt: the address, the host, the address again if it could not be
// dialed, and the reason.
var connectAttempt = regexp.MustCompile(`^(.+?) \((.+?)\): (?:dial error: dial \w+ (.+?): )?(.*)$`)

// withoutTLS is the error of an attempt with TLS if the server has no TLS.
const withoutTLS = "tls error: server refused TLS connection"

func (c connectError) Error() string {
	head, details, _ := strings.Cut(c.refused.Error(), "`:")
	return strings.Replace(c.error.Error(), c.refused.Error(), head+"`: "+strings.Join(attemptTexts(details), ", "), 1)
}

// attemptTexts returns why the attempts failed. They name each address once, and none if there is only one: the node's
// name precedes the error. They name a server's lack of TLS only if no attempt without TLS followed.
func attemptTexts(details string) (texts []string) {
	var addresses, reasons []string
	for line := range strings.SplitSeq(details, "\n") {
		line = strings.TrimSpace(line)
		address := ""
		if m := connectAttempt.FindStringSubmatch(line); m != nil && (m[3] == "" || m[3] == m[1]) {
			address, line = m[1], m[4]
		}
		if line != "" {
			addresses, reasons = append(addresses, address), append(reasons, line)
		}
	}
	one := len(slices.Compact(slices.Clone(addresses))) == 1
	for i, reason := range reasons {
		if reason == withoutTLS && slices.Contains(addresses[i+1:], addresses[i]) {
			continue
		}
		if !one && addresses[i] != "" {
			reason = addresses[i] + ": " + reason
		}
		if !slices.Contains(texts, reason) {
			texts = append(texts, reason)
		}
	}
	return texts
}
