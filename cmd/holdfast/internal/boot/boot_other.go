//go:build !linux

package boot

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Missing describes what the clock lacks on this system.
const Missing = "a sleep of the machine is noticed up to a second late, and by the wall clock"

var start = time.Now()

// Now returns the current time: the monotonic clock, or the wall clock if that is ahead, as after a sleep.
func Now() Instant {
	return Instant(start.UnixNano()).Add(pace.Elapsed(start, time.Now()))
}

// Alarm sends on C at a set time.
type Alarm struct {
	C <-chan struct{}

	rings chan struct{}

	mu    sync.Mutex // guards the fields below
	at    Instant
	timer *time.Timer
}

// NewAlarm returns an alarm that is not set. It must be closed.
func NewAlarm() (*Alarm, error) {
	a := &Alarm{rings: make(chan struct{}, 1)}
	a.C = a.rings
	a.timer = time.AfterFunc(time.Hour, a.look)
	a.timer.Stop()
	return a, nil
}

// look rings if it is time. Otherwise it checks again within a second, because timers stop while the machine
// sleeps.
func (a *Alarm) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	left := a.at.Sub(Now())
	switch {
	case a.at == 0:
	case left > 0:
		a.timer.Reset(min(left, time.Second))
	default:
		a.at = 0
		select {
		case a.rings <- struct{}{}:
		default:
		}
	}
}

// Set sets the alarm to i, and 0 turns it off. A ring of an earlier setting may still arrive.
func (a *Alarm) Set(i Instant) {
	a.mu.Lock()
	a.at = i
	a.mu.Unlock()
	a.look()
}

// Close frees the alarm.
func (a *Alarm) Close() {
	a.Set(0)
	a.timer.Stop()
}
