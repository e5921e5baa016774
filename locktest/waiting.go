package locktest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

var waitingCases = []testCase{
	{"AcquireWaitsForRelease", acquireWaitsForRelease},
	{"ExceededWaitReturnsErrHeld", exceededWaitReturnsHeld},
	{"CancelledWaitNamesObstacle", cancelledWaitNamesObstacle},
	{"CancelAtAnyPointFreesLock", cancelFreesLock},
	{"WaitersAreServedInOrder", servedInOrder},
	{"CancelledWaiterIsSkipped", cancelledWaiterIsSkipped},
	{"WaitOutlivesDeadHolder", waitOutlivesDeadHolder},
	{"WaitStartIsReported", waitStartIsReported},
	{"MaxWaitersCountsOtherWaiters", maxWaitersCountsOthers},
	{"ObstacleChangeIsReported", obstacleChangeIsReported},
	{"EndedContextDoesNotAcquire", endedContextDoesNotAcquire},
	{"WaitCanStartDuringOutage", waitStartsInOutage},
}

func acquireWaitsForRelease(b *bench) {
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long})
	var released time.Time
	time.AfterFunc(100*time.Millisecond, func() {
		released = time.Now()
		l.Release(context.Background())
	})
	next := b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long})
	if err := l.Release(b.Context()); err != nil && !b.isStall(err) { // orders the read of released
		b.Error(err)
	}
	if released.IsZero() {
		b.Error("granted before the release")
	}
	b.release(next)
	b.checkCleared()
}

func exceededWaitReturnsHeld(b *bench) {
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", nil)
	for _, waiter := range []*holdfast.Client{c, other} {
		begin := time.Now()
		_, err := waiter.Acquire(b.Context(), "k", &holdfast.AcquireOptions{Wait: 120 * time.Millisecond})
		if !b.isStall(err) {
			b.checkError(err, holdfast.ErrHeld)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("error %v matches the caller's context, which is alive", err)
		}
		if took := time.Since(begin); took < 120*time.Millisecond && !b.isStall(err) {
			b.Errorf("Wait of 120ms ended after %v", took)
		}
	}
	b.release(l)
	b.checkCleared()
}

func cancelledWaitNamesObstacle(b *bench) {
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", nil)
	for _, waiter := range []*holdfast.Client{c, other} {
		var ctx context.Context
		var err error
		for wait := 100 * time.Millisecond; wait < b.patience; wait *= 4 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(b.Context(), wait)
			_, err = waiter.Acquire(ctx, "k", nil)
			cancel()
			b.checkError(err, context.DeadlineExceeded)
			if errors.Is(err, holdfast.ErrHeld) || b.virtual {
				break // otherwise the wait ended before an answer, as it may on a busy machine
			}
		}
		b.checkError(err, holdfast.ErrHeld)
		_, err = waiter.Acquire(ctx, "k", nil)
		b.checkError(err, context.DeadlineExceeded)
	}
	b.release(l)
	b.checkFree(other, "k")
	b.checkCleared()
}

// Whatever happens first, the grant or the end of the context, the lock is either held by the caller or free.
func cancelFreesLock(b *bench) {
	const clients = 4
	g := &guardedSection{b: b}
	all := b.newClients(clients)
	runTogether(clients, func(i int) {
		for range b.roundCount(150, 40) {
			ctx, cancel := context.WithTimeout(b.Context(), randomUpTo(6*time.Millisecond))
			l, err := all[i].Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: b.long})
			if err != nil {
				cancel()
				if !b.isStall(err) {
					b.checkError(err, context.DeadlineExceeded)
				}
				continue
			}
			g.enter(l)
			time.Sleep(randomUpTo(2 * time.Millisecond)) // otherwise two holders would never meet
			g.leave(l)
			l.Release(ctx) // ctx may have ended: the release is sent all the same
			cancel()
		}
	})
	b.checkCleared()
	b.eventually("the lock is free", func() bool {
		l, err := all[0].TryAcquire(b.Context(), "k", nil)
		if err != nil {
			return false
		}
		b.release(l)
		return true
	})
}

// queueUp starts n waiters on key, one after the other, each with its own client. It calls granted for each in
// the order in which they get the lock. wait waits for all of them.
func (b *bench) queueUp(key string, n int, contexts func(i int) context.Context, granted func(i int, l *holdfast.Lease)) (wait func()) {
	b.Helper()
	all := b.newClients(n)
	var waiters sync.WaitGroup
	for i, c := range all {
		waiters.Go(func() {
			var l *holdfast.Lease
			err := b.retryLate(func() (err error) {
				l, err = c.Acquire(contexts(i), key, &holdfast.AcquireOptions{TTL: b.long})
				return err
			})
			if err != nil {
				if contexts(i).Err() == nil {
					b.Errorf("waiter %d: %v", i, err)
				}
				return
			}
			granted(i, l)
			if err := l.Release(b.Context()); err != nil && !b.isStall(err) {
				b.Errorf("release by waiter %d: %v", i, err)
			}
		})
		b.awaitWaiters(all[0], key, i+1)
		time.Sleep(time.Millisecond) // in a bubble the next could otherwise come at the same time
	}
	return waiters.Wait
}

