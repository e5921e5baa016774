package postgres

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// visitTime bounds the time that a waiter blocks at the turnstile. A blocked statement has a snapshot,
	// which keeps the server from cleaning up dead rows of the whole database. After a second the server also
	// looks for deadlocks and may log the wait.
	visitTime = 900 * time.Millisecond
	// ticketTime is the time that a waiter blocks at the turnstile before it asks for a ticket. Most waits are
	// shorter.
	ticketTime = 50 * time.Millisecond
	// turnPoll is the poll interval of a waiter that blocks at the turnstile: the session that has it may
	// never ask for the lock.
	turnPoll = 500 * time.Millisecond
	// entryTTL is the TTL of a grant at the turnstile until the claim confirms or renews it: the waiter may
	// have died while it was blocked.
	entryTTL = 2 * time.Second
	// passTime bounds the time for which a holder keeps the turnstile, and so a connection. Then the next
	// waiter passes the turnstile and waits for the row.
	passTime = 200 * time.Millisecond

	// defaultWaitConns is the default of Options.MaxWaitConns.
	defaultWaitConns = 4
	// waitConnRest is the time that an idle connection stays open for the next waiter.
	waitConnRest = 5 * time.Second
	// waitConnRetry is the pause after a failed attempt to open a connection.
	waitConnRetry = 5 * time.Second
)

// waitConns holds the connections on which waiters of a driver block at turnstiles. A waiter has its session to
// itself until it has left the turnstile.
type waitConns struct {
	mu   sync.Mutex // guards the fields below
	max  int
	open int // includes connections that are being opened
	idle []idleWaitConn
	off  time.Time // no connection is opened before
}

type idleWaitConn struct {
	conn  *pgx.Conn
	since time.Time
}

// isReady reports whether a connection is free for a waiter.
func (e *waitConns) isReady() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.idle) > 0 || e.open < e.max && time.Now().After(e.off)
}

// takeIdle returns an idle connection. If there is none, it reserves room for a new one; ok is false without
// room.
func (e *waitConns) takeIdle() (conn *pgx.Conn, ok bool) {
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

// putBack returns a connection whose session has no turnstile.
func (e *waitConns) putBack(conn *pgx.Conn) {
	e.mu.Lock()
	if e.max > 0 {
		e.idle = append(e.idle, idleWaitConn{conn, time.Now()})
		conn = nil
	}
	e.mu.Unlock()
	if conn != nil {
		e.discardConn(conn)
	}
}

// discardConn closes a connection, and so frees the locks of its session.
func (e *waitConns) discardConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
	defer cancel()
	conn.Close(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
}

// closeIdle closes connections that have been idle for rest.
func (e *waitConns) closeIdle(rest time.Duration) {
	var old []idleWaitConn
	e.mu.Lock()
	for len(e.idle) > 0 && time.Since(e.idle[0].since) >= rest { // in order of last use
		old, e.idle = append(old, e.idle[0]), e.idle[1:]
	}
	e.mu.Unlock()
	for _, i := range old {
		e.discardConn(i.conn)
	}
}

// pauseOpening stops the opening of connections for a while.
func (e *waitConns) pauseOpening() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.off = time.Now().Add(waitConnRetry)
}

// noteFailure frees the room of a connection that was not opened. After a failure no other is opened for a
// while, and after errNoTurnstile never again.
func (e *waitConns) noteFailure(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	switch {
	case errors.Is(err, errNoTurnstile):
		e.max = 0
	case !errors.Is(err, context.Canceled): // no failure: its wait ended before
		e.off = time.Now().Add(waitConnRetry)
	}
}

// close closes the idle connections, and the others when they are put back.
func (e *waitConns) close() {
	e.mu.Lock()
	e.max = 0
	e.mu.Unlock()
	e.closeIdle(0)
}

// errNoTurnstile reports that advisory locks do not work here: two connections may share a lock, or a lock
// outlives its client.
var errNoTurnstile = errors.New("connections do not lead to sessions of their own")

// waitConnSQL prepares a session for the turnstile. Behind a pooler, which may give the session to another client,
// it returns no row.
const waitConnSQL = `SELECT set_config('lock_timeout', $1::text, false), set_config('statement_timeout', '0', false),
	set_config('default_transaction_isolation', 'read committed', false) WHERE pg_backend_pid() = $2::bigint`

