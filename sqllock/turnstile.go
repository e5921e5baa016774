package sqllock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// defaultWaitConns is the default number of connections on which a client's waiters block.
	defaultWaitConns = 4
	// ticketAfter is the time that a waiter blocks at the turnstile before it writes a ticket.
	ticketAfter = 50 * time.Millisecond
	// blockedLook bounds the poll interval of a waiter at the turnstile. It is below grace, so that a lock
	// handed to the waiter's ticket is confirmed in time.
	blockedLook = 800 * time.Millisecond
	// rearmTime bounds one GET_LOCK, so that no session waits for a client that is gone.
	rearmTime = 4 * time.Second
	// reserved is the time for which a lock freed inside the turnstile is reserved for the next client there.
	reserved = 500 * time.Millisecond
	// crowdedTime is the time for which a client goes to the turnstile at once, after it found the lock taken.
	crowdedTime = time.Second
	// avoidTime is the time for which a client avoids a turnstile that admitted no waiter while the lock was
	// free.
	avoidTime = 10 * time.Second
	// offTime is the time for which waiters poll after GET_LOCK has failed, before one of them tries it again.
	offTime = time.Minute
	// longInside is the time after which a holder gives up its connection inside the turnstile if another
	// waiter of its client needs one.
	longInside = 2 * time.Second
)

// turnstile is the queue before the locks of MySQL and MariaDB: GET_LOCK under a name derived from the lock's
// name. A waiter blocks in it on its own connection, the wait connection. The client that is let in takes the row,
// stays inside while it holds the lock, and leaves by the statement that frees the row, so that the server
// lets in the next one. The turnstile is only a hint: the row alone decides. Any fault here costs the time
// until a waiter's next poll.
//
// The server lets waiters in in order of arrival. A waiter that is not let in for a while also writes a
// ticket, which other clients see. A waiter without a connection polls and has only its ticket: when that is
// the first of all tickets, the client that is let in hands the lock to it.
type turnstile struct {
	d    *Driver
	free string // statement that frees a lock and leaves the turnstile

	mu        sync.Mutex // guards the fields below
	waitConns int        // number of further wait connections allowed
	known     bool       // the turnstile works, and home is known
	home      string     // database of the sessions, because a server has one GET_LOCK for all databases
	off       error      // why waiters poll instead; nil: they do not
	again     time.Time  // time from which one waiter tries the turnstile again; zero: none does
	crowded   map[string]time.Time
	avoided   map[string]time.Time

	reclaimed time.Time // time of the last search for a wait connection to reclaim
}

// waitConn is a connection on which a waiter blocks before the turnstile of a lock, and then stays inside.
type waitConn struct {
	t       *turnstile
	key     string
	cancel  context.CancelFunc
	rearmed atomic.Bool   // one GET_LOCK has timed out
	asked   chan struct{} // closed when the wait connection is about to send GET_LOCK
	done    chan struct{} // closed when the wait is over

	// The fields below may be read only after done is closed.
	name string // name of the user lock
	conn *sql.Conn
	err  error // nil: inside

	// lent has capacity one: it is held by the goroutine that sends statements over conn after the lock was
	// taken. A renewal that finds no other connection may use it (runOnSpare). A connection runs one statement at
	// a time, and database/sql waits for it without a context.
	lent chan struct{}
}

// Errors that make waiters poll.
var (
	errMoves  = errors.New("GET_LOCK does not work through this proxy, which moves sessions, so waiters poll; it does on a direct connection")
	errPrimes = errors.New("each server of the cluster has GET_LOCK for itself, so waiters poll")
	errBinlog = errors.New("binlog_format is STATEMENT, which does not take RELEASE_LOCK in an UPDATE, so waiters poll; set it to ROW or MIXED")
	errManual = errors.New("autocommit is off, so waiters poll")
)

// newTurnstile returns the turnstile of d with at most waitConns connections.
func newTurnstile(d *Driver, waitConns int) *turnstile {
	t := &turnstile{d: d, waitConns: waitConns, crowded: make(map[string]time.Time), avoided: make(map[string]time.Time)}
	// RELEASE_LOCK takes effect before the commit, so the next client's statement inside waits at the row.
	t.free = d.in(`UPDATE holdfast_lock SET stamp = ?, owner = '', holder = '', since = ` + d.now + ` + 0 * LAST_INSERT_ID(COALESCE(RELEASE_LOCK(?), 2)),
		expires = ` + d.now + ` + ?, places = places + ? WHERE name = ? AND owner = ? AND token = ?`)
	return t
}

