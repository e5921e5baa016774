package postgres

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// visitTime bounds how long a waiter stays at the turnstile. A blocked statement has a snapshot, which keeps dead rows of the whole
	// database from being cleaned up, and after a second the server looks for deadlocks and may log the wait.
	visitTime = 900 * time.Millisecond
	// ticketTime is the time that a waiter stays at the turnstile without a ticket. Most waits are over by then.
	ticketTime = 50 * time.Millisecond
	// turnPoll is the time between two polls of a waiter that blocks at the turnstile: somebody may have that and not come for the lock.
	turnPoll = 500 * time.Millisecond
	// entryTTL bounds what a waiter is granted at the turnstile until it confirms, or renews: it may have died while it was blocked.
	entryTTL = 2 * time.Second
	// passTime bounds the time for which a holder keeps the turnstile, and so a connection. The next one there then waits for the row.
	passTime = 200 * time.Millisecond

	// maxEars is the default of Options.MaxWaitConns.
	maxEars = 4
	// earRest is the time that a connection stays open for the next waiter.
	earRest = 5 * time.Second
	// earRetry is the time without an attempt to open a connection after one has failed.
	earRetry = 5 * time.Second
)

// ears are the connections on which the waiters of a driver block at turnstiles. Each has its session for itself, until it has left
// the turnstile.
type ears struct {
	mu   sync.Mutex // guards what follows
	max  int
	open int // also the ones that are being opened
	idle []idleEar
	off  time.Time // until when none is opened
}

type idleEar struct {
	conn  *pgx.Conn
	since time.Time
}

// isReady reports whether a waiter can have a connection now.
func (e *ears) isReady() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.idle) > 0 || e.open < e.max && time.Now().After(e.off)
}

// takeIdle returns an idle connection, or else room for another one.
func (e *ears) takeIdle() (conn *pgx.Conn, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.idle); n > 0 {
		conn = e.idle[n-1].conn
		e.idle = e.idle[:n-1]
		return conn, true
	}
	if e.open < e.max && time.Now().After(e.off) {
		e.open++
		return nil, true
	}
	return nil, false
}

// putBack returns a connection that has no turnstile.
func (e *ears) putBack(conn *pgx.Conn) {
	e.mu.Lock()
	if e.max > 0 {
		e.idle = append(e.idle, idleEar{conn, time.Now()})
		conn = nil
	}
	e.mu.Unlock()
	if conn != nil {
		e.discardConn(conn)
	}
}

// discardConn closes a connection, and with it whatever its session has.
func (e *ears) discardConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
	defer cancel()
	conn.Close(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
}

// closeIdle closes the connections that nobody has needed for a while.
func (e *ears) closeIdle(rest time.Duration) {
	var old []idleEar
	e.mu.Lock()
	for len(e.idle) > 0 && time.Since(e.idle[0].since) >= rest { // the first was used before all others
		old, e.idle = append(old, e.idle[0]), e.idle[1:]
	}
	e.mu.Unlock()
	for _, i := range old {
		e.discardConn(i.conn)
	}
}

// pauseOpening has no connection opened for a while.
func (e *ears) pauseOpening() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.off = time.Now().Add(earRetry)
}

// noteFailure gives room back: no connection was opened. No other is for a while if that could not be, and never again after errNoTurnstile.
func (e *ears) noteFailure(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	switch {
	case errors.Is(err, errNoTurnstile):
		e.max = 0
	case !errors.Is(err, context.Canceled): // its wait was over before
		e.off = time.Now().Add(earRetry)
	}
}

// close closes the idle connections, and has the others closed when they are put back.
func (e *ears) close() {
	e.mu.Lock()
	e.max = 0
	e.mu.Unlock()
	e.closeIdle(0)
}

// errNoTurnstile is the reason for which the turnstile is of no use: what one connection locks, another has as well, or keeps.
var errNoTurnstile = errors.New("connections do not lead to sessions of their own")

// earSQL prepares a session for the turnstile, unless a pooler may give it to another client: then it returns no row.
const earSQL = `SELECT set_config('lock_timeout', $1::text, false), set_config('statement_timeout', '0', false),
	set_config('default_transaction_isolation', 'read committed', false) WHERE pg_backend_pid() = $2::bigint`