// openWaitConn opens a connection for waits at the turnstile.
func (d *Driver) openWaitConn(ctx context.Context) (conn *pgx.Conn, err error) {
	defer func() {
		if err != nil {
			d.waitConns.noteFailure(err)
		}
	}()
	if conn, err = d.dialConn(ctx, func(string) {}); err != nil {
		return nil, err
	}
	if err = d.prepareWaitConn(ctx, conn); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
		defer cancel()
		conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// prepareWaitConn prepares the session of conn for the turnstile. It returns errNoTurnstile if conn has no session
// of its own.
func (d *Driver) prepareWaitConn(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	shared, err := d.sharesSession(ctx, conn)
	switch {
	case err != nil:
		return err
	case shared:
		return errNoTurnstile
	}
	tag, err := conn.Exec(ctx, waitConnSQL, pgx.QueryExecModeExec, visitTime.String(), int64(conn.PgConn().PID()))
	if err == nil && tag.RowsAffected() == 0 {
		err = errNoTurnstile
	}
	return err
}

// visit is one wait of a claim at the turnstile, in a separate goroutine.
type visit struct {
	begun time.Time
	stop  context.CancelFunc // cuts the connection
	done  chan struct{}      // closed when the wait is over, with an answer or without

	mu       sync.Mutex // guards the fields below
	conn     *pgx.Conn  // the connection that has sent the statement; nil: not sent, or ended
	sent     time.Time  // when the statement was sent; zero: not yet
	ended    bool       // nobody waits for the answer: waitConn must not be set
	waitConn *pgx.Conn  // the connection whose session has the turnstile; nil: none. The visit's owner returns it

	// The owner of the visit reads the fields below once done is closed.
	answer reply[answer]
	err    error
	heard  bool // the claim has read the answer
	looks  int  // polls of the row since the claim came through
	tells  bool // the server notifies the claim when the lock is handed to it
}

// isOver reports whether the wait has ended, with or without an answer.
func (v *visit) isOver() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

// isBlocked reports whether the statement probably blocks at the turnstile: it was sent long enough ago to have
// arrived, and not so long ago that it may have left.
func (v *visit) isBlocked() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	age := time.Since(v.sent)
	return v.conn != nil && age >= ticketTime/2 && age < visitTime
}

// ticketChannel returns the channel for the claim's ticket while the claim waits at the turnstile or has it.
// The server notifies a blocked waiter only if no waiter comes through, so a ticket must not note a block before
// the claim is in the queue there, nor after it has left: waiters behind it would come through first. The server
// notifies a waiter that came through only after a while, because that waiter polls the row often at first.
func (v *visit) ticketChannel(listens *string) *string {
	where := ""
	switch {
	case v.heard:
		where = "+"
		v.tells = listens != nil && time.Since(v.begun) >= ticketTime
	case v.isBlocked():
		where = "-"
	default:
		return listens
	}
	if listens != nil && (v.tells || !v.heard) {
		where += *listens
	}
	return &where
}

// enterRow is a row that enter returns.
type enterRow struct {
	Blocked *bool // at the turnstile; nil: it is not through
	answer
}

func readEntered(row pgx.CollectableRow) (e enterRow, err error) {
	if err = row.Scan(&e.Blocked, &e.Token, &e.Owner, &e.Holder, &e.Age, &e.Left, &e.Waiters); err == nil {
		err = e.check()
	}
	return e, err
}

// startVisit sends c to the turnstile. It reports whether there was a connection for that.
func (c *claim) startVisit() bool {
	conn, ok := c.d.waitConns.takeIdle()
	if !ok {
		return false
	}
	v := &visit{begun: time.Now(), done: make(chan struct{})}
	ctx, stop := context.WithTimeout(c.d.calls.Work, visitTime+pace.RequestTime(c.req.TTL, pace.Alone))
	v.stop = stop
	c.visit = v
	args := []any{c.req.Key, c.owner, driverkit.ToMicros(min(c.req.TTL, entryTTL)), c.holder, driverkit.ToMicros(grace), driverkit.ToMicros(place)}
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

// run waits at the turnstile, on conn or on a new connection.
func (v *visit) run(ctx context.Context, d *Driver, conn *pgx.Conn, args []any) {
	if conn == nil {
		if conn, v.err = d.openWaitConn(ctx); v.err != nil {
			return
		}
	}
	v.mu.Lock()
	ended := v.ended
	v.conn, v.sent = conn, time.Now()
	v.mu.Unlock()
	if ended {
		d.waitConns.putBack(conn)
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
		v.waitConn = conn
	}
	v.mu.Unlock()
	if failed != nil {
		v.err = failed
		if errorCode(failed) == queryCanceled && ended {
			d.quitTurnstile(ctx, conn) // it may have come through already
		} else {
			d.waitConns.pauseOpening()
			d.waitConns.discardConn(conn)
		}
		return
	}
	d.seesOtherWaiters(args[0].(string), !through || *r.rows[0].Blocked)
	switch {
	case ended: // a late cancel request would hit the next statement
		d.waitConns.discardConn(conn)
	case !through:
		d.waitConns.putBack(conn)
	}
}

// seesOtherWaiters records whether others were at the turnstile of the name.
func (d *Driver) seesOtherWaiters(name string, crowd bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if crowd {
		d.crowded[name] = time.Now()
	} else {
		delete(d.crowded, name)
	}
}

// isCrowded reports whether other clients waited at the turnstile of the name just now. Then a claim goes there
// at once.
func (d *Driver) isCrowded(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.crowded[name]
	return ok && time.Since(at) < visitTime
}

// forgetCrowds forgets the names whose crowd was seen too long ago.
func (d *Driver) forgetCrowds() {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.crowded, func(_ string, at time.Time) bool { return time.Since(at) >= visitTime })
}

