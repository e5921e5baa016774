package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/postgres"
)

// longTTL is a TTL so long that no renewal is sent within a test.
const longTTL = time.Hour

// forceReason is the reason that the tests give for a force-release.
const forceReason = "ops@here: it hangs"

// forceLock force-releases the lock of l.
func (r *rig) forceLock(l *holdfast.Lease) {
	r.Helper()
	r.NoError(r.newClient().ForceRelease(r.WaitContext(), l.Key(), l.Token(), forceReason))
}

// checkForced waits for the end of l and checks that its cause names the author of the force-release.
func (r *rig) checkForced(l *holdfast.Lease) {
	r.Helper()
	select {
	case <-l.Context().Done():
	case <-r.WaitContext().Done():
		r.Fatal("the holder was not notified of the force release")
	}
	if cause := context.Cause(l.Context()); !errors.Is(cause, holdfast.ErrGone) || !strings.Contains(cause.Error(), forceReason) {
		r.Errorf("the lease ended with %v, want ErrGone with the reason %q", cause, forceReason)
	}
}

func TestForceEndsLeaseBeforeFirstRenewal(t *testing.T) {
	r := startRig(t)
	l := r.Acquire(r.newClient(), "k", longTTL)
	r.forceLock(l)
	r.checkForced(l)
}

// The driver did not listen when the notification was sent.
func TestForceBeforeListenIsFoundLater(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	r.linkOf(d).Halt("LISTEN ")
	l := r.Acquire(r.Client(d), "k", longTTL)
	r.AwaitStopped(d)
	r.forceLock(l)
	r.linkOf(d).Resume()
	r.checkForced(l)
}

// The listening connection broke before the notification was sent.
func TestForceDuringReconnectIsFound(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	c := r.Client(d)
	first, l := r.Acquire(c, "first", longTTL), r.Acquire(c, "k", longTTL)
	r.forceLock(first)
	r.checkForced(first) // so the driver listens now
	r.linkOf(d).Halt("LISTEN ")
	r.linkOf(d).Cut()
	r.AwaitStopped(d)
	r.forceLock(l)
	r.linkOf(d).Resume()
	r.checkForced(l)
}

// A holder that polls reads the reason at its next renewal.
func TestPollingHolderLearnsWhoForcedIt(t *testing.T) {
	r := startRig(t)
	d, err := postgres.New(t.Context(), r.pool, &postgres.Options{Schema: r.opts.Schema, NoListen: true})
	r.NoError(err)
	t.Cleanup(func() { d.Close() })
	l := r.Acquire(r.Client(d), "k", longTTL)
	r.forceLock(l)
	if err := l.Extend(r.WaitContext(), longTTL); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("Extend() = %v, want ErrLost", err)
	}
	r.checkForced(l)
}

// Acquire and Release send one statement each. Apart from them the driver sends one statement every five
// seconds.
func TestListeningAddsNoStatementToAcquire(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	c := r.Client(d)
	first := r.Acquire(c, "first", longTTL)
	r.forceLock(first)
	r.checkForced(first) // so the driver listens now
	sent := 0
	for range 10 {
		before := r.Counts(d)["statement"]
		r.Release(r.Acquire(c, "k", longTTL))
		if sent = r.Counts(d)["statement"] - before; sent == 2 {
			return
		}
	}
	t.Errorf("the last acquire and release took %d statements, want 2", sent)
}
