package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// A wait that holds some of its locks ends in time, although the service answers no release.
func TestWaitsEndWithoutAnswers(t *testing.T) {
	several := func(ctx context.Context, c *holdfast.Client, wait time.Duration) error {
		_, err := c.AcquireAll(ctx, []string{"a", "k"}, &holdfast.AcquireOptions{Wait: wait})
		return err
	}
	key := func(opts claim) func(context.Context, *holdfast.Client, time.Duration) error {
		return func(ctx context.Context, c *holdfast.Client, wait time.Duration) error {
			mine := opts // a copy, because the tests run in parallel
			mine.Wait = wait
			_, err := acquireAs(ctx, c, "k", &mine)
			return err
		}
	}
	for name, tt := range map[string]struct {
		held *claim // what another client holds
		call func(context.Context, *holdfast.Client, time.Duration) error
	}{
		"lock":    {nil, key(claim{})},
		"several": {nil, several},
		"slot":    {&claim{slots: 1}, key(claim{slots: 1})},
		"reader":  {readerClaim(2), key(*readerClaim(2))},
		"writer":  {readerClaim(2), key(*writerClaim(2))},
	} {
		for _, byWait := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *bench) {
					other := b.newPeer()
					held := []*holdfast.Lease{b.acquireAs(other, "k", tt.held)}
					if tt.held != nil && tt.held.readers > 0 {
						held = append(held, b.acquireAs(other, "k", tt.held))
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
					time.AfterFunc(limit/2, b.freezeNodes)
					begin := time.Now()
					err := tt.call(ctx, b.client, wait)
					if byWait && !errors.Is(err, holdfast.ErrHeld) && !errors.Is(err, holdfast.ErrUnavailable) || !byWait && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("the error is %v", err)
					}
					if late := time.Since(begin) - limit; late > 100*time.Millisecond {
						t.Errorf("returned %v after the end of its wait", late)
					}
					b.startNodes()
					time.Sleep(time.Second)
					b.release(held...)
					begin = time.Now()
					b.release(b.acquire(b.newPeer(), "a", nil), b.acquireAs(b.newPeer(), "k", tt.held))
					if took := time.Since(begin); took > time.Second {
						t.Errorf("the background release freed the lock after %v", took)
					}
				})
			})
		}
	}
}

func TestCloseWaitsForBackgroundReleases(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other := b.newPeer()
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

func TestReleaseContinuesAfterItsContext(t *testing.T) {
	for name, release := range map[string]func(context.Context, *holdfast.Client, *holdfast.AcquireOptions) error{
		"lease": func(ctx context.Context, c *holdfast.Client, opts *holdfast.AcquireOptions) error {
			l, err := c.Acquire(context.WithoutCancel(ctx), "k", opts)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		},
		"one of several, by their context": func(ctx context.Context, c *holdfast.Client, opts *holdfast.AcquireOptions) error {
			all, err := c.AcquireAll(context.WithoutCancel(ctx), []string{"a", "k"}, opts)
			if err != nil {
				return err
			}
			one := all.Lease("a").Release(all.Context())
			return errors.Join(one, all.Release(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			inBubbleWith(t, &holdfast.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}, func(t *testing.T, b *bench) {
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				for _, delay := range []time.Duration{0, 50 * time.Millisecond} {
					for i := range 5 {
						b.drv.Node(i).Delay(delay)
					}
					if err := release(ended, b.client, nil); err != nil {
						t.Errorf("Release() with an ended context and an answer after %v = %v", delay, err)
					}
					if l, err := b.newPeer().TryAcquire(t.Context(), "k", nil); err != nil {
						t.Errorf("after the release: %v", err)
					} else {
						b.release(l)
					}
				}
				awaitHooks()
				if said.Len() > 0 {
					t.Errorf("said %s", said.String())
				}
				time.Sleep(time.Second)
				for i := range 5 {
					b.drv.Node(i).Delay(300 * time.Millisecond)
				}
				begin := time.Now()
				err := release(ended, b.client, &holdfast.AcquireOptions{MinHold: time.Second})
				wantErr(t, err, context.Canceled)
				if took := time.Since(begin); took > 5*time.Second {
					t.Errorf("Release waited %v for a late answer", took)
				}
				time.Sleep(5 * time.Second)
				if st, err := b.client.Inspect(t.Context(), "k"); err != nil || st.Held || st.Kept {
					t.Errorf("an unanswered release: %+v, %v", st, err)
				}
			})
		})
	}
}

// The service takes longer to answer than Release waits after the end of its context.
func TestEndedContextLeavesTimeForAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range 5 {
			b.drv.Node(i).Delay(300 * time.Millisecond)
		}
		all, err := b.client.AcquireAll(t.Context(), []string{"a", "b", "c"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := all.Lease("a").Release(all.Context()); err != nil {
			t.Errorf("Release() of one lease with the context of all = %v", err)
		}
		if all.Context().Err() == nil {
			t.Error("the context of all leases is alive although one was released")
		}
		release(t, all)
		l := b.acquire(b.client, "k", nil)
		b.freezeNodes()
		ctx, cancel := context.WithTimeout(l.Context(), 500*time.Millisecond)
		defer cancel()
		begin := time.Now()
		err = l.Release(ctx)
		if took := time.Since(begin); err == nil || took > 700*time.Millisecond {
			t.Errorf("Release() with half a second = %v after %v", err, took)
		}
	})
}

func TestExtendOfEndedLeaseIsLost(t *testing.T) {
	for name, end := range map[string]func(*bench, *holdfast.Lease){
		"release": func(b *bench, l *holdfast.Lease) { go l.Release(b.t.Context()) },
		"close":   func(b *bench, _ *holdfast.Lease) { go b.client.Close() },
		"force":   func(b *bench, l *holdfast.Lease) { b.client.ForceRelease(b.t.Context(), "k", l.Token(), "test") },
	} {
		for _, opts := range []*claim{nil, writerClaim(2)} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *bench) {
					l := b.acquireAs(b.client, "k", opts)
					for i := range 5 {
						b.drv.Node(i).Delay(100 * time.Millisecond)
					}
					extended := make(chan error)
					go func() { extended <- l.Extend(t.Context(), 20*time.Second) }()
					time.Sleep(10 * time.Millisecond)
					end(b, l)
					wantErr(t, <-extended, holdfast.ErrLost)
				})
			})
		}
	}
}