// end ends a wait at the turnstile. It returns the connection that passed it, which the caller puts back. known
// is false if the statement may still be executed.
func (v *visit) end() (waitConn *pgx.Conn, known bool) {
	v.mu.Lock()
	v.ended = true
	conn, waitConn := v.conn, v.waitConn
	v.mu.Unlock()
	if waitConn != nil { // even before done is closed
		return waitConn, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), pace.FinishTime())
	defer cancel()
	if conn != nil {
		conn.PgConn().CancelRequest(ctx) // the statement's answer shows whether it arrived
	} else if !v.isOver() {
		v.stop()
	}
	select {
	case <-v.done:
		return nil, !mayHaveRun(v.err)
	case <-ctx.Done():
		v.stop()
		return nil, false
	}
}

// quitTurnstile leaves the turnstile that conn has, or may have, and puts conn back.
func (d *Driver) quitTurnstile(ctx context.Context, conn *pgx.Conn) {
	if _, err := sendStatement(ctx, d, conn, pgx.RowTo[any], "SELECT pg_advisory_unlock_all()", nil); err != nil {
		d.waitConns.discardConn(conn)
		return
	}
	d.waitConns.putBack(conn)
}

// quitInBackground calls quitTurnstile in the background. The caller is inside a call.
func (d *Driver) quitInBackground(conn *pgx.Conn) {
	d.calls.Go(func() {
		ctx, cancel := context.WithTimeout(d.calls.Work, pace.RequestTime(time.Minute, pace.Alone))
		defer cancel()
		d.quitTurnstile(ctx, conn)
	})
}

// heldTurnstile is a turnstile that a holder keeps.
type heldTurnstile struct {
	conn  *pgx.Conn
	timer *time.Timer
}

// holdTurnstile records that the grant of owner has a turnstile, and keeps it until the release, or for
// passTime.
func (d *Driver) holdTurnstile(owner string, conn *pgx.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passages[owner] = heldTurnstile{conn, time.AfterFunc(passTime, func() {
		if d.calls.Enter() != nil {
			return // Close closes the connection
		}
		defer d.calls.Leave()
		if conn := d.takeTurnstile(owner); conn != nil {
			d.quitInBackground(conn)
		}
	})}
}

// takeTurnstile removes and returns the connection that has the turnstile for the grant of owner; nil: none.
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

// releaseAtTurnstile releases g and leaves the turnstile in one statement, on the session that has the turnstile. It
// reports whether the release is confirmed.
func (d *Driver) releaseAtTurnstile(ctx context.Context, conn *pgx.Conn, g driver.Grant, keep time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(g.TTL, pace.Alone))
	defer cancel()
	bury := d.hasLateStatement(g.Owner)
	if _, err := sendStatement(ctx, d, conn, pgx.RowTo[any], d.schema.leave, []any{g.Key, g.Owner, driverkit.ToMicros(keep), bury}); err != nil {
		d.waitConns.discardConn(conn)
		return false
	}
	d.waitConns.putBack(conn)
	if bury {
		d.noteDoubt(g.Owner, false)
	}
	return true
}

// closeWaitConns closes the connections for turnstiles. No call is in flight.
func (d *Driver) closeWaitConns() {
	d.waitConns.close()
	d.mu.Lock()
	left := d.passages
	d.passages = nil
	d.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range left {
		p.timer.Stop()
		all.Go(func() { d.waitConns.discardConn(p.conn) })
	}
	all.Wait()
}