// openEar opens a connection for the turnstile.
func (d *Driver) openEar(ctx context.Context) (conn *pgx.Conn, err error) {
	defer func() {
		if err != nil {
			d.ears.noteFailure(err)
		}
	}()
	if conn, err = d.dialConn(ctx, func(string) {}); err != nil {
		return nil, err
	}
	pid := conn.PgConn().PID()
	if pid == d.backend.Load() { // all connections share one session
		err = errNoTurnstile
	} else {
		ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(time.Minute, pace.Alone))
		defer cancel()
		var tag pgconn.CommandTag
		if tag, err = conn.Exec(ctx, earSQL, pgx.QueryExecModeExec, visitTime.String(), int64(pid)); err == nil && tag.RowsAffected() == 0 {
			err = errNoTurnstile
		}
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
		defer cancel()
		conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// visit is one wait at the turnstile, in a goroutine of its own.
type visit struct {
	begun time.Time
	stop  context.CancelFunc // cuts the connection
	done  chan struct{}      // closed when there is an answer, or never will be

	mu    sync.Mutex // guards what follows
	conn  *pgx.Conn  // has sent the statement; nil: not yet, or no more
	ended bool       // nobody waits for the answer, so that ear is set no more
	ear   *pgx.Conn  // its session has the turnstile; nil: none has. The owner of the visit gives it back

	// What follows is for the owner of the visit, once done is closed.
	answer reply[answer]
	err    error
	heard  bool // the claim knows the answer
	looks  int  // at the row, since it is through
	tells  bool // the claim is to be told when the row is handed to it
}

// isOver reports whether there is an answer, or never will be.
func (v *visit) isOver() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

// ticketChannel returns what the ticket of a claim has for a channel while it is at the turnstile, or has that. The server notifies a waiter that
// blocks only if nobody comes through, and a waiter that is through only after a while, as it looks at the row often before.
func (v *visit) ticketChannel(listens *string) *string {
	where := "-"
	if v.heard {
		where = "+"
		v.tells = listens != nil && time.Since(v.begun) >= ticketTime
	}
	if listens != nil && (v.tells || !v.heard) {
		where += *listens
	}
	return &where
}

// entered is a row that enter returns.
type entered struct {
	Blocked *bool // at the turnstile; nil: it is not through
	answer
}

func readEntered(row pgx.CollectableRow) (e entered, err error) {
	if err = row.Scan(&e.Blocked, &e.Token, &e.Owner, &e.Holder, &e.Age, &e.Left, &e.Waiters); err == nil {
		err = e.check()
	}
	return e, err
}

// startVisit sends c to the turnstile, and reports whether there is a connection for that.
func (c *claim) startVisit() bool {
	conn, ok := c.d.ears.takeIdle()
	if !ok {
		return false
	}
	v := &visit{begun: time.Now(), done: make(chan struct{})}
	ctx, stop := context.WithTimeout(c.d.calls.Work, visitTime+pace.RequestTime(c.req.TTL, pace.Alone))
	v.stop = stop
	c.visit = v
	args := []any{c.req.Key, c.owner, driverkit.InMicros(min(c.req.TTL, entryTTL)), c.holder, driverkit.InMicros(grace), driverkit.InMicros(place)}
	c.d.calls.Go(func() {
		defer stop()
		v.run(ctx, c.d, conn, args)
		close(v.done)
		select {
		case c.wake <- struct{}{}:
		default:
		}
	})
	return true
}

// run waits at the turnstile, with conn or a connection that it opens.
func (v *visit) run(ctx context.Context, d *Driver, conn *pgx.Conn, args []any) {
	if conn == nil {
		if conn, v.err = d.openEar(ctx); v.err != nil {
			return
		}
	}
	v.mu.Lock()
	ended := v.ended
	v.conn = conn
	v.mu.Unlock()
	if ended {
		d.ears.putBack(conn)
		return
	}
	r, failed := sendStatement(ctx, d, conn, readEntered, d.schema.enter, args)
	if failed == nil && len(r.rows) == 0 {
		failed = &failure{err: errNoRow}
	}
	through := failed == nil && r.rows[0].Blocked != nil
	if through {
		v.answer = reply[answer]{rows: []answer{r.rows[0].answer}, sent: r.sent}
	}
	v.mu.Lock()
	ended = v.ended
	v.conn = nil
	if through && !ended {
		v.ear = conn
	}
	v.mu.Unlock()
	if failed != nil {
		v.err = failed
		if errorCode(failed) == queryCanceled && ended {
			d.quitTurnstile(ctx, conn) // it may have come through before
		} else {
			d.ears.pauseOpening()
			d.ears.discardConn(conn)
		}
		return
	}
	d.notesCrowd(args[0].(string), !through || *r.rows[0].Blocked)
	switch {
	case ended: // the request to cancel it may be on its way yet, and would hit the next statement
		d.ears.discardConn(conn)
	case !through:
		d.ears.putBack(conn)
	}
}

// notesCrowd notes whether others were at the turnstile of the name.
func (d *Driver) notesCrowd(name string, crowd bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if crowd {
		d.crowded[name] = time.Now()
	} else {
		delete(d.crowded, name)
	}
}

// isCrowded reports whether others were at the turnstile of the name a moment ago, so that a claim goes there at once.
func (d *Driver) isCrowded(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.crowded[name]
	return ok && time.Since(at) < visitTime
}

// forgetCrowds forgets the names that have no crowd any more.
func (d *Driver) forgetCrowds() {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.crowded, func(_ string, at time.Time) bool { return time.Since(at) >= visitTime })
}

