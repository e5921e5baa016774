package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/redis"
)

func TestForceReleaseSparesNewerHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		old := b.acquire(b.client, "k", nil)
		b.release(old)
		l := b.acquire(b.newPeer(), "k", nil)
		err := b.client.ForceRelease(t.Context(), "k", old.Token(), "")
		wantErr(t, err, holdfast.ErrLost)
		if want := fmt.Sprintf("token %d does not belong to the present holder", old.Token()); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("Do() = %v, want %q and no ErrLost", err, want)
		}
		if err := l.Check(t.Context()); err != nil {
			t.Errorf("Check() = %v after a force release with an old token", err)
		}
		b.release(l)
	})
}

func TestDoJoinsErrLostToError(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		mine := errors.New("mine")
		opts := &holdfast.AcquireOptions{TTL: time.Second}
		err := b.client.Do(t.Context(), "k", opts, func(ctx context.Context, _ *holdfast.Lease) error {
			b.freezeNodes()
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), holdfast.ErrLost)
			return mine
		})
		wantErr(t, err, mine, holdfast.ErrLost)
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q has more than one line", err)
		}
		b.startNodes()
		if err := b.client.Do(t.Context(), "k", opts, func(context.Context, *holdfast.Lease) error { return nil }); err != nil {
			t.Errorf("Do() = %v", err)
		}
	})
}

func TestDoNamesReturnedLossOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for _, format := range []string{"%w", "paying: %w"} {
			opts := &holdfast.AcquireOptions{TTL: time.Second}
			err := b.client.Do(t.Context(), "k", opts, func(ctx context.Context, _ *holdfast.Lease) error {
				b.freezeNodes()
				<-ctx.Done()
				return fmt.Errorf(format, context.Cause(ctx))
			})
			wantErr(t, err, holdfast.ErrLost, holdfast.ErrExpired)
			if text := fmt.Sprint(err); strings.Count(text, holdfast.ErrLost.Error()) != 1 || !strings.Contains(text, `do "k": `) {
				t.Errorf("Do() = %q", text)
			}
			b.startNodes()
		}
	})
}

func TestDoEndsWithCallersContext(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		err := b.client.Do(ctx, "k", nil, func(ctx context.Context, l *holdfast.Lease) error {
			cancel()
			<-ctx.Done()
			if l.Context().Err() != nil {
				t.Error("cancelling the caller's context changed the lease")
			}
			return ctx.Err()
		})
		wantErr(t, err, context.Canceled)
		if errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Do() = %v, want no ErrLost", err)
		}
	})
}

func TestBadArgumentsAreRejectedWithoutEffect(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.freezeNodes() // any request would hang now
		bad := map[string]*holdfast.AcquireOptions{
			"k":                      {TTL: 9 * time.Millisecond},
			"l":                      {Wait: -1},
			"m":                      {MinHold: -1},
			"n":                      {MaxHold: -1},
			"":                       nil,
			"a\x00b":                 nil,
			"a\u0085b":               nil,
			"\xff":                   nil,
			"holdfast:x":             nil,
			strings.Repeat("x", 513): nil,
		}
		for key, opts := range bad {
			_, err := b.client.Acquire(t.Context(), key, opts)
			wantErr(t, err, holdfast.ErrInvalid)
		}
		for _, none := range []driver.Driver{nil, (*memory.Driver)(nil), (*redis.Driver)(nil)} {
			_, err := holdfast.New(none, nil) // the nil driver of a failed Open whose error was ignored
			wantErr(t, err, holdfast.ErrInvalid)
		}
		b.startNodes()
	})
}

// anyTTLDriver is a driver that takes any TTL.
type anyTTLDriver struct{ *memory.Driver }

func (d anyTTLDriver) Limits() driver.Limits {
	l := d.Driver.Limits()
	l.MaxTTL = 0
	return l
}

func TestOverflowingTTLIsRejected(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		c := openClient(t, anyTTLDriver{b.drv.Peer()}, nil)
		for _, o := range []holdfast.AcquireOptions{{TTL: math.MaxInt64}, {MinHold: math.MaxInt64}} {
			_, err := c.TryAcquire(t.Context(), "k", &o)
			wantErr(t, err, holdfast.ErrInvalid)
		}
		l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: 365 * 24 * time.Hour, Wait: time.Second})
		wantErr(t, l.Extend(t.Context(), math.MaxInt64), holdfast.ErrInvalid)
		_, err := b.newPeer().TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		b.release(l)
	})
}

// adoptHookDriver is a driver that calls a hook during each Adopt.
type adoptHookDriver struct {
	*memory.Driver
	meanwhile func()
}

func (d *adoptHookDriver) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	defer d.meanwhile()
	return d.Driver.Adopt(ctx, g)
}

func TestAdoptDuringCloseLeaksNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{NoRenew: true, Adoptable: true})
		drv := &adoptHookDriver{Driver: b.drv.Peer()}
		c, err := holdfast.New(drv, nil)
		if err != nil {
			t.Fatal(err)
		}
		drv.meanwhile = func() { go c.Close(); synctest.Wait() }
		if adopted, err := c.Adopt(t.Context(), "k", l.Owner(), l.Token(), nil); err == nil {
			t.Errorf("a closed client has a lease until %v that is not renewed", adopted.Deadline())
		}
	})
}

// Two clients would overwrite each other's callbacks for alerts and node states, and each would close the
// driver that the other still uses.
func TestDriverServesOneClient(t *testing.T) {
	t.Parallel()
	drv := memory.New(3)
	first, err := holdfast.New(drv, nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := holdfast.New(drv, nil)
	if second != nil {
		second.Close()
	}
	wantErr(t, err, holdfast.ErrInvalid)
	for _, words := range []string{"another client", "open a second driver", "share the client"} {
		if !strings.Contains(fmt.Sprint(err), words) {
			t.Errorf("error %v does not contain %q", err, words)
		}
	}
	peer, err := holdfast.New(drv.Peer(), nil)
	if err != nil {
		t.Fatalf("New() with its own driver = %v", err)
	}
	peer.Close()
	first.Close()
	again, err := holdfast.New(drv, nil)
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	defer again.Close()
	_, err = again.TryAcquire(t.Context(), "k", nil)
	wantErr(t, err, holdfast.ErrClosed) // the first client has closed it
}

func TestDoPanicsWithoutFunction(t *testing.T) {
	t.Parallel()
	c := openClient(t, newOneNode(), nil)
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "Do") || !strings.Contains(text, "fn is nil") {
			t.Errorf("recovered %q", text)
		}
		l, err := c.TryAcquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatalf("the lock is still held: %v", err)
		}
		l.Release(t.Context())
	}()
	c.Do(t.Context(), "k", nil, nil)
}
