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

func TestAForcedHolderHearsAtOnceByWhomAndWhy(t *testing.T) {
	for name, opts := range map[string]*holdfast.AcquireOptions{
		"renewed":     {TTL: time.Minute},
		"not renewed": {TTL: time.Minute, NoRenew: true},
		"margin":      {TTL: time.Minute, Margin: margin},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, b *bench) {
				l := b.acquire(b.client, "k", opts)
				pass(time.Second)
				if err := b.peer().ForceRelease(t.Context(), "k", l.Token(), "ops@web-3: it hangs"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				cause := context.Cause(l.Context())
				wantErr(t, cause, holdfast.ErrLost, holdfast.ErrGone)
				if cause == nil || !strings.Contains(cause.Error(), "ops@web-3: it hangs") {
					t.Errorf("at once the cause is %v, want the reason", cause)
				}
				wantErr(t, l.Release(t.Context()), holdfast.ErrGone)
				b.isFree()
			})
		})
	}
}

// The nodes decide, not the alert: it may be false, or of a force that has failed.
func TestAnAlertAloneEndsNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := &alerting{Driver: memory.New(5)}
		c, err := holdfast.New(drv, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			drv.alert(l.Owner(), "a lie")
			drv.alert("another", "a lie")
		}
		synctest.Wait()
		if err := l.Context().Err(); err != nil || drv.checks > 3 {
			t.Errorf("the lease is %v after %d checks, want it to stand after few", context.Cause(l.Context()), drv.checks)
		}
		for i := range 5 {
			drv.Node(i).Stop()
		}
		drv.alert(l.Owner(), "it cannot be asked")
		pass(2 * time.Second)
		if err := l.Context().Err(); err != nil {
			t.Errorf("without an answer the lease is %v", context.Cause(l.Context()))
		}
		for i := range 5 {
			drv.Node(i).Start()
		}
		pass(20 * time.Second) // renewals refute it
		if err := c.ForceRelease(t.Context(), "k", l.Token(), ""); err != nil {
			t.Fatal(err)
		}
		if cause := context.Cause(l.Context()); cause == nil || strings.Contains(cause.Error(), "lie") || strings.Contains(cause.Error(), "cannot be asked") {
			t.Errorf("the cause of another loss is %v", cause)
		}
		c.Close()
		drv.alert(l.Owner(), "too late")
	})
}

// alerting is a driver whose alerts a test makes, and counts the checks.
type alerting struct {
	*memory.Driver
	alert  func(owner, why string)
	checks int
}

func (d *alerting) Alert(fn func(owner, why string)) { d.alert = fn }

func (d *alerting) Check(ctx context.Context, g driver.Grant) error {
	d.checks++
	return d.Driver.Check(ctx, g)
}