// userLock returns the name of the user lock for key: at most 64 characters, compared without case.
func (t *turnstile) userLock(key string) string {
	t.mu.Lock()
	home := t.home
	t.mu.Unlock()
	sum := sha256.Sum256([]byte(home + "\x00" + t.d.prefix + "\x00" + key))
	return "hf." + hex.EncodeToString(sum[:24])
}

// noteCrowd records that a claim has found the lock taken.
func (t *turnstile) noteCrowd(key string) { t.noteKey(t.crowded, key, crowdedTime) }

// avoidTurnstile makes the client avoid the turnstile of key for a while.
func (t *turnstile) avoidTurnstile(key string) { t.noteKey(t.avoided, key, avoidTime) }

func (t *turnstile) noteKey(in map[string]time.Time, key string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(in) >= maxPlaces {
		clear(in)
	}
	in[key] = time.Now().Add(d)
}

// isCrowded reports whether a claim of this client has lately found the lock taken.
func (t *turnstile) isCrowded(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.crowded[key])
}

// enter returns a wait connection that queues at the turnstile of key; nil: none is available, and the waiter
// polls.
func (t *turnstile) enter(key string) *waitConn {
	t.mu.Lock()
	if t.waitConns == 0 || time.Now().Before(t.avoided[key]) || t.isOffLocked() {
		reclaims := t.off == nil && t.waitConns == 0 && time.Since(t.reclaimed) > longInside/4
		if reclaims {
			t.reclaimed = time.Now()
		}
		t.mu.Unlock()
		if reclaims {
			t.d.reclaimWaitConn()
		}
		return nil
	}
	t.waitConns--
	t.mu.Unlock()
	ctx, cancel := context.WithCancel(t.d.calls.Work)
	e := &waitConn{t: t, key: key, cancel: cancel, asked: make(chan struct{}), done: make(chan struct{}), lent: make(chan struct{}, 1)}
	t.d.calls.Go(func() {
		defer close(e.done)
		e.err = e.awaitTurn(ctx)
	})
	return e
}

// awaitTurn blocks until the wait connection has passed the turnstile. It returns an error if the connection
// has died: the claim then asks over another connection.
func (e *waitConn) awaitTurn(ctx context.Context) (err error) {
	begin, cancel := context.WithTimeout(ctx, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	if e.conn, err = e.t.d.db.Conn(begin); err != nil {
		return err
	}
	if err := e.t.tryOut(begin, e.conn); err != nil {
		return err
	}
	e.name = e.t.userLock(e.key)
	close(e.asked)
	for {
		var got sql.NullInt64
		limited, cancel := context.WithTimeout(ctx, rearmTime+pace.RequestTime(time.Minute, pace.Alone))
		err := e.conn.QueryRowContext(limited, "SELECT GET_LOCK(?, ?)", e.name, int(rearmTime/time.Second)).Scan(&got)
		late := limited.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && late: // the link is dead
			return err
		case err != nil && e.t.d.kindOf(err) == yields: // a deadlock with other user locks of a session
			driverkit.Sleep(ctx, pace.ShortPause)
		case err != nil && e.t.d.kindOf(err) == cut:
			e.rearmed.Store(true)
			driverkit.Sleep(ctx, pace.ShortPause)
		case err != nil && e.t.d.kindOf(err) != broken: // the server does not know GET_LOCK or forbids it
			e.t.turnOff(fmt.Errorf("GET_LOCK failed, so waiters poll: %w", err))
			return err
		case err != nil:
			return err
		case got.Int64 == 1:
			return nil
		default:
			e.rearmed.Store(true)
		}
	}
}

// isOver reports whether the wait is over.
func (e *waitConn) isOver() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// isQueued reports whether the wait connection has its place in GET_LOCK, or will not get one.
func (e *waitConn) isQueued() bool {
	select {
	case <-e.asked:
		return true
	case <-e.done:
		return true
	default:
		return false
	}
}

// isInside reports whether the wait connection has passed the turnstile.
func (e *waitConn) isInside() bool { return e != nil && e.isOver() && e.err == nil }

