// Package release has leases that are released, and leases that are not.
package release

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/memory"
)

func work(context.Context) error { return nil }

func retry(error) bool { return false }

// Released

func deferred(ctx context.Context, client *holdfast.Client) error {
	lease, err := client.Acquire(ctx, "k", nil)
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	return work(lease.Context())
}

func deferredInAFunction(ctx context.Context, client *holdfast.Client) (err error) {
	lease, err := client.TryAcquire(ctx, "k", nil)
	if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
		return fmt.Errorf("busy: %v", held.Holder)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Release(ctx)) }()
	return work(lease.Context())
}

func deferredBefore(ctx context.Context, client *holdfast.Client) error {
	var lease *holdfast.Lease
	var err error
	defer func() {
		if lease != nil {
			lease.Release(ctx)
		}
	}()
	if lease, err = client.Acquire(ctx, "k", nil); err != nil {
		return err
	}
	return work(lease.Context())
}

func inASwitch(ctx context.Context, client *holdfast.Client) error {
	lease, err := client.TryAcquire(ctx, "k", nil)
	switch {
	case errors.Is(err, holdfast.ErrHeld), err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	defer lease.Release(ctx)
	return work(lease.Context())
}

func whereThereIsOne(ctx context.Context, client *holdfast.Client) {
	if lease, err := client.TryAcquire(ctx, "k", nil); err == nil {
		work(lease.Context())
		lease.Release(ctx)
	}
	lease, _ := client.TryAcquire(ctx, "k", nil)
	if lease == nil || ctx.Err() != nil && lease == nil {
		return
	}
	lease.Release(ctx)
}

func byAVariable(ctx context.Context, client *holdfast.Client) {
	lease, err := client.TryAcquire(ctx, "k", nil)
	busy := errors.Is(err, holdfast.ErrHeld)
	if busy || retry(err) {
		return
	}
	lease.Release(ctx)
}

func byAnAssertion(ctx context.Context, client *holdfast.Client) error {
	lease, err := client.Acquire(ctx, "k", nil)
	if err, ok := err.(*holdfast.Error); ok {
		return err
	}
	lease.Release(ctx)
	lease, err = client.Acquire(ctx, "k", nil)
	switch err.(type) {
	case *holdfast.Error:
		return err
	}
	lease.Release(ctx)
	lease, err = client.Acquire(ctx, "k", nil)
	switch err := err.(type) {
	case *holdfast.Error:
		return err.Err
	}
	return lease.Release(ctx)
}

func byTheErrorItself(ctx context.Context, client *holdfast.Client) error {
	lease, err := client.Acquire(ctx, "k", nil)
	switch err {
	case nil:
	default:
		return err
	}
	return lease.Release(ctx)
}

func byAnotherError(ctx context.Context, client *holdfast.Client) error {
	lease, err := client.Acquire(ctx, "k", nil)
	wrapped := errors.Join(err, ctx.Err())
	if wrapped != nil {
		return wrapped
	}
	return lease.Release(ctx)
}

func orTheProgramEnds(ctx context.Context, client *holdfast.Client) {
	lease, err := client.Acquire(ctx, "k", nil)
	if err != nil {
		log.Fatal(err)
	}
	if work(lease.Context()) != nil {
		os.Exit(1)
	}
	lease.Release(ctx)
}

type owner struct{ lease *holdfast.Lease }

func stored(ctx context.Context, client *holdfast.Client, o *owner) (err error) {
	if o.lease, err = client.Acquire(ctx, "k", nil); err != nil {
		return err
	}
	lease, err := client.Acquire(ctx, "k2", nil)
	o.lease = lease
	return err
}

func handedOn(ctx context.Context, client *holdfast.Client, leases chan<- *holdfast.Lease) error {
	lease, err := client.Acquire(ctx, "k", nil)
	if err != nil {
		return err
	}
	leases <- lease
	second, err := client.Acquire(ctx, "k2", nil)
	if err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		second.Detach()
	}()
	return nil
}

func endsWithItsClient(ctx context.Context) error {
	client, err := holdfast.New(memory.New(1), nil)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Acquire(ctx, "k", nil)
	return err
}

func hasNoRenew(ctx context.Context, client *holdfast.Client) error {
	_, err := client.TryAcquire(ctx, "k", &holdfast.AcquireOptions{NoRenew: true})
	return err
}