// awaitWaiters blocks until every node knows of n waiters.
func (b *bench) awaitWaiters(c *holdfast.Client, key string, n int) {
	b.Helper()
	b.awaitStatus(c, key, func(st holdfast.Status) bool {
		return st.Waiters == n && !slices.ContainsFunc(st.Nodes, func(s holdfast.NodeView) bool { return s.Waiters != n })
	})
}

// awaitWait blocks until n callers wait for key, if that can be known: a driver without an order need not know
// its waiters.
func (b *bench) awaitWait(c *holdfast.Client, key string, n int) {
	b.Helper()
	if !b.limits.Order {
		time.Sleep(200 * time.Millisecond) // this driver does not report its waiters
		return
	}
	b.awaitStatus(c, key, func(st holdfast.Status) bool { return st.Waiters >= n })
}

// awaitStatus blocks until ok accepts the status of key. Without driver.Inspector it waits for a fixed time,
// which is enough on any machine that is not overloaded.
func (b *bench) awaitStatus(c *holdfast.Client, key string, ok func(holdfast.Status) bool) {
	b.Helper()
	if !b.can.inspect {
		time.Sleep(200 * time.Millisecond) // this driver has no Inspect
		return
	}
	var st holdfast.Status
	var err error
	defer func() {
		if b.Failed() {
			b.Logf("last status of the lock: %+v, %v", st, err)
		}
	}()
	b.eventually("the lock is seen as it should be", func() bool {
		st, err = c.Inspect(b.Context(), key)
		return err == nil && ok(st)
	})
}

// inOrder queues waiters behind a holder, lets some of them leave, and checks that the others are served in
// order. On a machine that stalls, a waiter whose answers come too late loses its turn, so a real service gets
// up to three attempts.
func (b *bench) inOrder(waiters int, leave ...int) {
	b.skipWithout(b.limits.Order, "Limits.Order")
	var want []int
	for i := range waiters {
		if !slices.Contains(leave, i) {
			want = append(want, i)
		}
	}
	var order []int
	for range b.roundCount(1, 3) {
		if order = b.serveRound(waiters, leave); slices.Equal(order, want) {
			break
		}
	}
	if !slices.Equal(order, want) {
		b.Errorf("served in the order %v, want %v", order, want)
	}
	b.checkCleared()
}

// serveRound runs one round of inOrder. It returns the waiters that stayed, in the order in which they were
// served.
func (b *bench) serveRound(waiters int, leave []int) []int {
	first := b.acquire(b.newClient(), "k", &holdfast.AcquireOptions{TTL: b.long})
	contexts := make([]context.Context, waiters)
	cancels := make([]context.CancelFunc, waiters)
	for i := range waiters {
		contexts[i], cancels[i] = context.WithCancel(b.boundedContext())
		defer cancels[i]()
	}
	var mu sync.Mutex
	var order []int
	wait := b.queueUp("k", waiters, func(i int) context.Context { return contexts[i] }, func(i int, _ *holdfast.Lease) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, i)
	})
	for _, i := range leave {
		cancels[i]()
	}
	b.release(first)
	wait()
	// Waiters that left may have been served at the last moment.
	return slices.DeleteFunc(order, func(i int) bool { return slices.Contains(leave, i) })
}

func servedInOrder(b *bench) { b.inOrder(8) }

func cancelledWaiterIsSkipped(b *bench) { b.inOrder(6, 0, 3) }

// A dead holder delays the waiters by its TTL and their own timer at most.
func waitOutlivesDeadHolder(b *bench) {
	drv := b.openDriver()
	defer drv.Close()
	g := b.takeGrant(drv, "k", b.exactTTL(3*time.Second)) // each node has a tenth of it to answer
	l := b.acquire(b.newClient(), "k", nil)
	if now := time.Now(); now.Before(g.TrustedUntil) {
		b.Errorf("granted %v before the old holder's trust ended", g.TrustedUntil.Sub(now))
	}
	b.release(l)
}

