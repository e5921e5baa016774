package boot

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Missing describes what the clock lacks on this system; empty: nothing.
const Missing = ""

// Now returns the current time.
func Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("CLOCK_BOOTTIME, which Linux has since 2.6.39: %v", err))
	}
	return Instant(ts.Nano())
}

// Alarm sends on C at a set time, even if the machine sleeps at that time.
type Alarm struct {
	C <-chan struct{}

	file *os.File
	fd   int // descriptor of file; File.Fd would make it blocking
	wg   sync.WaitGroup
}

// NewAlarm returns an alarm that is not set. It must be closed.
func NewAlarm() (*Alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	rings := make(chan struct{}, 1)
	a := &Alarm{C: rings, file: os.NewFile(uintptr(fd), "timerfd"), fd: fd}
	a.wg.Go(func() { a.listen(rings) })
	return a, nil
}

func (a *Alarm) listen(rings chan<- struct{}) {
	var expirations [8]byte
	for {
		if _, err := a.file.Read(expirations[:]); err != nil {
			return
		}
		select {
		case rings <- struct{}{}:
		default:
		}
	}
}

// Set sets the alarm to i, and 0 turns it off. A ring of an earlier setting may still arrive.
func (a *Alarm) Set(i Instant) {
	var spec unix.ItimerSpec
	if i != 0 {
		spec.Value = unix.NsecToTimespec(int64(max(i, 1)))
	}
	if err := unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		panic(fmt.Sprintf("timerfd_settime: %v", err)) // only for an invalid descriptor
	}
}

// Close frees the alarm.
func (a *Alarm) Close() {
	a.file.Close()
	a.wg.Wait()
}
