package sqllock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// attempts runs the attempts at one renewal on a server. Cancelling a statement costs its connection, and the
// database may accept no new one. So an attempt without an answer in time continues, the next one starts beside
// it on another connection, and the first answer counts. An attempt is cancelled once the next one has a new
// connection, or if the pool has no room for one. On SQLite, where a cancelled statement costs no connection,
// each attempt ends before the next.
type attempts struct {
	d     *Driver
	try   func(ctx context.Context, first bool) (renewalResult, error)
	limit time.Duration // time for an answer before the next attempt begins

	work    context.Context // context of all attempts
	stop    context.CancelFunc
	begun   int
	running []runningAttempt // in the order in which they began
	results chan result
	over    chan struct{} // closed when nobody receives results any more
	next    *time.Timer   // fires when another attempt begins
}

// runningAttempt is an attempt that has not ended.
type runningAttempt struct {
	number int
	giveUp context.CancelCauseFunc
	linked *atomic.Bool // it had a connection of the renewal pool
}

// result is the outcome of one attempt.
type result struct {
	renewalResult
	err    error
	number int
}

// tryRenewal calls try until the database answers, the TTL is over or ctx ends.
func (d *Driver) tryRenewal(ctx context.Context, ttl time.Duration, try func(ctx context.Context, first bool) (renewalResult, error)) (renewalResult, error) {
	end := time.Now().Add(ttl)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	a := &attempts{
		d: d, try: try, limit: pace.RequestTime(ttl, pace.Alone), results: make(chan result), over: make(chan struct{}), next: time.NewTimer(ttl),
	}
	a.work, a.stop = d.calls.RequestContext(ctx, time.Until(end))
	a.work = d.withUrgency(a.work, end)
	defer a.end()
	return a.run()
}

// run starts attempts until one succeeds, one fails for good, or the time is over.
func (a *attempts) run() (renewalResult, error) {
	a.begin()
	var last error
	for pause := pace.ShortPause; ; {
		var ended <-chan struct{}
		if len(a.running) == 0 {
			ended = a.work.Done()
		}
		select {
		case r := <-a.results:
			a.running = slices.DeleteFunc(a.running, func(one runningAttempt) bool { return one.number == r.number })
			last = r.err
			if r.err == nil || a.d.isFinal(r.err) || a.work.Err() != nil {
				return r.renewalResult, r.err
			}
			if r.number == a.begun {
				a.next.Reset(driverkit.Jitter(pause))
				pause = min(2*pause, pace.LongPause)
			}
		case <-a.next.C:
			a.begin()
		case <-ended:
			return renewalResult{}, last
		}
	}
}

// isFinal reports whether another attempt is useless, because a person must fix the cause or free disk space.
// The holder then gets the error before its lease ends.
func (d *Driver) isFinal(err error) bool {
	kind := d.kindOf(err)
	return kind == full || kind == worn || !errors.Is(err, driver.ErrUnavailable) || driverkit.IsPermanent(err)
}

// begin starts another attempt.
func (a *attempts) begin() {
	earlier := slices.Clone(a.running)
	ctx, giveUp := context.WithCancelCause(a.work)
	a.begun++
	number := a.begun
	linked := new(atomic.Bool)
	a.running = append(a.running, runningAttempt{number, giveUp, linked})
	if a.d.dialect == SQLite {
		a.next.Stop()
		timer := time.AfterFunc(a.limit, func() { giveUp(context.DeadlineExceeded) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	} else {
		a.next.Reset(a.limit)
	}
	a.d.calls.Go(func() {
		var replaced []runningAttempt
		if len(earlier) > 0 && a.d.dialect != SQLite {
			if !earlier[len(earlier)-1].linked.Load() {
				ctx = context.WithValue(ctx, openConnKey{}, true)
			}
			if a.d.makeRoom(ctx, a.limit/2, earlier[0].giveUp) {
				replaced = earlier
			}
		}
		ctx = context.WithValue(ctx, linkedKey{}, func() {
			linked.Store(true)
			for _, one := range replaced {
				one.giveUp(errReplaced)
			}
		})
		out, err := a.try(ctx, number == 1)
		select {
		case a.results <- result{out, err, number}:
		case <-a.over:
		}
	})
}

// linkedKey is the context key of a function that a renewal calls once it has a connection of the renewal
// pool.
type linkedKey struct{}

// makeRoom makes the renewal pool open a new connection for the next attempt, and reports whether it will. If
// the pool is full, makeRoom cancels the oldest attempt.
func (d *Driver) makeRoom(ctx context.Context, limit time.Duration, giveUpOldest context.CancelCauseFunc) bool {
	s := d.renewDB.Stats()
	if s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections {
		giveUpOldest(errReplaced)
	}
	if s.Idle == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return d.replaceIdle(ctx, d.renewDB)
}

// end ends all attempts. It first waits briefly, because an attempt that finishes keeps its connection.
func (a *attempts) end() {
	close(a.over)
	a.next.Stop()
	if len(a.running) == 0 {
		a.stop()
		return
	}
	time.AfterFunc(pace.FinishTime(), a.stop)
}
