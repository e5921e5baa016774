package boot_test

import (
	"math"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
)

func newAlarm(t *testing.T) *boot.Alarm {
	t.Helper()
	a, err := boot.NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func TestAlarmDoesNotRingEarly(t *testing.T) {
	t.Parallel()
	a := newAlarm(t)
	at := boot.Now().Add(20 * time.Millisecond)
	a.Set(at)
	<-a.C
	if now := boot.Now(); now < at {
		t.Errorf("the alarm rang %v early", at.Sub(now))
	}
}

func TestPastAlarmRingsAtOnce(t *testing.T) {
	t.Parallel()
	a := newAlarm(t)
	a.Set(boot.Now().Add(time.Hour))
	a.Set(boot.Now().Add(-time.Hour))
	<-a.C // fails by the test's time-out
}

func TestUnsetAlarmIsSilent(t *testing.T) {
	t.Parallel()
	a := newAlarm(t)
	for end := boot.Instant(0); boot.Now() >= end; { // else this process has stood still until it had to ring
		select {
		case <-a.C:
		default:
		}
		end = boot.Now().Add(30 * time.Millisecond)
		a.Set(end)
		a.Set(0)
	}
	select {
	case <-a.C:
		t.Error("it rang")
	case <-time.After(60 * time.Millisecond):
	}
}

func TestDeadlineUsesEarlierClock(t *testing.T) {
	t.Parallel()
	before := boot.Now()
	minute := boot.At(time.Now().Add(time.Minute))
	if left := minute.Sub(boot.Now()); left > time.Minute || minute.Sub(before) < 59*time.Second {
		t.Errorf("a minute from now is %v away", left)
	}
	// A machine has slept: by the wall clock the deadline is over, by the monotonic clock it is not. Round(0)
	// removes the monotonic reading, so that only the wall clock counts.
	if left := boot.At(time.Now().Add(-time.Minute).Round(0)).Sub(boot.Now()); left > 0 {
		t.Errorf("a deadline of a minute ago is %v away", left)
	}
}

func TestInstantAddDoesNotOverflow(t *testing.T) {
	t.Parallel()
	now := boot.Now()
	if at := now.Add(math.MaxInt64); at < now {
		t.Errorf("the largest duration after %d is %d", now, at)
	}
	if at := boot.Instant(-2).Add(math.MinInt64); at > -2 {
		t.Errorf("the smallest duration after -2 is %d", at)
	}
}
