package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// querier is what statements run on.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// mostTries is how often a statement is sent whose connection broke.
const mostTries = 3

// busy is a statement that was not sent, as no connection of the pool was free: no fault of the database.
type busy struct{ error }

func (b busy) Unwrap() error { return b.error }

// run calls runOn for the pool that everything but renewals uses.
func (d *Driver) run(ctx context.Context, fn func(querier) error) error {
	return d.runOn(ctx, d.db, fn)
}

// runOn calls fn with a connection of db, and again while the database asks for it: then another's statement was carried out. It does so
// at once if the connection breaks, as one does that a restarted server has left in the pool. If connections for renewals break again and
// again, or cannot be opened, it takes one of the others. So fn may be repeated.
func (d *Driver) runOn(ctx context.Context, db *sql.DB, fn func(querier) error) error {
	if u := unitOf(ctx); u != nil {
		return u.step(fn)
	}
	begun := time.Now()
	for tries := 1; ; tries++ {
		err := d.once(ctx, db, fn)
		if err == nil {
			d.report(nil)
			return nil
		}
		kind := d.kind(err)
		_, poolBusy := errors.AsType[busy](err)
		// A server that takes no writes any more, or does not answer, may be one that another has taken over from, or that the
		// network has forgotten; and the other connections of the pool lead there too.
		stale := kind == readOnly || !poolBusy && errors.Is(ctx.Err(), context.DeadlineExceeded) && time.Since(begun) > pace.Overdue()
		if stale && d.dialect != SQLite {
			d.closeIdle(db)
		}
		if kind == broken && db == d.db && tries == 1 {
			d.warmRenewals() // whose idle connection may have broken with this one
		}
		if kind == broken && tries == mostTries && db != d.db {
			db, tries = d.db, 0
			continue
		}
		if d.raiseLevel(err) {
			continue
		}
		again := kind == yields || kind == broken && tries < mostTries || kind == readOnly && tries == 1 && d.dialect != SQLite
		pause := min(time.Duration(tries-1)*time.Millisecond, pace.ShortPause)
		if kind == yields && d.dialect == SQLite {
			pause = busyPause(ctx, time.Since(begun))
		}
		if again && d.pause(ctx, pause) {
			continue
		}
		if poolBusy {
			return d.states.Unavailable(err)
		}
		down := d.unavailable(d.diagnose(ctx, err))
		if !errors.Is(ctx.Err(), context.Canceled) { // a caller that leaves is no news of the database
			d.report(down)
		}
		return down
	}
}

// busyPause returns how long to wait before another try at a file of SQLite that somebody writes to, of which a statement has waited for
// so long. A write takes well below a millisecond, and whoever has written often does so again at once: longer pauses, as those of
// SQLite's busy_timeout, miss the gaps, and starve whoever wants to queue up. Behind a writer that is slow or stopped they grow, as
// tries cost the processor that it needs.
//
// Where many processes write, the file goes to whoever tries first in a gap. Pauses that have grown lose each gap to newcomers, and so
// what has to be through by some time (hurry) has shorter ones, with room for thousands of tries until then.
func busyPause(ctx context.Context, waited time.Duration) time.Duration {
	end, _ := ctx.Value(hurryKey{}).(time.Time)
	if left := time.Until(end); left > 0 {
		return min(waited/100, left/40000, 5*time.Millisecond) + 30*time.Microsecond + rand.N(70*time.Microsecond)
	}
	return min(waited/100, 5*time.Millisecond) + 50*time.Microsecond + rand.N(200*time.Microsecond)
}

// hurryKey is the key, in the context of a statement, of the time by which it has to be through.
type hurryKey struct{}

// hurry returns a context for statements that come before those of newcomers on a busy file of SQLite, as a lease ends unless they are
// through by end, or others wait for them.
func (d *Driver) hurry(ctx context.Context, end time.Time) context.Context {
	if d.dialect != SQLite {
		return ctx
	}
	return context.WithValue(ctx, hurryKey{}, end)
}

// pause waits, and returns false if ctx ends before. What is in a hurry naps: on Linux a timer of Go takes a whole millisecond in a process
// that has nothing else to do.
func (d *Driver) pause(ctx context.Context, limit time.Duration) bool {
	if ctx.Value(hurryKey{}) == nil || d.prepared == nil || d.prepared.nap == nil || limit > time.Millisecond {
		return driverkit.Sleep(ctx, limit)
	}
	d.prepared.nap(limit)
	return ctx.Err() == nil
}

// whenFree calls fn, and again while another writes to the file of SQLite, until ctx ends: for what no driver's statement does.
func (d *Driver) whenFree(ctx context.Context, fn func() error) error {
	for begun := time.Now(); ; {
		err := fn()
		if err == nil || d.dialect != SQLite || d.kind(err) != yields || !d.pause(ctx, busyPause(ctx, time.Since(begun))) {
			return err
		}
	}
}

