package sqllock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// attempts are the attempts at one renewal on a server. To give up a statement costs its connection, and maybe no other can be had. So an
// attempt without an answer in time stays under way, the next one begins beside it over another connection, and the first answer counts.
// It is given up once a new connection is open, or if the pool has no room for one. On SQLite, whose statements cost no connection, each
// attempt ends before the next.
type attempts struct {
	d     *Driver
	try   func(ctx context.Context, first bool) (renewed, error)
	limit time.Duration // for an answer, before the next attempt begins

	work    context.Context // of all attempts
	stop    context.CancelFunc
	begun   int
	running int
	giveUp  []context.CancelCauseFunc // one for each attempt
	results chan result
	over    chan struct{} // closed when nobody receives results any more
	next    *time.Timer   // fires when another attempt begins
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
	a.work = d.hurry(a.work, end)
	defer a.end()
	return a.run()
}

// run begins one attempt after the other until one succeeds or fails for good, or their time is over.
func (a *attempts) run() (renewed, error) {
	a.begin()
	var last error
	for pause := pace.ShortPause; ; {
		var ended <-chan struct{}
		if a.running == 0 {
			ended = a.work.Done()
		}
		select {
		case r := <-a.results:
			a.running--
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
	kind := d.kind(err)
	return kind == full || kind == worn || !errors.Is(err, driver.ErrUnavailable) || driverkit.Lasts(err)
}

// begin begins another attempt.
func (a *attempts) begin() {
	var earlier []context.CancelCauseFunc // of attempts that are under way
	if a.running > 0 {
		earlier = slices.Clone(a.giveUp)
	}
	ctx, giveUp := context.WithCancelCause(a.work)
	a.giveUp = append(a.giveUp, giveUp)
	a.begun++
	a.running++
	number := a.begun
	if a.d.dialect == SQLite {
		a.next.Stop()
		timer := time.AfterFunc(a.limit, func() { giveUp(context.DeadlineExceeded) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	} else {
		a.next.Reset(a.limit)
	}
	a.d.calls.Go(func() {
		if len(earlier) > 0 && a.d.dialect != SQLite {
			a.d.replaceLink(ctx, a.limit/2, earlier)
		}
		out, err := a.try(ctx, number == 1)
		select {
		case a.results <- result{out, err, number}:
		case <-a.over:
		}
	})
}

// replaceLink opens a new connection for renewals, and ends the earlier attempts if there is one, or no room for one before.
func (d *Driver) replaceLink(ctx context.Context, limit time.Duration, earlier []context.CancelCauseFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s := d.renewDB.Stats()
	if full := s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections; !full && !d.replaceIdle(ctx, d.renewDB) {
		return
	}
	for _, giveUp := range earlier {
		giveUp(errReplaced)
	}
}

// end ends all attempts: at once, or after a moment if some are under way, as one that ends by itself keeps its connection.
func (a *attempts) end() {
	close(a.over)
	a.next.Stop()
	if a.running == 0 {
		a.stop()
		return
	}
	time.AfterFunc(pace.LastWords(), a.stop)
}
