package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// Runner runs plans.
type Runner struct {
	Self proc.Self
	Log  *slog.Logger
	// Open opens the backend. It calls renewed after each renewal.
	Open func(ctx context.Context, renewed func(holdfast.RenewedEvent)) (*holdfast.Client, error)
	// Waits logs from time to time what the client waits for, until stop is called.
	Waits func(*holdfast.Client) (stop func())
	// Take acquires the leases of a plan. It waits for them unless the plan allows one attempt only.
	Take func(context.Context, *holdfast.Client, *Plan) (Held, error)
	// Started is called once the command has started, with the leases or with nil.
	Started func(Held)
	// Reloaded is called after a HUP was forwarded.
	Reloaded func()
	// Orphan returns the data with which the guard releases leases whose holder has died.
	Orphan func(Held) []byte
	// Busy adds to an ErrHeld what the backend knows about the holder.
	Busy func(*holdfast.Client, error) error
}

// Held holds the leases of a command: a holdfast.Leases, or a Single.
type Held interface {
	All() []*holdfast.Lease
	Context() context.Context // ends with the first lease
	Deadline() time.Time
	Release(context.Context) error
}

// Single is one lease.
type Single struct{ *holdfast.Lease }

// All implements Held.
func (s Single) All() []*holdfast.Lease { return []*holdfast.Lease{s.Lease} }

// acquirer returns the method of client that acquires the slot of p, or its place as a reader or the writer.
func (p *Plan) acquirer(client *holdfast.Client) func(context.Context, *holdfast.AcquireOptions) (*holdfast.Lease, error) {
	semaphore, lock := client.Semaphore(p.Name(), p.Slots), client.RWLock(p.Name(), p.Readers)
	switch {
	case p.Slots > 0 && p.NoWait:
		return semaphore.TryAcquire
	case p.Slots > 0:
		return semaphore.Acquire
	case p.Shared && p.NoWait:
		return lock.TryAcquireRead
	case p.Shared:
		return lock.AcquireRead
	case p.NoWait:
		return lock.TryAcquireWrite
	}
	return lock.AcquireWrite
}

// Take acquires the locks of p, its slot, or its place as a reader or the writer.
func Take(ctx context.Context, client *holdfast.Client, p *Plan) (Held, error) {
	if !p.hasLocks() {
		lease, err := p.acquirer(client)(ctx, p.Options())
		if err != nil {
			return nil, err
		}
		return Single{lease}, nil
	}
	take := client.AcquireAll
	if p.NoWait {
		take = client.TryAcquireAll
	}
	leases, err := take(ctx, p.Names, p.Options())
	if err != nil {
		return nil, err
	}
	return leases, nil
}

// Result is the outcome of a run.
type Result struct {
	Status Status
	Err    error          // why the command was not run, or was stopped
	Asked  bool           // a signal has asked the command to end
	Raise  syscall.Signal // signal by which to end, so that a script in the terminal ends too; 0: none
}

// Patience bounds a whole wait. The wait begins with opening the backend, where a hanging server may use part
// of it.
type Patience struct {
	Most  time.Duration // 0: no bound
	Began time.Time
}

// Left returns the remaining time of the wait. After the end it returns a short time, because 0 would mean no
// bound.
func (p Patience) Left() time.Duration {
	if p.Most == 0 {
		return 0
	}
	return max(p.Most-time.Since(p.Began), time.Millisecond)
}

// NameEnd adds to an ErrHeld that the wait is over. Before its end the error has another cause, such as --max-waiters.
func (p Patience) NameEnd(err error) error {
	if p.Most == 0 || time.Since(p.Began) < p.Most || !errors.Is(err, holdfast.ErrHeld) {
		return err
	}
	return fmt.Errorf("%w; the wait of %v is over", err, p.Most)
}

// During calls open with a context that ends with the wait. An error because of that end matches
// holdfast.ErrUnavailable.
func (p Patience) During(ctx context.Context, open func(context.Context) error) error {
	if p.Most == 0 {
		return open(ctx)
	}
	bound, cancel := context.WithTimeout(ctx, p.Left())
	defer cancel()
	err := open(bound)
	if err != nil && bound.Err() != nil && ctx.Err() == nil && !errors.Is(err, holdfast.ErrUnavailable) {
		return fmt.Errorf("%w: the backend did not answer within %v: %w", holdfast.ErrUnavailable, p.Most, err)
	}
	return err
}