// closeIdle closes the connections of a pool that nobody uses, so that the next statement has a new one.
func (d *Driver) closeIdle(db *sql.DB) {
	ctx, cancel := context.WithTimeout(d.calls.Work, pace.LastWords()) // a driver may ask the server whether it is alive
	defer cancel()
	var all sync.WaitGroup
	for range db.Stats().Idle {
		all.Go(func() {
			conn, err := db.Conn(ctx)
			if err == nil {
				discard(conn)
			}
		})
	}
	all.Wait()
}

// discard closes a connection, and not only gives it back to the pool.
func discard(conn *sql.Conn) {
	conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	conn.Close()
}

// once calls fn with a connection of db. One that takes no writes does not go back to the pool.
func (d *Driver) once(ctx context.Context, db *sql.DB, fn func(querier) error) (err error) {
	if d.prepared != nil && d.checked.Load() {
		leave, err := d.prepared.enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
		return fn(d.prepared)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		if s := db.Stats(); ctx.Err() != nil && s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections {
			return busy{fmt.Errorf("no answer in time, and all %d connections of the pool are in use; give it more: %w", s.MaxOpenConnections, err)}
		}
		return err
	}
	defer func() {
		if err != nil && d.kind(err) == readOnly {
			discard(conn)
			return
		}
		conn.Close()
	}()
	if err := d.begin(ctx, conn); err != nil {
		return err
	}
	if !d.manual.Load() && sql.IsolationLevel(d.level.Load()) == sql.LevelDefault {
		return fn(conn)
	}
	tx, err := d.beginTx(ctx, conn)
	if err != nil {
		return err
	}
	defer tx.Rollback() // says nothing new: the transaction is over, or its error is on its way
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// raiseLevel reports whether err was cured by another level of isolation: a binlog of statements takes no change below REPEATABLE READ.
func (d *Driver) raiseLevel(err error) bool {
	return d.kind(err) == unlogged && d.level.CompareAndSwap(int32(sql.LevelDefault), int32(sql.LevelRepeatableRead))
}

// beginTx begins a transaction at the level that the database takes.
func (d *Driver) beginTx(ctx context.Context, conn *sql.Conn) (*sql.Tx, error) {
	return conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.IsolationLevel(d.level.Load())})
}

// prepared is statements that are compiled once for each connection, which for SQLite, where that is done in this process, is most of
// the work. Elsewhere a pooler may stand before the server, which does not bear them.
type prepared struct {
	db *sql.DB
	// room has a place for each connection of a pool that only the driver uses, and whose statements wait for nothing. Then contexts end
	// the wait for a place, and need not watch each statement, which costs as much as the statement itself. nil: statements may wait.
	room chan struct{}
	nap  func(time.Duration) // blocks for less than a millisecond; nil: nothing does better than a timer

	mu    sync.Mutex // guards what follows
	stmts map[string]*sql.Stmt
}

// instant is implemented by the sql driver of a pool that only a Driver of this package uses, and none of whose statements waits, not for
// another writer either. Package sqlite has one.
type instant interface {
	// Nap blocks for less than a millisecond.
	Nap(d time.Duration)
}

// newPrepared returns an empty shelf for the statements of a pool.
func newPrepared(db *sql.DB) *prepared {
	l := &prepared{db: db, stmts: make(map[string]*sql.Stmt)}
	if driver, ok := db.Driver().(instant); ok {
		l.room, l.nap = make(chan struct{}, max(db.Stats().MaxOpenConnections, 1)), driver.Nap
	}
	return l
}

// enter waits until a connection is free, and returns what gives it back.
func (l *prepared) enter(ctx context.Context) (leave func(), err error) {
	if l.room == nil {
		return func() {}, nil // the pool waits
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case l.room <- struct{}{}:
		return func() { <-l.room }, nil
	case <-ctx.Done():
		return nil, busy{fmt.Errorf("no answer in time, and all %d connections to the file are in use: %w", cap(l.room), ctx.Err())}
	}
}

