package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Diagnose implements driver.Doctor. It uses a connection of the pool given to New.
func (d *Driver) Diagnose(ctx context.Context, ttl time.Duration) []driver.Finding {
	if err := d.calls.Enter(); err != nil {
		return driverkit.ClosedFindings(err)
	}
	defer d.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, pace.ExamTime())
	defer cancel()
	l := &doctorRun{Findings: driverkit.Findings{Node: d.node}, d: d, limit: pace.RequestTime(cmp.Or(ttl, driverkit.DoctorTTL), pace.Alone)}
	var conn *sql.Conn
	err := l.retryWhileBusy(ctx, func() (err error) {
		conn, err = d.db.Conn(ctx)
		return err
	})
	if err == nil {
		defer conn.Close()
		err = conn.PingContext(ctx)
	}
	if err != nil {
		l.Fault("reach", d.explainError(ctx, err))
		return l.Found
	}
	l.conn = conn
	l.OK("reach", "answers")
	failed := make(map[string]bool)
	for _, check := range []struct {
		name, needs string // needs: the check that must pass first
		run         func(context.Context) error
	}{
		{"round-trip", "", l.checkRoundTrip},
		{"version", "", l.checkVersion},
		{"role", "", l.checkRole},
		{"clock", "", l.checkClock},
		{"durability", "", l.checkDurability},
		{"schema", "", l.checkSchema},
		{"rights", "schema", l.checkPermissions},
		{"isolation", "rights", l.checkIsolation},
		{"wake", "rights", l.handOver},
	} {
		if failed[check.needs] {
			failed[check.name] = true
			continue
		}
		err := l.retryWhileBusy(ctx, func() error { return check.run(ctx) })
		if err == nil {
			continue
		}
		failed[check.name] = true
		l.Fault(check.name, d.explainError(ctx, err))
		if ctx.Err() != nil || d.kindOf(err) == broken { // the other checks would fail alike
			break
		}
	}
	return l.Found
}

// doctorRun is one run of the doctor.
type doctorRun struct {
	driverkit.Findings
	d     *Driver
	conn  *sql.Conn
	limit time.Duration // bounds one attempt
}

// retryWhileBusy calls fn, and repeats it for up to l.limit while another process writes to the SQLite file.
func (l *doctorRun) retryWhileBusy(ctx context.Context, fn func() error) error {
	ctx, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	return l.d.retryWhileBusy(ctx, fn)
}

// readRow reads one row.
func (l *doctorRun) readRow(ctx context.Context, text string, to ...any) error {
	return l.conn.QueryRowContext(ctx, text).Scan(to...)
}

func (l *doctorRun) checkRoundTrip(ctx context.Context) error {
	var one int
	return l.CheckRoundTrip(l.limit, func() error { return l.readRow(ctx, "SELECT 1", &one) })
}

// oldestVersions has the oldest supported version of each dialect, and the query for the server's own.
var oldestVersions = map[Dialect]struct {
	ask   string
	least []int
}{
	MySQL:  {"SELECT VERSION()", []int{8}},
	SQLite: {"SELECT sqlite_version()", []int{3, 35}},
}

func (l *doctorRun) checkVersion(ctx context.Context) error {
	k := oldestVersions[l.d.dialect]
	var text string
	if err := l.readRow(ctx, k.ask, &text); err != nil {
		return err
	}
	name, least := l.d.dialectRules.name, k.least
	if strings.Contains(text, "MariaDB") {
		name, least = "MariaDB", []int{10, 2}
	}
	if isOlder(text, least) {
		l.Add("version", driver.VerdictFault, "it is "+name+" "+text, "update it")
		return nil
	}
	l.OK("version", "%s %s", name, text)
	return nil
}

// isOlder reports whether the version text is below least.
func isOlder(text string, least []int) bool {
	for i, part := range strings.SplitN(text, ".", len(least)+1) {
		n, err := strconv.Atoi(strings.TrimRightFunc(part, func(r rune) bool { return r < '0' || r > '9' }))
		if i == len(least) || err != nil || n > least[i] {
			return false
		}
		if n < least[i] {
			return true
		}
	}
	return false
}