func again(ctx context.Context, client *holdfast.Client) error {
	for {
		lease, err := client.TryAcquire(ctx, "k", nil)
		if err != nil {
			continue
		}
		err = work(lease.Context())
		lease.Release(ctx)
		if err != nil {
			return err
		}
	}
}

func onPurpose(ctx context.Context, client *holdfast.Client) error {
	//holdfastvet:ignore this program holds it until it ends
	_, err := client.Acquire(ctx, "k", nil)
	return err
}

func several(ctx context.Context, client *holdfast.Client) error {
	leases, err := client.AcquireAll(ctx, []string{"k1", "k2"}, nil)
	if err != nil {
		return err
	}
	defer leases.Release(ctx)
	return work(leases.Context())
}

// Not released

func dropped(ctx context.Context, client *holdfast.Client) error {
	client.TryAcquire(ctx, "k1", nil)        // want `the lease of TryAcquire is dropped`
	_, err := client.Acquire(ctx, "k2", nil) // want `the lease of Acquire is dropped`
	return err
}

func onOnePath(ctx context.Context, client *holdfast.Client) error {
	lease, err := client.Acquire(ctx, "k", nil) // want `the lease of Acquire is not released on the path that returns at line 227: put "defer lease.Release`
	if err != nil {
		return err
	}
	if err := work(lease.Context()); err != nil {
		return err // line 227
	}
	return lease.Release(ctx)
}

func lent(ctx context.Context, client *holdfast.Client, req *http.Request) error {
	lease, err := client.Acquire(ctx, "k", nil) // want `the lease of Acquire is not released on the path that returns`
	if err != nil {
		return err
	}
	fence.SetHeader(req.Header, lease)
	return work(lease.Context())
}

func anotherError(ctx context.Context, client *holdfast.Client) error {
	lease, err := client.Acquire(ctx, "k", nil) // want `the lease of Acquire is not released on the path that returns`
	if err != nil {
		return err
	}
	err = work(ctx)
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

func inALoop(ctx context.Context, client *holdfast.Client) {
	for ctx.Err() == nil {
		lease, err := client.TryAcquire(ctx, "k", nil) // want `the lease of TryAcquire is not released on the path that (puts another one in its place|returns)`
		if err != nil {
			continue
		}
		if work(lease.Context()) != nil {
			continue
		}
		lease.Release(ctx)
	}
}

func atTheEnd(ctx context.Context, client *holdfast.Client) {
	lease, err := client.Acquire(ctx, "k", nil) // want `the lease of Acquire is not released on the path that returns`
	if err == nil {
		work(lease.Context())
	}
}

func inAFunction(ctx context.Context, client *holdfast.Client) func() error {
	return func() error {
		lease, err := client.Acquire(ctx, "k", nil) // want `the lease of Acquire is not released`
		if err != nil {
			return err
		}
		return work(lease.Context())
	}
}

func replaced(ctx context.Context, client *holdfast.Client) error {
	lease, err := client.Acquire(ctx, "k", nil) // want `the lease of Acquire is not released on the path that puts another one in its place at line 288`
	if err != nil {
		return err
	}
	lease, err = client.Acquire(ctx, "k2", nil) // line 288
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

// Functions that give a lease to their callers

func lock(ctx context.Context, client *holdfast.Client, name string) (*holdfast.Lease, error) { // want lock:"gives"
	lease, err := client.Acquire(ctx, "user/"+name, nil)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return lease, nil
}

func tryLock(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) { // want tryLock:"gives"
	return lock(ctx, client, "all")
}

func (o *owner) shared(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	if o.lease != nil {
		return o.lease, nil
	}
	lease, err := client.Acquire(ctx, "k", nil)
	o.lease = lease
	return lease, err
}

func leakFromHelper(ctx context.Context, client *holdfast.Client, o *owner) error {
	if lease, err := o.shared(ctx, client); err == nil {
		work(lease.Context())
	}
	lease, err := tryLock(ctx, client) // want `the lease of tryLock is not released on the path that returns`
	if err != nil {
		return err
	}
	return work(lease.Context())
}

func severalOnOnePath(ctx context.Context, client *holdfast.Client) error {
	leases, err := client.TryAcquireAll(ctx, []string{"k1", "k2"}, nil) // want `the lease of TryAcquireAll is not released on the path that returns`
	if err != nil {
		return err
	}
	if leases.Lease("k1").Token() == 0 {
		return nil
	}
	return leases.Release(ctx)
}
