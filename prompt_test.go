package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// TestSilentServiceHoldsUpNoWait lets waits end that have some of their locks, while nothing answers a release.
func TestSilentServiceHoldsUpNoWait(t *testing.T) {
	several := func(ctx context.Context, c *holdfast.Client, wait time.Duration) error {
		_, err := c.AcquireAll(ctx, []string{"a", "k"}, &holdfast.AcquireOptions{Wait: wait})
		return err
	}
	key := func(opts holdfast.AcquireOptions) func(context.Context, *holdfast.Client, time.Duration) error {
		return func(ctx context.Context, c *holdfast.Client, wait time.Duration) error {
			opts.Wait = wait
			_, err := c.Acquire(ctx, "k", &opts)
			return err
		}
	}
	for name, tt := range map[string]struct {
		held *holdfast.AcquireOptions // by another client
		call func(context.Context, *holdfast.Client, time.Duration) error
	}{
		"lock":    {nil, key(holdfast.AcquireOptions{})},
		"several": {nil, several},
		"slot":    {&holdfast.AcquireOptions{Slots: 1}, key(holdfast.AcquireOptions{Slots: 1})},
		"reader":  {reading(2), key(*reading(2))},
		"writer":  {reading(2), key(*writing(2))},
	} {
		for _, byWait := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				in(t, func(t *testing.T, b *bench) {
					other := b.peer()
					held := []*holdfast.Lease{b.acquire(other, "k", tt.held)}
					if tt.held != nil && tt.held.Readers > 0 {
						held = append(held, b.acquire(other, "k", tt.held))
						time.Sleep(time.Second) // the gate is released in the background
					}
					const limit = 3 * time.Second
					ctx, wait := t.Context(), limit
					if !byWait {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, limit)
						defer cancel()
						wait = 0
					}
					time.AfterFunc(limit/2, b.freeze)
					begin := time.Now()
					err := tt.call(ctx, b.client, wait)
					if byWait && !errors.Is(err, holdfast.ErrHeld) && !errors.Is(err, holdfast.ErrUnavailable) || !byWait && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("the error is %v", err)
					}
					if late := time.Since(begin) - limit; late > 100*time.Millisecond {
						t.Errorf("it returned %v after the end of its wait", late)
					}
					b.start()
					time.Sleep(time.Second)
					b.release(held...)
					begin = time.Now()
					b.release(b.acquire(b.peer(), "a", nil), b.acquire(b.peer(), "k", tt.held))
					if took := time.Since(begin); took > time.Second {
						t.Errorf("what was released in the background was free after %v", took)
					}
				})
			})
		}
	}
}

func TestCloseAwaitsReleasesOfTheBackground(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		other := b.peer()
		held := b.acquire(other, "k", nil)
		for i := range 5 {
			b.drv.Node(i).Delay(300 * time.Millisecond)
		}
		_, err := b.client.AcquireAll(t.Context(), []string{"a", "k"}, &holdfast.AcquireOptions{Wait: 5 * time.Second})
		wantErr(t, err, holdfast.ErrHeld)
		if err := b.client.Close(); err != nil {
			t.Fatal(err)
		}
		if st, err := other.Inspect(t.Context(), "a"); err != nil || st.Held {
			t.Errorf("after Close: %+v, %v", st, err)
		}
		b.release(held)
	})
}
