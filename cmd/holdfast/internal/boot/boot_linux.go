package boot

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Missing describes what the clock cannot do on this system; empty: nothing is missing.
const Missing = ""

// Now is the time.
func Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("CLOCK_BOOTTIME, which Linux has since 2.6.39: %v", err))
	}
	return Instant(ts.Nano())
}

// Alarm sends on C at a set time, also when the machine slept through it.
type Alarm struct {
	C <-chan struct{}

	file *os.File
	fd   int // of file; asking the file would make it block
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

// Set lets the alarm ring at i, instead of the time it was set to before; 0
// unsets it. A ring that was on its way may still come.
func (a *Alarm) Set(i Instant) {
	var spec unix.ItimerSpec
	if i != 0 {
		spec.Value = unix.NsecToTimespec(int64(max(i, 1)))
	}
	if err := unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		panic(fmt.Sprintf("timerfd_settime: %v", err)) // only for a descriptor that is none
	}
}

// Close frees the alarm.
func (a *Alarm) Close() {
	a.file.Close()
	a.wg.Wait()
}
