package holdfast_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// Acquire either rejects options with ErrInvalid before it sends anything, or returns a lease whose deadline
// is within its TTL.
func FuzzAcquireOptions(f *testing.F) {
	f.Add("a", "", int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), false)
	f.Add("", "a\nb", int64(time.Second), int64(0), int64(0), int64(0), int64(time.Millisecond), int64(0), true)
	f.Add("holdfast:x", "nightly", int64(time.Second), int64(-1), int64(0), int64(0), int64(0), int64(-1), false)
	f.Add("a\x00", "", int64(time.Second), int64(0), int64(-1), int64(0), int64(-1), int64(0), false)
	f.Add("\xff", "", int64(9*time.Millisecond), int64(0), int64(0), int64(-1), int64(0), int64(1)<<62, false)
	f.Add("{a}", "\xff", int64(10*time.Millisecond), int64(1), int64(1), int64(1), int64(5*time.Millisecond), int64(5*time.Millisecond), false)
	f.Add("é", "", int64(366*24*time.Hour), int64(1)<<62, int64(1)<<62, int64(1)<<62, int64(1)<<62, int64(1)<<62, true)
	f.Add("b", "b", int64(365*24*time.Hour), int64(1)<<62, int64(1)<<62, int64(365*24*time.Hour), int64(1)<<62, int64(0), true)
	f.Add("c", "note", int64(time.Second), int64(0), int64(0), int64(0), int64(time.Second/2), int64(100*time.Millisecond), false)
	f.Fuzz(func(t *testing.T, key, note string, ttl, wait, maxHold, minHold, margin, every int64, noRenew bool) {
		synctest.Test(t, func(t *testing.T) {
			drv := memory.New(1)
			c := openClient(t, drv, nil)
			opts := &holdfast.AcquireOptions{
				TTL: time.Duration(ttl), Wait: time.Duration(wait), MaxHold: time.Duration(maxHold), MinHold: time.Duration(minHold), NoRenew: noRenew,
				Margin: time.Duration(margin), RenewEvery: time.Duration(every), Note: note,
			}
			lease, err := c.TryAcquire(t.Context(), key, opts)
			if err != nil {
				if !errors.Is(err, holdfast.ErrInvalid) {
					t.Errorf("%q, %+v: %v, want ErrInvalid", key, *opts, err)
				}
				for range c.List(t.Context(), "") {
					t.Errorf("%q, %+v: rejected, and still acquired", key, *opts)
				}
				return
			}
			want := time.Duration(ttl)
			if ttl == 0 {
				want = 10 * time.Second // the default
			}
			if left := time.Until(lease.Deadline()); left <= 0 || left > want {
				t.Errorf("%q, %+v: %v left", key, *opts, left)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("%q, %+v: Release() = %v", key, *opts, err)
			}
		})
	})
}
