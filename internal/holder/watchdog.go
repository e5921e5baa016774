package holder

import (
	"container/heap"
	"time"
)

const (
	// lookEvery is the interval at which leases are compared with the wall clock: after a suspend the
	// monotonic clock, and with it every timer, is late.
	lookEvery = time.Second

	// If the watchdog runs later than starvedAfter, the process gets too little processor time. The keeper
	// remembers that for starvedFor.
	starvedAfter = 250 * time.Millisecond
	starvedFor   = 10 * time.Second
)

// watchdog schedules the keeper's checks of its terms, all on one timer. Keeper.mu guards it.
type watchdog struct {
	due     schedule
	sleeps  time.Time     // time until which it sleeps; zero: until it is nudged
	looked  time.Time     // time of the last check of all terms
	starved time.Time     // time when it last ran too late; zero: never
	nudge   chan struct{} // wakes it; buffers one value
}

// scheduleLocked sets the time at which the watchdog checks t.
func (w *watchdog) scheduleLocked(t *term, next time.Time) {
	t.nextLook = next
	if t.index == unscheduled {
		heap.Push(&w.due, t)
	} else {
		heap.Fix(&w.due, t.index)
	}
	if w.sleeps.IsZero() || next.Before(w.sleeps) {
		select {
		case w.nudge <- struct{}{}:
		default:
		}
	}
}

// beginCheckLocked records that the watchdog is awake at now, perhaps too late. It reports whether the watchdog
// has to check all terms.
func (w *watchdog) beginCheckLocked(now time.Time) (every bool) {
	if !w.sleeps.IsZero() && now.Sub(w.sleeps) > starvedAfter {
		w.starved = now
	}
	if now.Sub(w.looked) < lookEvery {
		return false
	}
	w.looked = now
	return true
}

// planSleepLocked sets the time until which the watchdog sleeps. It returns how long that is, and whether
// there is any term. If there was none before either, the watchdog sleeps until it is nudged.
func (w *watchdog) planSleepLocked(now time.Time, idle bool) (wait time.Duration, some bool) {
	if some = len(w.due) > 0; !some && idle {
		w.sleeps = time.Time{}
		return 0, false
	}
	w.sleeps = now.Add(lookEvery)
	if some && w.due[0].nextLook.Before(w.sleeps) {
		w.sleeps = w.due[0].nextLook
	}
	return w.sleeps.Sub(now), some
}

// isStarvedLocked reports whether this process recently got too little processor time.
func (w *watchdog) isStarvedLocked(now time.Time) bool {
	return !w.starved.IsZero() && now.Sub(w.starved) < starvedFor
}

// unscheduled is the term.index of a term that is not in the schedule.
const unscheduled = -1

// schedule is a heap of terms, ordered by the time at which the watchdog checks them.
type schedule []*term

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].nextLook.Before(s[j].nextLook) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	t := x.(*term)
	t.index = len(*s)
	*s = append(*s, t)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	old := *s
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	t.index = unscheduled
	return t
}

func (s *schedule) removeLocked(t *term) {
	if t.index != unscheduled {
		heap.Remove(s, t.index)
	}
}