// leave ends the wait connection's wait, or leaves the turnstile, which admits the next waiter.
func (e *waitConn) leave() {
	if e == nil {
		return
	}
	e.cancel()
	<-e.done
	if e.err != nil {
		e.discard()
		return
	}
	ctx, cancel := context.WithTimeout(e.t.d.calls.Work, pace.FinishTime())
	defer cancel()
	if e.borrow(ctx) != nil {
		e.discardLater()
		return
	}
	if _, err := e.conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", e.name); err != nil {
		e.discard()
		return
	}
	e.giveBack()
}

// borrow waits until no other goroutine uses the connection, or ctx ends. The caller then hands the connection
// back to the wait connection or gives it back to the pool.
func (e *waitConn) borrow(ctx context.Context) error {
	select {
	case e.lent <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tryBorrow borrows the connection if no other goroutine uses it, and reports whether it did.
func (e *waitConn) tryBorrow() bool {
	select {
	case e.lent <- struct{}{}:
		return true
	default:
		return false
	}
}

// handBack ends a borrow or tryBorrow of a wait connection that stays inside.
func (e *waitConn) handBack() { <-e.lent }

// discardLater discards the wait connection in the background, once its borrower has handed the connection back. The
// caller is inside a call.
func (e *waitConn) discardLater() {
	e.t.d.calls.Go(func() {
		e.lent <- struct{}{}
		e.discard()
	})
}

// discard closes the wait connection's session, which admits the next waiter.
func (e *waitConn) discard() {
	e.cancel()
	if e.conn != nil {
		discardConn(e.conn)
	}
	e.t.returnWaitConn()
}

// giveBack returns the connection to the pool. The wait connection is not inside any more.
func (e *waitConn) giveBack() {
	e.cancel()
	e.conn.Close()
	e.t.returnWaitConn()
}

// returnWaitConn counts one wait connection fewer in use.
func (t *turnstile) returnWaitConn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waitConns++
}

// execInside runs a statement in the session of a wait connection that is inside. It returns the number of
// matched rows and the LastInsertId. It repeats the statement after conflicts. After any other error it
// discards the wait connection, and the statement may be executed late.
func (e *waitConn) execInside(ctx context.Context, text string, args ...any) (found, noted int64, err error) {
	for {
		res, err := e.conn.ExecContext(ctx, text, args...)
		if err == nil {
			found, err = res.RowsAffected()
		}
		if err == nil && found > 0 {
			noted, err = res.LastInsertId()
		}
		if err != nil && e.t.d.kindOf(err) == yields && driverkit.Sleep(ctx, pace.ShortPause) {
			continue
		}
		if err != nil {
			e.discard()
		}
		return found, noted, err
	}
}

// takeLock takes the lock for a claim that has passed the turnstile, if the lock is free and no further client
// has joined its queue.
func (e *waitConn) takeLock(ctx context.Context, c *claim, stamp, places int64) (token int64, taken bool, err error) {
	s := c.d.takeInside
	found, token, err := e.execInside(ctx, s.text, s.orderArgs([]any{stamp, c.owner, c.holder, driverkit.ToMicros(c.req.TTL), c.req.Key, places})...)
	return token, found > 0, err
}

// releaseLock frees the lock of g and admits the next waiter. It reports whether the wait connection is still
// inside because another owner has the lock.
func (e *waitConn) releaseLock(ctx context.Context, g driver.Grant, late int) (inside bool, err error) {
	if err := e.borrow(ctx); err != nil {
		e.discardLater()
		return false, err
	}
	found, left, err := e.execInside(ctx, e.t.free, newStamp(), e.name, driverkit.ToMicros(reserved), late, g.Key, g.Owner, g.Token)
	switch {
	case err != nil:
		return false, err
	case found == 0:
		e.handBack()
		return true, nil
	case left != 1:
		e.t.turnOff(errMoves)
		e.discard()
	default:
		e.giveBack()
	}
	return false, nil
}

// isOffLocked reports whether a waiter polls. After offTime one waiter tries the turnstile again: the server or a proxy
// before it may have failed for a moment, or another server answers now. The caller holds the mutex.
func (t *turnstile) isOffLocked() bool {
	if t.off == nil || t.isOffForGoodLocked() || time.Now().Before(t.again) {
		return t.off != nil
	}
	t.again = time.Now().Add(offTime)
	return false
}

// isOffForGoodLocked reports whether no waiter tries the turnstile again. The caller holds the mutex.
func (t *turnstile) isOffForGoodLocked() bool { return t.off != nil && t.again.IsZero() }

// turnOff makes all waiters poll. If sessions move, it is for good: a few statements do not show that they do.
func (t *turnstile) turnOff(why error) {
	t.mu.Lock()
	first, forGood := t.off == nil, t.isOffForGoodLocked()
	if !forGood {
		t.known, t.off, t.again = false, why, time.Now().Add(offTime)
	}
	if errors.Is(why, errMoves) {
		t.again = time.Time{}
	}
	t.mu.Unlock()
	if first {
		t.d.states.SetBestState(0, driver.NodePolling, why)
	}
}

// turnOn records that the turnstile works, unless it is off for good.
func (t *turnstile) turnOn(home string) {
	t.mu.Lock()
	forGood, wasOff := t.isOffForGoodLocked(), t.off != nil
	if !forGood {
		t.known, t.home, t.off = true, home, nil
	}
	t.mu.Unlock()
	if wasOff && !forGood {
		t.d.states.SetBestState(0, driver.NodeUp, nil)
	}
}

// tryOut finds out whether the turnstile works here, unless that is known.
func (t *turnstile) tryOut(ctx context.Context, conn *sql.Conn) error {
	t.mu.Lock()
	known := t.known
	t.mu.Unlock()
	if known {
		return nil
	}
	why, err := t.d.tryTurnstile(ctx, conn)
	var home string
	if err == nil && why == nil {
		err = conn.QueryRowContext(ctx, "SELECT COALESCE(DATABASE(), '')").Scan(&home)
	}
	switch {
	case err != nil:
		return err
	case why != nil:
		t.turnOff(why)
	default:
		t.turnOn(home)
	}
	return why
}

// tryTurnstile returns why waiters cannot use GET_LOCK over conn; nil: they can.
func (d *Driver) tryTurnstile(ctx context.Context, conn *sql.Conn) (why, err error) {
	if d.manual.Load() {
		return errManual, nil
	}
	settings := make(map[string]string)
	err = queryRows(ctx, conn, statement{text: "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format', 'wsrep_on', " +
		"'group_replication_group_name', 'group_replication_single_primary_mode')"}, nil, func(rows *sql.Rows) error {
		var name, value string
		err := rows.Scan(&name, &value)
		settings[strings.ToLower(name)] = strings.ToUpper(value)
		return err
	})
	switch {
	case err != nil && d.kindOf(err) != broken && ctx.Err() == nil:
		return fmt.Errorf("the settings of the server cannot be read, so waiters poll: %w", err), nil
	case err != nil:
		return nil, err
	case settings["log_bin"] == "ON" && settings["binlog_format"] == "STATEMENT":
		return errBinlog, nil
	case settings["wsrep_on"] == "ON", settings["group_replication_group_name"] != "" && settings["group_replication_single_primary_mode"] == "OFF":
		return errPrimes, nil
	}
	name := fmt.Sprintf("hf.probe.%x", rand.Uint64())
	var got, first, second, user sql.NullInt64
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 0), CONNECTION_ID()", name).Scan(&got, &first)
	if err == nil {
		err = conn.QueryRowContext(ctx, "SELECT CONNECTION_ID(), IS_USED_LOCK(?)", name).Scan(&second, &user)
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", name)
	}
	switch {
	case err != nil && d.kindOf(err) != broken && ctx.Err() == nil:
		return fmt.Errorf("GET_LOCK failed, so waiters poll: %w", err), nil
	case err != nil:
		return nil, err
	case got.Int64 != 1 || first != second || first != user:
		return errMoves, nil
	}
	return nil, nil
}

// handOver names the way in which waiters are notified of their turn.
func (l *doctorRun) handOver(ctx context.Context) error {
	switch t := l.d.turnstile; {
	case l.d.dialect != MySQL:
		return nil
	case t == nil:
		l.OK("wake", "waiters poll: the pool has no connection for them")
		return nil
	}
	why, err := l.d.tryTurnstile(ctx, l.conn)
	switch {
	case err != nil:
		return err
	case why != nil:
		l.OK("wake", "%v", why)
	default:
		l.OK("wake", "waiters queue in GET_LOCK; a client takes connections of its pool for that: %d at most", l.d.defaultWaitConns)
	}
	return nil
}
