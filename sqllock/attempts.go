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

// attempts are the attempts at one renewal on a server. To give up a statement costs its connection, and maybe no other can be had. So an
// attempt without an answer in time stays under way, the next one begins beside it over another connection, and the first answer counts.
// It is given up once the next one has a new connection, or if the pool has no room for one. On SQLite, whose statements cost no connection, each
// attempt ends before the next.
type attempts struct {
	d     *Driver
	try   func(ctx context.Context, first bool) (renewed, error)
	limit time.Duration // for an answer, before the next attempt begins

	work    context.Context // of all attempts
	stop    context.CancelFunc
	begun   int
	running []running // in the order of their beginning
	results chan result
	over    chan struct{} // closed when nobody receives results any more
	next    *time.Timer   // fires when another attempt begins
}

// running is an attempt that is under way.
type running struct {
	number int
	giveUp context.CancelCauseFunc
	linked *atomic.Bool // it has had a connection of the pool of renewals
}

// result is the outcome of one attempt.
type result struct {
	renewed
	err    error
	number int
}

// tryRenewal calls try until the database answers, for a TTL or until ctx ends.
func (d *Driver) tryRenewal(ctx context.Context, ttl time.Duration, try func(ctx context.Context, first bool) (renewed, error)) (renewed, error) {
	end := time.Now().Add(ttl)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	a := &attempts{
		d: d, try: try, limit: pace.RequestTime(ttl, pace.Alone), results: make(chan result), over: make(chan struct{}), next: time.NewTimer(ttl),
	}
	a.work, a.stop = d.calls.Linger(ctx, time.Until(end))
	a.work = d.withHurry(a.work, end)
	defer a.end()
	return a.run()
}

// run begins one attempt after the other until one succeeds or fails for good, or their time is over.
func (a *attempts) run() (renewed, error) {
	a.begin()
	var last error
	for pause := pace.ShortPause; ; {
		var ended <-chan struct{}
		if len(a.running) == 0 {
			ended = a.work.Done()
		}
		select {
		case r := <-a.results:
			a.running = slices.DeleteFunc(a.running, func(one running) bool { return one.number == r.number })
			last = r.err
			if r.err == nil || a.d.isFinal(r.err) || a.work.Err() != nil {
				return r.renewed, r.err
			}
			if r.number == a.begun {
				a.next.Reset(driverkit.Jitter(pause))
				pause = min(2*pause, pace.LongPause)
			}
		case <-a.next.C:
			a.begin()
		case <-ended:
			return renewed{}, last
		}
	}
}

// isFinal reports whether another attempt at a renewal is of no use: somebody has to correct something, or to make room, and the holder
// learns of it now, while its lease lasts.
func (d *Driver) isFinal(err error) bool {
	kind := d.kindOf(err)
	return kind == full || kind == worn || !errors.Is(err, driver.ErrUnavailable) || driverkit.Lasts(err)
}

// begin begins another attempt.
func (a *attempts) begin() {
	earlier := slices.Clone(a.running)
	ctx, giveUp := context.WithCancelCause(a.work)
	a.begun++
	number := a.begun
	linked := new(atomic.Bool)
	a.running = append(a.running, running{number, giveUp, linked})
	if a.d.dialect == SQLite {
		a.next.Stop()
		timer := time.AfterFunc(a.limit, func() { giveUp(context.DeadlineExceeded) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	} else {
		a.next.Reset(a.limit)
	}
	a.d.calls.Go(func() {
		var replaced []running
		if len(earlier) > 0 && a.d.dialect != SQLite {
			if !earlier[len(earlier)-1].linked.Load() {
				ctx = context.WithValue(ctx, oldLinksKey{}, true)
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

// linkedKey is the key, in the context of a renewal, of a function to call when that has a connection of the pool of renewals.
type linkedKey struct{}

// makeRoom has the next connection for renewals be a new one, and reports whether it will be. If the pool has no room for one, it gives up
// the oldest attempt.
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

// end ends all attempts: at once, or after a moment if some are under way, as one that ends by itself keeps its connection.
func (a *attempts) end() {
	close(a.over)
	a.next.Stop()
	if len(a.running) == 0 {
		a.stop()
		return
	}
	time.AfterFunc(pace.LastWords(), a.stop)
}
