package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

func TestFailedCallIsReportedOnce(t *testing.T) {
	short := &holdfast.AcquireOptions{Wait: time.Second}
	for name, tt := range map[string]struct {
		call func(context.Context, *holdfast.Client) error
		want error
		told int
	}{
		"TryAcquire": {func(ctx context.Context, c *holdfast.Client) error {
			_, err := c.TryAcquire(ctx, "k", nil)
			return err
		}, holdfast.ErrHeld, 1},
		"Wait is over": {func(ctx context.Context, c *holdfast.Client) error {
			_, err := c.Acquire(ctx, "k", short)
			return err
		}, holdfast.ErrHeld, 1},
		"Do": {func(ctx context.Context, c *holdfast.Client) error {
			return c.Do(ctx, "k", short, func(context.Context, *holdfast.Lease) error { return nil })
		}, holdfast.ErrHeld, 1},
		"its context ends": {func(ctx context.Context, c *holdfast.Client) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := c.Acquire(ctx, "k", nil)
			return err
		}, context.DeadlineExceeded, 1},
		"Adopt": {func(ctx context.Context, c *holdfast.Client) error {
			_, err := c.Adopt(ctx, "k", "nobody.1*", 1, nil)
			return err
		}, holdfast.ErrLost, 1},
		"ErrInvalid": {func(ctx context.Context, c *holdfast.Client) error {
			_, err := c.Acquire(ctx, "", nil)
			return err
		}, holdfast.ErrInvalid, 0},
		"ErrNested": {func(ctx context.Context, c *holdfast.Client) error {
			return c.Do(ctx, "free", nil, func(ctx context.Context, _ *holdfast.Lease) error {
				_, err := c.Acquire(ctx, "free", nil)
				return err
			})
		}, holdfast.ErrNested, 0},
		"closed before": {func(ctx context.Context, c *holdfast.Client) error {
			c.Close()
			_, err := c.Acquire(ctx, "k", nil)
			return err
		}, holdfast.ErrClosed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var told []holdfast.FailedEvent
			hooks := holdfast.Hooks{Failed: func(e holdfast.FailedEvent) { told = append(told, e) }}
			inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
				l := b.acquire(b.newPeer(), "k", nil)
				begin := time.Now()
				err := tt.call(t.Context(), b.client)
				took := time.Since(begin)
				wantErr(t, err, tt.want)
				synctest.Wait()
				if len(told) != tt.told {
					t.Fatalf("received %+v, want %d events", told, tt.told)
				}
				for _, e := range told {
					if e.Key != "k" || e.Waited != took {
						t.Errorf("%+v, want k after %v", e, took)
					}
					wantErr(t, e.Err, tt.want)
				}
				b.release(l)
			})
		})
	}
}

func TestCloseReportsEachEndedWait(t *testing.T) {
	var told []error
	hooks := holdfast.Hooks{Failed: func(e holdfast.FailedEvent) { told = append(told, e.Err) }}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		l := b.acquire(b.newPeer(), "k", nil)
		var wg sync.WaitGroup
		for range 1000 { // one caller asks the service, and the others queue behind it
			wg.Go(func() {
				_, err := b.client.Acquire(t.Context(), "k", nil)
				wantErr(t, err, holdfast.ErrClosed)
			})
		}
		synctest.Wait()
		b.client.Close()
		if len(told) != 1000 {
			t.Fatalf("received %d events when Close returned, want 1000", len(told))
		}
		wantErr(t, told[0], holdfast.ErrClosed)
		wg.Wait()
		b.release(l)
	})
}

type traceKey struct{}

