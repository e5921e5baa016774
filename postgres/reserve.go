package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Times for which the reserve connection stays open while nothing needs it. After a renewal that is a TTL within these bounds.
const (
	minReserveRest = 10 * time.Second
	maxReserveRest = time.Minute
)

// reserve is a connection beside the pool for renewals, and for the looks that decide whether a lease is lost. The pool may have none for
// them: the program and claims may have all in use, or none leads anywhere any more. It is open while leases are renewed, as a server that
// is full, or has a new password, opens no other.
type reserve struct {
	turn  chan struct{} // has room for one: the statement that uses conn
	conn  *pgx.Conn     // guarded by turn; nil: none is open
	until time.Time     // guarded by turn: conn stays open

	// dialing receives conn from the attempt to open it that is under way; nil: none is. Guarded by turn.
	dialing chan dialed

	mu  sync.Mutex         // guards cut
	cut context.CancelFunc // ends the statement that has the turn
}

// dialed is the outcome of an attempt to open a connection.
type dialed struct {
	conn *pgx.Conn
	err  error
}

func newReserve() *reserve { return &reserve{turn: make(chan struct{}, 1), cut: func() {}} }

// isBusy reports whether a statement would have to wait for its turn.
func (r *reserve) isBusy() bool { return len(r.turn) > 0 }

// awaitTurn waits for the turn. If it does not come in time, the statement that has it is cut: its connection leads nowhere, and
// it may have more time than the caller.
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

// cuttableContext returns a context that ends too when another statement needs the turn. The caller has it.
func (r *reserve) cuttableContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cut := context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	return ctx, cut
}

// closeIdle closes the connection if nothing has needed it for a while.
func (r *reserve) closeIdle() {
	select {
	case r.turn <- struct{}{}:
	default:
		return // it is in use
	}
	defer r.passTurn()
	if time.Now().After(r.until) {
		r.close()
	}
}

// close closes the connection, if one is open, or was opened after its caller had left. The caller has the turn.
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

// closeConn closes a connection, of which the server hears if it is there.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
	defer cancel()
	conn.Close(ctx)
}

// onReserve runs a statement about a lease with this TTL on the reserve connection, and on one of the pool if that cannot be opened in half
// of the time.
func onReserve[T any](ctx context.Context, d *Driver, ttl time.Duration, scan pgx.RowToFunc[T], sql string, args []any) (r reply[T], failed *failure) {
	if err := d.reserve.awaitTurn(ctx); err != nil {
		return r, d.explainError(ctx, err, false)
	}
	inTurn, cut := d.reserve.cuttableContext(ctx)
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

// openReserve opens the reserve connection unless it is open, in half of the time until ctx ends. The caller has the turn. An attempt goes
// on when its caller has left, for the next one: a hook of the pool may take any time, and have no regard to its context. It is given as
// much time as its caller has, so that one that leads nowhere does not cost a short lease.
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
			result := make(chan dialed, 1)
			r.dialing = result
			d.calls.Go(func() {
				ctx, cancel := context.WithTimeout(d.calls.Work, limit)
				defer cancel()
				conn, err := d.dialConn(ctx, func(string) {})
				result <- dialed{conn, err}
			})
		}
		select {
		case got := <-r.dialing:
			r.dialing = nil
			if got.err != nil && earlier { // there may be a connection now
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

// queryVital is query for what keeps a lease or decides that it is lost. It uses the reserve connection, and the pool only if many such
// statements come at once; again reports that an attempt before got no answer.
func queryVital[T any](ctx context.Context, d *Driver, ttl time.Duration, again bool, scan pgx.RowToFunc[T], sql string, args ...any) (reply[T], error) {
	return repeatStatement(ctx, d, func(broken bool) (reply[T], *failure) {
		if !again && !broken && d.reserve.isBusy() && !d.isPoolFull() {
			return runOnce(ctx, d, scan, sql, args)
		}
		return onReserve(ctx, d, ttl, scan, sql, args)
	})
}