func waitStartIsReported(b *bench) {
	told := make(chan holdfast.WaitingEvent, 1)
	c := b.newClient()
	waiter := b.clientOf(b.openDriver(), &holdfast.Options{Hooks: holdfast.Hooks{
		Waiting: func(e holdfast.WaitingEvent) { told <- e },
	}})
	l := b.acquire(c, "k", nil)
	ctx, cancel := context.WithCancel(b.boundedContext())
	done := make(chan error)
	go func() {
		_, err := waiter.Acquire(ctx, "k", nil)
		done <- err
	}()
	select {
	case e := <-told:
		if e.Key != "k" || e.Held == nil {
			b.Errorf("WaitingEvent = %+v", e)
		}
	case <-ctx.Done():
		b.Error("Hooks.Waiting was not called")
	}
	cancel()
	err := <-done
	b.checkError(err, context.Canceled)
	if !b.isStall(err) {
		b.checkError(err, holdfast.ErrHeld)
	}
	b.release(l)
	b.checkCleared()
}

// With MaxWaiters of 1, one caller may wait behind the holder: it does not count itself. The next caller is
// rejected.
func maxWaitersCountsOthers(b *bench) {
	b.skipWithout(b.limits.Order, "Limits.Order")
	c, waiter, other := b.newClient(), b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long})
	ctx, cancel := context.WithCancel(b.boundedContext())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(ctx, "k", &holdfast.AcquireOptions{MaxWaiters: 1})
		done <- err
	}()
	b.awaitWaiters(c, "k", 1)
	_, err := other.Acquire(b.boundedContext(), "k", &holdfast.AcquireOptions{MaxWaiters: 1})
	if held, ok := errors.AsType[*holdfast.HeldError](err); !b.isStall(err) && (!ok || held.Waiters != 1 || errors.Is(err, context.DeadlineExceeded)) {
		b.Errorf("behind a waiter, with MaxWaiters 1: %v", err)
	}
	cancel()
	b.checkError(<-done, context.Canceled)
	b.release(l)
	b.checkCleared()
}

// The driver reports the obstacle when a wait begins and when its kind changes, and never the same kind twice.
func obstacleChangeIsReported(b *bench) {
	c, waiter := b.newClient(), b.openDriver()
	defer waiter.Close()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief})
	told, done := make(chan error, 1000), make(chan error, 1)
	ctx, cancel := context.WithCancel(b.boundedContext())
	defer cancel()
	go func() {
		_, err := waiter.Acquire(ctx, driver.Request{Key: "k", TTL: b.long, OnObstacle: func(err error) { told <- err }})
		done <- err
	}()
	var last error
	next := func(err error) {
		held, down := errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrUnavailable)
		if held == down || last != nil && held == errors.Is(last, driver.ErrHeld) {
			b.Errorf("told %v after %v", err, last)
		}
		last = err
	}
	await := func(kind error) {
		b.Helper()
		for !errors.Is(last, kind) { // a service that stalls adds an outage
			select {
			case err := <-told:
				next(err)
			case err := <-done:
				b.Fatalf("the wait ended with %v", err)
			}
		}
	}
	await(driver.ErrHeld)
	if b.virtual { // time enough to ask again more than once
		time.Sleep(2 * b.brief)
	}
	if b.StopNodes != nil && b.StartNodes != nil {
		b.StopNodes(max(b.Nodes, 1))
		await(driver.ErrUnavailable)
		time.Sleep(b.short / 4) // it asks again meanwhile, and reports nothing new
		b.StartNodes()
		await(driver.ErrHeld)
	}
	cancel()
	err := <-done
	b.checkError(err, context.Canceled)
	if !b.isStall(err) {
		b.checkError(err, driver.ErrHeld)
	}
	for len(told) > 0 {
		next(<-told)
	}
	b.release(l)
	b.checkCleared()
}

func endedContextDoesNotAcquire(b *bench) {
	drv, other := b.openDriver(), b.newClient()
	defer drv.Close()
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	for _, once := range []bool{false, true} {
		_, err := drv.Acquire(ctx, driver.Request{Key: "k", TTL: b.long, NoWait: once})
		b.checkError(err, context.Canceled)
		b.checkFree(other, "k")
	}
	b.checkCleared()
}

func waitStartsInOutage(b *bench) {
	b.needsStop(1)
	c := b.newClient()
	b.StopNodes(max(b.Nodes, 1))
	time.AfterFunc(300*time.Millisecond, b.StartNodes) // a client that asks meanwhile reaches no node
	l, err := c.Acquire(b.boundedContext(), "k", &holdfast.AcquireOptions{TTL: b.long})
	if err != nil {
		b.Fatalf("the wait ended with %v", err)
	}
	b.release(l)
	b.checkCleared()
}