// detach returns the context for one statement.
func (l *prepared) detach(ctx context.Context) context.Context {
	if l.room == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// shelf is how many statements are kept: those of renewals differ by how many locks they are for.
const shelf = 64

// of is the statement with that text; nil: it is not kept.
func (l *prepared) of(ctx context.Context, text string) *sql.Stmt {
	l.mu.Lock()
	s, full := l.stmts[text], len(l.stmts) >= shelf
	l.mu.Unlock()
	if s != nil || full {
		return s
	}
	s, err := l.db.PrepareContext(ctx, text)
	if err != nil {
		return nil // it fails without, too
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.stmts[text]; other != nil || l.stmts == nil {
		s.Close() // another was faster, or the driver is closed
		return other
	}
	l.stmts[text] = s
	return s
}

// preparedTx is a transaction with the statements that are kept.
type preparedTx struct {
	kept *prepared
	*sql.Tx
}

// of returns the statement with that text; nil: it is not kept.
func (t preparedTx) of(ctx context.Context, text string) *sql.Stmt {
	t.kept.mu.Lock()
	s := t.kept.stmts[text]
	t.kept.mu.Unlock()
	if s == nil {
		return nil
	}
	return t.StmtContext(ctx, s)
}

// ExecContext implements querier.
func (t preparedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx = t.kept.detach(ctx)
	if s := t.of(ctx, query); s != nil {
		return s.ExecContext(ctx, args...)
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

// QueryRowContext implements querier.
func (t preparedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx = t.kept.detach(ctx)
	if s := t.of(ctx, query); s != nil {
		return s.QueryRowContext(ctx, args...)
	}
	return t.Tx.QueryRowContext(ctx, query, args...)
}

// ExecContext implements querier.
func (l *prepared) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx = l.detach(ctx)
	if s := l.of(ctx, query); s != nil {
		return s.ExecContext(ctx, args...)
	}
	return l.db.ExecContext(ctx, query, args...)
}

// QueryContext implements querier.
func (l *prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx = l.detach(ctx)
	if s := l.of(ctx, query); s != nil {
		return s.QueryContext(ctx, args...)
	}
	return l.db.QueryContext(ctx, query, args...)
}

// QueryRowContext implements querier.
func (l *prepared) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx = l.detach(ctx)
	if s := l.of(ctx, query); s != nil {
		return s.QueryRowContext(ctx, args...)
	}
	return l.db.QueryRowContext(ctx, query, args...)
}

// close forgets all statements.
func (l *prepared) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.stmts {
		s.Close()
	}
	l.stmts = nil
}

// begin looks once whether the tables are those that this package works with, and how the sessions are set up.
func (d *Driver) begin(ctx context.Context, q querier) error {
	if d.checked.Load() {
		return nil
	}
	if d.session != "" {
		var one int
		switch err := q.QueryRowContext(ctx, d.session).Scan(&one); {
		case err == nil:
			d.manual.Store(true)
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
	}
	if err := d.fits(ctx, q); err != nil {
		return err
	}
	d.checked.Store(true)
	return nil
}

// exec runs a statement that changes something, and says how many rows it has found.
func exec(ctx context.Context, q querier, s statement, args ...any) (int64, error) {
	res, err := q.ExecContext(ctx, s.text, s.with(args)...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// do runs one statement that may be repeated, and says whether it has changed anything. Where an attempt had no answer, that may have
// changed what the next one does not find any more.
func (d *Driver) do(ctx context.Context, s statement, args ...any) (found bool, err error) {
	err = d.run(ctx, func(q querier) error {
		n, err := exec(ctx, q, s, args...)
		found = n > 0
		if err != nil && d.kind(err) == there {
			return nil
		}
		return err
	})
	return found, err
}

// execTake runs a statement that takes a lock unread, and returns the token that the lock has by it, and whether it was taken.
func (t *tables) execTake(ctx context.Context, q querier, s statement, args ...any) (token int64, taken bool, err error) {
	if t.returned != "" {
		err = q.QueryRowContext(ctx, s.text, s.with(args)...).Scan(&token)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, false, nil
		}
		return token, err == nil, err
	}
	res, err := q.ExecContext(ctx, s.text, s.with(args)...)
	if err != nil {
		if t.kind(err) == there {
			err = nil
		}
		return 0, false, err
	}
	n, err := res.RowsAffected()
	if err == nil && n > 0 {
		token, err = res.LastInsertId()
	}
	return token, err == nil && n > 0, err
}

// all runs a statement that returns rows, and calls scan for each.
func all(ctx context.Context, q querier, s statement, args []any, scan func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, s.text, s.with(args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// kind is what an error means for the statement that it is of.
type kind int

const (
	fails    kind = iota
	yields        // another's statement was carried out, and this one was not
	cut           // somebody, or a limit of the server, has ended the statement
	locked        // another has the row, and it was not waited for
	broken        // the connection has ended
	there         // the row is there already
	denied        // for want of rights
	alien         // for want of the right user or password
	lacks         // for want of tables
	nameless      // there is no such database
	foreign       // there is no such database, or this user has no rights on it
	misset        // a setting that the server does not have
	unlogged      // its binlog takes no change at this level of isolation
	unmarked      // there is no such savepoint, and so not the transaction in which it was set
	readOnly
	full
	crowded
	worn     // the disk takes nothing
	unopened // the file cannot be opened
	spoiled  // the file is no database
)

// kinds are by the number of an error of MySQL, and by that of SQLite.
var kinds = map[string]kind{
	"mysql 1213": yields, "mysql 1205": yields, "mysql 1020": yields, "mysql 3058": yields, "mysql 3572": locked, "mysql 1062": there,
	"mysql 1317": cut, "mysql 1969": cut, "mysql 3024": cut, "mysql 1142": denied, "mysql 1143": denied,
	"mysql 1044": foreign, "mysql 1227": denied, "mysql 1370": denied, "mysql 1045": alien, "mysql 1698": alien, "mysql 1146": lacks,
	"mysql 1305": unmarked, "mysql 1665": unlogged, "mysql 1193": misset, "mysql 1231": misset, "mysql 1049": nameless, "mysql 1046": nameless,
	"mysql 1290": readOnly, "mysql 1792": readOnly, "mysql 1836": readOnly, "mysql 1036": readOnly,
	"mysql 1114": full, "mysql 1021": full, "mysql 1040": crowded, "mysql 1203": crowded, "mysql 1053": broken, "mysql 1927": broken,
	"mysql 1047": broken, // a node of Galera that has left its cluster

	"sqlite 5": yields, "sqlite 6": yields, "sqlite 8": readOnly, "sqlite 10": worn, "sqlite 13": full,
	"sqlite 14": unopened, "sqlite 11": spoiled, "sqlite 26": spoiled,
}

var mysqlError = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|: )Error (\d+)(?: \(\w+\))?: `) })

// kind sorts an error by what every driver of the database shows, so that none has to be imported.
func (s speech) kind(err error) kind {
	text := err.Error()
	switch {
	case s.name == "MySQL":
		if said := mysqlError().FindStringSubmatch(text); said != nil {
			return kinds["mysql "+said[1]]
		}
	case strings.Contains(text, "no such table"):
		return lacks
	default:
		if said, ok := errors.AsType[interface {
			error
			Code() int
		}](err); ok {
			return kinds["sqlite "+strconv.Itoa(said.Code()&0xff)]
		}
		for words, k := range map[string]kind{
			"database is locked": yields, "database table is locked": yields, "readonly database": readOnly, "disk is full": full,
			"unable to open database file": unopened, "file is not a database": spoiled, "malformed": spoiled,
		} {
			if strings.Contains(text, words) {
				return k
			}
		}
		return fails
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fails
	}
	return broken // the server has not said anything
}

// diagnose says what err means and what mends it.
func (d *Driver) diagnose(ctx context.Context, err error) error {
	lasts := func(format string, args ...any) error { return driverkit.Refusal{Err: fmt.Errorf(format, args...)} }
	switch d.kind(err) {
	case alien:
		return lasts("%w: %w; correct user and password", driver.ErrAuth, err)
	case denied:
		return lasts("%w: %w; grant SELECT, INSERT, UPDATE, DELETE on the tables %s*", driver.ErrAuth, err, d.prefix)
	case foreign:
		return lasts("%w: %w; correct the name of the database, or grant SELECT, INSERT, UPDATE, DELETE on its tables %s*", driver.ErrAuth, err, d.prefix)
	case lacks:
		return lasts("there are no tables %s* for locks, or not all of them: %w; make them with Driver.Migrate, or holdfast migrate", d.prefix, err)
	case nameless:
		return lasts("%w; create it, or name another", err)
	case misset:
		return lasts("%w; correct the settings of the sessions", err)
	case readOnly:
		if d.dialect == SQLite {
			return lasts("%w: %w; let this user write to the file, to those beside it that end in -wal and -shm, and to its folder", driver.ErrAuth, err)
		}
		return fmt.Errorf("no writes are taken: %w; name the primary if this is a replica, or else set the read-only setting of server, user or session off", err)
	case full:
		return fmt.Errorf("%w; make room on the disk, as locks that are held lapse meanwhile", err)
	case worn:
		return fmt.Errorf("%w; the disk is full or fails: make room on it or replace it, because held locks lapse meanwhile", err)
	case crowded:
		return fmt.Errorf("%w; raise max_connections, or bound the pools of the programs", err)
	case unopened:
		return lasts("%w; let this user read and write the file and its folder, which has to be there", err)
	case spoiled:
		return lasts("%w; name another file, or remove this one if it is of no use", err)
	}
	switch {
	case errors.Is(err, errVersion):
		return driverkit.Refusal{Err: err}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", err)
	}
	return err
}

// unavailable says that the database has not answered, and why.
func (d *Driver) unavailable(err error) error {
	if errors.Is(err, driver.ErrUnavailable) {
		return err
	}
	return d.states.Unavailable(nil, driver.NodeError{Node: d.node, Err: err})
}

// report notes the outcome of a statement.
func (d *Driver) report(err error) {
	if d.calls.Alive.Err() == nil {
		d.states.Report(0, err)
	}
}
