package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Bounds of the time for which the idle reserve connection stays open. After a renewal this time is the TTL.
const (
	minReserveRest = 10 * time.Second
	maxReserveRest = time.Minute
)

// reserve is a connection beside the pool for renewals, and for the statements that decide whether a lease is
// lost. The pool may have no connection for these: the program and the claims may use all of them, or all may
// be dead. The reserve stays open while leases are renewed, because a server that is full or has a new
// password may accept no other.
type reserve struct {
	turn  chan struct{} // capacity one: the statement that uses conn
	conn  *pgx.Conn     // guarded by turn; nil: not open
	until time.Time     // guarded by turn: time until which conn stays open

	// dialing receives conn from the attempt that is opening it; nil: there is no attempt. Guarded by turn.
	dialing chan dialResult

	mu  sync.Mutex         // guards cut
	cut context.CancelFunc // ends the statement that has the turn
}

// dialResult is the outcome of an attempt to open a connection.
type dialResult struct {
	conn *pgx.Conn
	err  error
}

func newReserve() *reserve { return &reserve{turn: make(chan struct{}, 1), cut: func() {}} }

// isBusy reports whether a statement would have to wait for its turn.
func (r *reserve) isBusy() bool { return len(r.turn) > 0 }

// awaitTurn waits for the turn. If it does not come in time, awaitTurn cuts the statement that has it: its
// connection may be dead, and its caller may have more time than this one.
func (r *reserve) awaitTurn(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cut()
	}
	return ctx.Err()
}

// passTurn gives the turn to the next statement.
func (r *reserve) passTurn() { <-r.turn }

// interruptibleContext returns a context that ends with ctx, or when another statement cuts this one. The caller
// has the turn.
func (r *reserve) interruptibleContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cut := context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	return ctx, cut
}

// closeIdle closes the connection if no statement has needed it for a while.
func (r *reserve) closeIdle() {
	select {
	case r.turn <- struct{}{}:
	default:
		return // in use
	}
	defer r.passTurn()
	if time.Now().After(r.until) {
		r.close()
	}
}

// close closes the open connection, and a connection that an abandoned attempt has opened. The caller has the
// turn.
func (r *reserve) close() {
	select {
	case late := <-r.dialing:
		r.dialing = nil
		if late.conn != nil {
			r.conn = late.conn
		}
	default:
	}
	if r.conn != nil {
		closeConn(r.conn)
		r.conn = nil
	}
}

// closeConn closes a connection and tells the server, if the server can be reached.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
	defer cancel()
	conn.Close(ctx)
}

// onReserve runs a statement about a lease with this TTL on the reserve connection. If that cannot be opened
// in half of the time, it uses a connection of the pool.
func onReserve[T any](ctx context.Context, d *Driver, ttl time.Duration, scan pgx.RowToFunc[T], sql string, args []any) (r reply[T], failed *failure) {
	if err := d.reserve.awaitTurn(ctx); err != nil {
		return r, d.explainError(ctx, err, false)
	}
	inTurn, cut := d.reserve.interruptibleContext(ctx)
	defer cut()
	if err := d.openReserve(inTurn); err != nil {
		d.reserve.passTurn()
		return runOnce(ctx, d, scan, sql, args)
	}
	defer d.reserve.passTurn()
	r, failed = sendStatement(inTurn, d, d.reserve.conn, scan, sql, args)
	if until := time.Now().Add(min(max(ttl, minReserveRest), maxReserveRest)); until.After(d.reserve.until) {
		d.reserve.until = until
	}
	if d.reserve.conn.IsClosed() {
		d.reserve.conn = nil
	}
	return r, failed
}

// openReserve opens the reserve connection unless it is open, in half of the time until ctx ends. The caller
// has the turn. The attempt continues after its caller has left, and the next caller takes its result: a hook of
// the pool may take any time and ignore its context. The attempt has only its caller's time, so that a
// connection that hangs does not cost a short lease.
func (d *Driver) openReserve(ctx context.Context) error {
	r := d.reserve
	if r.conn != nil {
		return nil
	}
	limit := pace.RequestTime(time.Minute, pace.Alone)
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit/2)
		defer cancel()
	}
	limit = max(limit, pace.RequestTime(0, pace.Alone))
	for {
		earlier := r.dialing != nil
		if !earlier {
			result := make(chan dialResult, 1)
			r.dialing = result
			d.calls.Go(func() {
				ctx, cancel := context.WithTimeout(d.calls.Work, limit)
				defer cancel()
				conn, err := d.dialConn(ctx, func(string) {})
				result <- dialResult{conn, err}
			})
		}
		select {
		case got := <-r.dialing:
			r.dialing = nil
			if got.err != nil && earlier { // a new attempt may succeed now
				continue
			}
			r.conn = got.conn
			return got.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isPoolFull reports whether a statement would have to wait for a connection of the pool.
func (d *Driver) isPoolFull() bool {
	s := d.pool.Stat()
	return s.IdleConns() == 0 && s.TotalConns() >= s.MaxConns()
}

// queryVital runs a statement that keeps a lease or decides that it is lost, like queryRows. It uses the
// reserve connection, and the pool only if many such statements come at once. again reports that an earlier
// attempt got no answer.
func queryVital[T any](ctx context.Context, d *Driver, ttl time.Duration, again bool, scan pgx.RowToFunc[T], sql string, args ...any) (reply[T], error) {
	return repeatStatement(ctx, d, func(broken bool) (reply[T], *failure) {
		if !again && !broken && d.reserve.isBusy() && !d.isPoolFull() {
			return runOnce(ctx, d, scan, sql, args)
		}
		return onReserve(ctx, d, ttl, scan, sql, args)
	})
}