func TestEventsCarryContextValuesOfAcquire(t *testing.T) {
	traces := make(map[string]any)
	note := func(event string, ctx context.Context) {
		traces[event] = ctx.Value(traceKey{})
		if ctx.Err() != nil {
			traces[event] = ctx.Err()
		}
	}
	hooks := holdfast.Hooks{
		Waiting:  func(e holdfast.WaitingEvent) { note("waiting", e.Context) },
		Acquired: func(e holdfast.AcquiredEvent) { note("acquired", e.Context) },
		Failed:   func(e holdfast.FailedEvent) { note("failed", e.Context) },
		Lost:     func(e holdfast.LostEvent) { note("lost", e.Context) },
		Released: func(e holdfast.ReleasedEvent) { note("released", e.Context) },
	}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		acquire := func(trace string, opts *holdfast.AcquireOptions) (*holdfast.Lease, error) {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), traceKey{}, trace))
			defer cancel()
			return b.client.Acquire(ctx, "k", opts)
		}
		first := b.acquire(b.newPeer(), "k", nil)
		_, err := acquire("loses", &holdfast.AcquireOptions{Wait: time.Second})
		wantErr(t, err, holdfast.ErrHeld)
		b.release(first)
		want := func(trace string, events ...string) {
			t.Helper()
			awaitHooks()
			for _, event := range events {
				if traces[event] != trace {
					t.Errorf("%s has trace %v, want %v", event, traces[event], trace)
				}
			}
		}
		want("loses", "waiting", "failed")
		l, err := acquire("wins", &holdfast.AcquireOptions{NoRenew: true})
		if err != nil {
			t.Fatal(err)
		}
		next := make(chan *holdfast.Lease)
		go func() {
			m, err := acquire("is next", &holdfast.AcquireOptions{MaxHold: 20 * time.Second})
			if err != nil {
				t.Error(err)
			}
			next <- m
		}()
		synctest.Wait()
		want("wins", "acquired")
		b.release(l)
		l = <-next
		want("wins", "released")
		want("is next", "waiting", "acquired")
		<-l.Context().Done()
		want("is next", "lost")
	})
}

func TestHeldErrorShowsHoldersNote(t *testing.T) {
	const note = "nightly import ü"
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{Note: note})
		for name, c := range map[string]*holdfast.Client{"the same client": b.client, "another": b.newPeer()} {
			_, err := c.TryAcquire(t.Context(), "k", nil)
			held, ok := errors.AsType[*holdfast.HeldError](err)
			if !ok || held.Holder.Note != note || !strings.Contains(err.Error(), note) {
				t.Errorf("%s hears %v (%+v)", name, err, held)
			}
			if st, err := c.Inspect(t.Context(), "k"); err != nil || st.Holder.Note != note || !strings.Contains(st.Holder.String(), note) {
				t.Errorf("%s sees %+v, %v", name, st, err)
			}
		}
		if _, err := b.client.Acquire(l.Context(), "k", &holdfast.AcquireOptions{Reentrant: true, Note: "other"}); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("nested acquire with another note: %v", err)
		}
		b.release(l)
		for _, bad := range []string{strings.Repeat("a", 65), "\xff", "a\nb"} {
			_, err := b.client.TryAcquire(t.Context(), "k", &holdfast.AcquireOptions{Note: bad})
			wantErr(t, err, holdfast.ErrInvalid)
		}
		_, err := b.client.Adopt(t.Context(), "k", "a.1*", 1, &holdfast.AcquireOptions{Note: note})
		wantErr(t, err, holdfast.ErrInvalid)
		_, err = holdfast.New(b.drv.Peer(), &holdfast.Options{Holder: holdfast.Holder{Note: note}})
		wantErr(t, err, holdfast.ErrInvalid)
		b.release(b.acquire(b.client, "k", &holdfast.AcquireOptions{Note: strings.Repeat("a", 64)}))
	})
}

func TestHandOverNeedsSameNote(t *testing.T) {
	var g grantCounter
	inBubbleWith(t, &holdfast.Options{Hooks: holdfast.Hooks{Acquired: g.count}}, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{Note: "first"})
		next := make(chan *holdfast.Lease)
		go func() { next <- b.acquire(b.client, "k", &holdfast.AcquireOptions{Note: "second"}) }()
		synctest.Wait()
		b.release(l)
		l = <-next
		if st, err := b.newPeer().Inspect(t.Context(), "k"); err != nil || st.Holder.Note != "second" || g.local.Load() != 0 {
			t.Errorf("%+v, %v after %d hand-overs, want the second holder's note, then none", st, err, g.local.Load())
		}
		b.release(l)
	})
}

func TestNodesReportTheirState(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.drv.Node(1).Stop()
		synctest.Wait()
		nodes := b.client.Nodes()
		if len(nodes) != 5 || nodes[0].State != holdfast.NodeUp || nodes[0].Err != nil || nodes[1].State == holdfast.NodeUp || nodes[1].Err == nil {
			t.Errorf("Nodes() = %+v, want five, of which the second is not up, with its cause", nodes)
		}
	})
}

func TestNodesReturnsNilWithoutNotifier(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := openClient(t, struct{ driver.Driver }{memory.New(3)}, nil)
		if nodes := c.Nodes(); nodes != nil {
			t.Errorf("Nodes() = %+v, want nil", nodes)
		}
	})
}
