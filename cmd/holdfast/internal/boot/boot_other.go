//go:build !linux

package boot

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Missing describes what the clock cannot do on this system.
const Missing = "a sleep of the machine is noticed up to a second late, and by the wall clock"

var start = time.Now()

// Now is the time: the monotonic clock, or the wall clock where that is ahead,
// as after a sleep.
func Now() Instant {
	return Instant(start.UnixNano()).Add(pace.Elapsed(start, time.Now()))
}

// Alarm sends on C at a set time.
type Alarm struct {
	C <-chan struct{}

	rings chan struct{}

	mu    sync.Mutex // guards what follows
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

// look rings if it is time, and otherwise looks again within a second, for
// timers stand still while the machine sleeps.
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

// Set lets the alarm ring at i, instead of the time it was set to before; 0
// unsets it. A ring that was on its way may still come.
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