// end ends a wait at the turnstile. It returns the connection that has come through before, which the caller gives back, and whether the
// outcome is known: the statement may be executed late otherwise.
func (v *visit) end() (ear *pgx.Conn, known bool) {
	v.mu.Lock()
	v.ended = true
	conn, ear := v.conn, v.ear
	v.mu.Unlock()
	if ear != nil { // whether or not done is closed yet
		return ear, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), pace.LastWords())
	defer cancel()
	if conn != nil {
		conn.PgConn().CancelRequest(ctx) // whether it has arrived, the answer tells
	} else if !v.isOver() {
		v.stop()
	}
	select {
	case <-v.done:
		return nil, !isDoubtful(v.err)
	case <-ctx.Done():
		v.stop()
		return nil, false
	}
}

// quitTurnstile gives back a connection that has a turnstile, or may have one.
func (d *Driver) quitTurnstile(ctx context.Context, conn *pgx.Conn) {
	if _, err := sendStatement(ctx, d, conn, pgx.RowTo[any], "SELECT pg_advisory_unlock_all()", nil); err != nil {
		d.ears.discardConn(conn)
		return
	}
	d.ears.putBack(conn)
}

// quitLater is quitTurnstile in the background. Its caller is inside a call.
func (d *Driver) quitLater(conn *pgx.Conn) {
	d.calls.Go(func() {
		ctx, cancel := context.WithTimeout(d.calls.Work, pace.RequestTime(time.Minute, pace.Alone))
		defer cancel()
		d.quitTurnstile(ctx, conn)
	})
}

// passage is the turnstile that the holder of a lock has.
type passage struct {
	conn  *pgx.Conn
	timer *time.Timer
}

// holdTurnstile notes that the grant of owner has a turnstile, until its release, or for a moment.
func (d *Driver) holdTurnstile(owner string, conn *pgx.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passages[owner] = passage{conn, time.AfterFunc(passTime, func() {
		if d.calls.Enter() != nil {
			return // Close closes the connection
		}
		defer d.calls.Leave()
		if conn := d.takeTurnstile(owner); conn != nil {
			d.quitLater(conn)
		}
	})}
}

// takeTurnstile returns the connection that has the turnstile for the grant of owner, and forgets that; nil: none has.
func (d *Driver) takeTurnstile(owner string) *pgx.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.passages[owner]
	if !ok {
		return nil
	}
	delete(d.passages, owner)
	p.timer.Stop()
	return p.conn
}

// freeThrough releases what g may have, and leaves the turnstile, in one statement on the session that has that. It reports whether
// the release is confirmed.
func (d *Driver) freeThrough(ctx context.Context, conn *pgx.Conn, g driver.Grant, keep time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(g.TTL, pace.Alone))
	defer cancel()
	bury := d.isDoubted(g.Owner)
	if _, err := sendStatement(ctx, d, conn, pgx.RowTo[any], d.schema.leave, []any{g.Key, g.Owner, driverkit.InMicros(keep), bury}); err != nil {
		d.ears.discardConn(conn)
		return false
	}
	d.ears.putBack(conn)
	if bury {
		d.noteDoubt(g.Owner, false)
	}
	return true
}

// closeEars closes the connections of turnstiles. No call is under way.
func (d *Driver) closeEars() {
	d.ears.close()
	d.mu.Lock()
	left := d.passages
	d.passages = nil
	d.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range left {
		p.timer.Stop()
		all.Go(func() { d.ears.discardConn(p.conn) })
	}
	all.Wait()
}
