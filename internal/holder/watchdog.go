package holder

import (
	"container/heap"
	"time"
)

const (
	// lookEvery is the interval at which leases are compared with the wall clock: after a
	// suspend the monotonic clock, and with it every timer, is late.
	lookEvery = time.Second

	// A process whose watchdog comes later than starvedAfter gets too little processor time; the keeper remembers
	// that for starvedFor.
	starvedAfter = 250 * time.Millisecond
	starvedFor   = 10 * time.Second
)

// watchdog has the times at which the keeper looks at its terms. One timer serves all of them. Keeper.mu guards it.
type watchdog struct {
	due     schedule
	sleeps  time.Time     // it sleeps until then; zero: until nudged
	looked  time.Time     // when it last looked at every term
	starved time.Time     // when it last came too late; zero: never
	nudge   chan struct{} // wakes it; has room for one
}

// scheduleLocked lets the watchdog look at t at next.
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

// beginLookLocked notes that the watchdog is awake at now, perhaps too late, and reports whether it is to look at every term.
func (w *watchdog) beginLookLocked(now time.Time) (every bool) {
	if !w.sleeps.IsZero() && now.Sub(w.sleeps) > starvedAfter {
		w.starved = now
	}
	if now.Sub(w.looked) < lookEvery {
		return false
	}
	w.looked = now
	return true
}

// planSleepLocked sets the time until which the watchdog sleeps. It returns for how long that is, and whether there is any term. If
// there is none, and there was none before, the watchdog sleeps until it is nudged.
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

// isStarvedLocked reports whether this process got too little processor time a moment ago.
func (w *watchdog) isStarvedLocked(now time.Time) bool {
	return !w.starved.IsZero() && now.Sub(w.starved) < starvedFor
}

// unscheduled is term.index of a term that the watchdog does not know.
const unscheduled = -1

// schedule is a heap of terms by the time at which the watchdog looks at them.
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
