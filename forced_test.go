package holdfast_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

func TestForcedHolderLearnsReasonAtOnce(t *testing.T) {
	for name, opts := range map[string]*holdfast.AcquireOptions{
		"renewed":     {TTL: time.Minute},
		"not renewed": {TTL: time.Minute, NoRenew: true},
		"margin":      {TTL: time.Minute, Margin: margin},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				l := b.acquire(b.client, "k", opts)
				passTime(time.Second)
				if err := b.newPeer().ForceRelease(t.Context(), "k", l.Token(), "ops@web-3: it hangs"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				cause := context.Cause(l.Context())
				wantErr(t, cause, holdfast.ErrLost, holdfast.ErrGone)
				if cause == nil || !strings.Contains(cause.Error(), "ops@web-3: it hangs") {
					t.Errorf("context cause right after the force = %v, want its reason", cause)
				}
				wantErr(t, l.Release(t.Context()), holdfast.ErrGone)
				b.wantLockFree()
			})
		})
	}
}

// The nodes decide, not the alert: an alert may be forged, or come from a force-release that failed.
func TestAlertAloneDoesNotEndLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := &alertingDriver{Driver: memory.New(5)}
		c := openClient(t, drv, nil)
		l := acquire(t, c, "k", nil)
		for range 100 {
			drv.alert(l.Owner(), "a lie")
			drv.alert("another", "a lie")
		}
		synctest.Wait()
		if err := l.Context().Err(); err != nil || drv.checks > 3 {
			t.Errorf("lease state %v after %d checks, want held after a few", context.Cause(l.Context()), drv.checks)
		}
		for i := range 5 {
			drv.Node(i).Stop()
		}
		drv.alert(l.Owner(), "it cannot be asked")
		passTime(2 * time.Second)
		if err := l.Context().Err(); err != nil {
			t.Errorf("without an answer: lease state %v", context.Cause(l.Context()))
		}
		for i := range 5 {
			drv.Node(i).Start()
		}
		passTime(20 * time.Second) // the renewals disprove the alert
		if err := c.ForceRelease(t.Context(), "k", l.Token(), ""); err != nil {
			t.Fatal(err)
		}
		if cause := context.Cause(l.Context()); cause == nil || strings.Contains(cause.Error(), "lie") || strings.Contains(cause.Error(), "cannot be asked") {
			t.Errorf("cause of another loss = %v", cause)
		}
		c.Close()
		drv.alert(l.Owner(), "too late")
	})
}

// alertingDriver is a driver whose alerts the test sends. It counts the calls of Check.
type alertingDriver struct {
	*memory.Driver
	alert  func(owner, why string)
	checks int
}

func (d *alertingDriver) Alert(fn func(owner, reason string)) { d.alert = fn }

func (d *alertingDriver) Check(ctx context.Context, g driver.Grant) error {
	d.checks++
	return d.Driver.Check(ctx, g)
}

// checkHookDriver is an alerting driver that calls the functions before and after around its first Check.
type checkHookDriver struct {
	*alertingDriver
	before, after func()
}

func (d *checkHookDriver) Check(ctx context.Context, g driver.Grant) error {
	before, after := d.before, d.after
	d.before, d.after = func() {}, func() {}
	before()
	defer after()
	return d.alertingDriver.Check(ctx, g)
}

// runAroundAlertCheck sends the holder of a lock an alert with the reason "the first", and calls before and after
// around the Check that follows. Both get take, which takes the lock away without an alert. The lease has to
// be lost at once, for the given reason.
func runAroundAlertCheck(t *testing.T, reason string, before, after func(t *testing.T, drv *checkHookDriver, l *holdfast.Lease, take func())) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := &checkHookDriver{alertingDriver: &alertingDriver{Driver: memory.New(5)}}
		c := openClient(t, drv, nil)
		l := acquire(t, c, "k", minuteTTL)
		take := func() {
			for i := range 5 {
				drv.Node(i).DropLock("k")
			}
		}
		drv.before, drv.after = func() { before(t, drv, l, take) }, func() { after(t, drv, l, take) }
		drv.alert(l.Owner(), "the first")
		synctest.Wait()
		cause := context.Cause(l.Context())
		if wantErr(t, cause, holdfast.ErrGone); cause == nil || !strings.Contains(cause.Error(), reason) {
			t.Errorf("context cause right after the force = %v, want %q", cause, reason)
		}
	})
}

func noAlertHook(*testing.T, *checkHookDriver, *holdfast.Lease, func()) {}

// Each node sends its alert as soon as it has removed the lock, so the first alert may arrive before a
// majority has removed it.
func TestAlertDuringCheckIsCheckedAgain(t *testing.T) {
	runAroundAlertCheck(t, "the second", noAlertHook, func(_ *testing.T, drv *checkHookDriver, l *holdfast.Lease, take func()) {
		take()
		drv.alert(l.Owner(), "the second")
	})
}

// A renewal that was answered before the force-release does not disprove the alert.
func TestRenewalDuringCheckKeepsForceReason(t *testing.T) {
	runAroundAlertCheck(t, "the first", func(t *testing.T, _ *checkHookDriver, l *holdfast.Lease, take func()) {
		if err := l.Extend(t.Context(), time.Minute); err != nil {
			t.Error(err)
		}
		take()
	}, noAlertHook)
}