// checkRole checks that the server accepts writes and commits each statement.
func (l *doctorRun) checkRole(ctx context.Context) error {
	var reads, commits bool
	var err error
	switch l.d.dialect {
	case MySQL:
		err = l.readRow(ctx, "SELECT @@global.read_only OR @@tx_read_only, @@autocommit", &reads, &commits)
		if err != nil { // MySQL 8 renamed the variable
			err = l.readRow(ctx, "SELECT @@global.read_only OR @@transaction_read_only, @@autocommit", &reads, &commits)
		}
	case SQLite:
		return nil
	}
	switch {
	case err != nil:
		return err
	case reads:
		l.Add("role", driver.VerdictFault, "it takes no writes: it is a replica, or a setting forbids them", "name the primary, or set read_only or the like off")
	case !commits:
		l.OK("role", "takes writes; autocommit is off, which costs two more statements for each")
	default:
		l.OK("role", "takes writes")
	}
	return nil
}

func (l *doctorRun) checkClock(ctx context.Context) error {
	if l.d.now == "" {
		l.OK("clock", "the clock of this machine")
		return nil
	}
	return l.CheckClock(func(at *int64) error { return l.readRow(ctx, "SELECT "+l.d.now, at) })
}

// checkDurability checks whether a crash of the machine can undo grants.
func (l *doctorRun) checkDurability(ctx context.Context) error {
	var off string
	switch l.d.dialect {
	case MySQL:
		engine, err := l.tableEngine(ctx)
		if err != nil {
			return err
		}
		if engine != "" && engine != "InnoDB" {
			l.Add("durability", driver.VerdictWarning, "its tables are of the engine "+engine+", which may lose grants in a crash that somebody relies on",
				"ALTER TABLE "+l.d.in("holdfast_lock")+" ENGINE = InnoDB, and so the others")
			return nil
		}
		var flush, log, sync int
		if err := l.readRow(ctx, "SELECT @@global.innodb_flush_log_at_trx_commit, @@global.log_bin, @@global.sync_binlog", &flush, &log, &sync); err != nil {
			if l.d.kindOf(err) != misset {
				return err
			}
			l.Add("durability", driver.VerdictWarning, "it does not tell whether a crash undoes grants that somebody relies on: "+err.Error(),
				"take a server of MySQL or MariaDB")
			return nil
		}
		switch {
		case flush != 1:
			off = "set innodb_flush_log_at_trx_commit to 1"
		case log != 0 && sync != 1: // a crash rolls back what the binlog lacks
			off = "set sync_binlog to 1, as log_bin is on"
		}
	case SQLite:
		var mode string
		if err := l.readRow(ctx, "PRAGMA journal_mode", &mode); err != nil {
			return err
		}
		if mode == "off" || mode == "memory" {
			off = "PRAGMA journal_mode = wal"
			break
		}
		l.OK("durability", "journal %s: a grant survives the end of any process; a crash of the machine ends its holders as well", mode)
		return nil
	}
	if off != "" {
		l.Add("durability", driver.VerdictFault, "a crash undoes grants that somebody relies on", off)
		return nil
	}
	l.OK("durability", "a grant is on disk before anybody relies on it")
	return nil
}

// tableEngine returns the engine of the lock table on MySQL; empty: there is no such table.
func (l *doctorRun) tableEngine(ctx context.Context) (name string, err error) {
	look := l.d.translate(engineMySQL)
	err = l.conn.QueryRowContext(ctx, look.text, look.orderArgs([]any{l.d.in("holdfast_lock")})...).Scan(&name)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return name, err
}

func (l *doctorRun) checkSchema(ctx context.Context) error {
	err := l.d.checkVersion(ctx, l.conn)
	if err == nil {
		l.OK("schema", "version %d", version)
	}
	return err
}

// checkPermissions tries statements that match no row. On SQLite it also writes without a change.
func (l *doctorRun) checkPermissions(ctx context.Context) error {
	err := l.tryStatements(ctx)
	if err != nil && l.d.raiseLevel(err) {
		err = l.tryStatements(ctx)
	}
	if err == nil && l.d.dialect == SQLite {
		err = l.d.tryWrite(ctx, l.conn)
	}
	if err == nil {
		l.OK("rights", "all that locks need")
	}
	return err
}

func (l *doctorRun) tryStatements(ctx context.Context) error {
	tx, err := l.d.beginTx(ctx, l.conn)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := execCount(ctx, tx, l.d.stir, "", 0, 0); err != nil {
		return err
	}
	_, err = execCount(ctx, tx, l.d.leave, "", "")
	return err
}
