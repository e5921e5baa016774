package sqllock

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Release implements driver.Driver. It repeats the release, if need be in the background, until the release is
// confirmed or the lock has expired.
func (d *Driver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	if d.prepared != nil && d.prepared.room != nil && d.releaseInCaller(g, keep) {
		return nil
	}
	return d.calls.FinishRelease(ctx, d.states, d.lane, func(begun func()) error {
		return d.freeUntilConfirmed(max(g.TTL, keep), begun, func(ctx context.Context) error { return d.freeLock(ctx, g, keep) })
	})
}

// releaseInCaller releases in the goroutine of the caller, and reports whether the lock was released. On SQLite,
// passing the release to another goroutine costs more than the release. It waits only for other writers, for a
// moment; the background does what takes longer.
func (d *Driver) releaseInCaller(g driver.Grant, keep time.Duration) (released bool) {
	ran, err := d.lane.Try(func() error {
		ctx, cancel := context.WithCancel(d.calls.Work) // no deadline: a time-out here would tell nothing about the file
		defer cancel()
		defer time.AfterFunc(pace.FinishTime(), cancel).Stop()
		return d.freeLock(ctx, g, keep)
	})
	return ran && err == nil
}

// freeUntilConfirmed repeats fn, which frees a lock, until it is confirmed or the lock has expired. Each time it waits
// for its turn in the lane and then calls begun.
func (d *Driver) freeUntilConfirmed(limit time.Duration, begun func(), fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(d.calls.Work, limit)
	defer cancel()
	return d.lane.RetryUnanswered(ctx, begun, func() error {
		ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(limit, pace.Alone))
		defer cancel()
		return fn(ctx)
	})
}

// freeLock releases the lock of g. If the row has not changed since the lock was acquired or renewed, there are
// no waiters, and freeLock does not read it.
func (d *Driver) freeLock(ctx context.Context, g driver.Grant, keep time.Duration) error {
	d.mu.Lock()
	own, known := d.heldLocks[g.Owner]
	delete(d.heldLocks, g.Owner)
	d.mu.Unlock()
	if !own.alone { // the lock may have waiters
		ctx = d.withUrgency(ctx, time.Now().Add(g.TTL)) // the lock expires then
	}
	late := 0
	if own.doubt {
		late = 1
	}
	if own.waitConn != nil && keep == 0 {
		inside, err := own.waitConn.releaseLock(ctx, g, late)
		if inside {
			own.waitConn.leave()
		} else if err == nil {
			return nil
		}
	} else if own.waitConn != nil {
		defer own.waitConn.leave()
	}
	if known && own.alone && own.waitConn == nil && keep == 0 {
		if freed, err := d.execRepeated(ctx, d.freeAlone, newStamp(), late, g.Key, own.stamp); freed || err != nil {
			return err
		}
	}
	_, err := d.updateLock(ctx, g.Key, func(r row) (row, bool) {
		switch {
		case r.owner != g.Owner:
			return r, false
		case keep > 0:
			return r.keep(keep), r.isHeld()
		}
		return r.end(), true
	})
	return err
}

// updateLock reads a lock and changes it to the result of next, and repeats both while other clients change it
// in between. It reports whether the lock was changed.
func (d *Driver) updateLock(ctx context.Context, key string, next func(row) (row, bool)) (changed bool, err error) {
	err = d.runTogether(ctx, func(ctx context.Context) (err error) {
		for changed = false; !changed && err == nil; {
			var r row
			if r, err = d.readLock(ctx, key, "", false); err != nil || !r.there {
				return err
			}
			is, ends := next(r)
			if !ends {
				return nil
			}
			is.stamp = newStamp()
			changed, err = d.changeLock(ctx, key, r, &is)
		}
		return err
	})
	return changed, err
}
