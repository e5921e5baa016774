package holder

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/holdfast-go/holdfast/driver"
)

// recorder stores the events of a keeper as texts.
type recorder struct {
	mu    sync.Mutex
	texts []string
}

func (r *recorder) add(args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, fmt.Sprint(args...))
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.texts)
}

func (r *recorder) Waiting(e Waiting)                           { r.add("waiting ", e.Key) }
func (r *recorder) Acquired(e Acquired)                         { r.add("acquired ", e.Token) }
func (r *recorder) Failed(e Failed)                             { r.add("failed ", e.Err) }
func (r *recorder) Renewed(Renewed)                             {}
func (r *recorder) AtRisk(AtRisk)                               {}
func (r *recorder) Lost(e Lost)                                 { r.add("lost ", e.Token) }
func (r *recorder) Released(e Released)                         { r.add("released ", e.Token) }
func (r *recorder) ObstacleMet(Kind, string, *driver.HeldError) {}
func (r *recorder) Log(slog.Level, string, ...any)              {}

// testPlaces is a kind with the given number of places.
type testPlaces int

func (p testPlaces) Places() int                       { return int(p) }
func (p testPlaces) NoteAt(place int, _ string) string { return fmt.Sprint("place ", place) }

// startKeeper returns a keeper over drv that ends with the test.
func startKeeper(t *testing.T, drv driver.Driver, events Events) *Keeper {
	t.Helper()
	k := New(drv, driver.Holder{Program: "test"}, events)
	t.Cleanup(func() { closeKeeper(k) })
	return k
}

// closeKeeper closes k and its driver. It may be called again.
func closeKeeper(k *Keeper) {
	k.StopAcquiring()
	k.ReleaseAll(context.Background())
	k.Stop()
	k.drv.Close()
	k.Wait()
	<-k.Vacant()
}

// newCall returns a call for key whose wait ends with ctx.
func newCall(ctx context.Context, key string) *Call {
	return &Call{Options: Options{TTL: 10 * time.Second}, Wait: ctx, Key: key}
}

func obtain(ctx context.Context, k *Keeper, key string) (*Hold, error) {
	a := newCall(ctx, key)
	return k.Run(ctx, a, a.Acquire)
}

// mustObtain is obtain for the goroutine of the test.
func mustObtain(t *testing.T, k *Keeper, key string) *Hold {
	t.Helper()
	h, err := obtain(t.Context(), k, key)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// waitUntil waits until holds returns true, and calls it with the mutex of k held.
func waitUntil(t *testing.T, k *Keeper, holds func() bool) {
	t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(100 * time.Microsecond) {
		k.mu.Lock()
		done := holds()
		k.mu.Unlock()
		if done {
			return
		}
	}
	t.Fatal("condition not met within a minute")
}

// shiftMonotonic moves the monotonic reading of t by d, which otherwise only a suspend does. (In a bubble of package
// synctest no time has one.)
func shiftMonotonic(t time.Time, d time.Duration) time.Time {
	type layout struct { // layout of time.Time
		wall uint64
		mono int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&t)).mono += int64(d)
	return t
}
