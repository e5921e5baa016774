// Package driverkit has the parts that drivers share.
//
//   - Calls begins and ends the calls of a driver, Wait and Attempt wait for a lock, and Lane limits the
//     requests in progress.
//   - States has the states of nodes, Owners the names of owners, Block the tokens of a grant, TrustEnd the end of
//     trust.
//   - Grammar reads URLs, ParseSets the sets of a backend, and Mask hides passwords.
//   - Findings collects the findings of a doctor.
//   - ObstacleIn and WithObstacle name the obstacle of a wait in its error.
//
// The drivers of nodes that vote use quorum/engine for calls and waits, and the rest from here.
package driverkit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// TrustEnd returns the time until which a lease of a TTL, requested at sent, can be trusted.
func TrustEnd(sent time.Time, ttl time.Duration) time.Time { return sent.Add(ttl - pace.Drift(ttl)) }

// Jitter returns about d, so that waiters do not all come back at the same time. For values below 0 it returns
// 0.
func Jitter(d time.Duration) time.Duration {
	d = max(d, 0)
	return d - rand.N(d/4+1)
}

// Sleep sleeps for about d, and returns false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(Jitter(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// WithLimit returns context.WithTimeout with a readable cause.
func WithLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %v", limit.Round(time.Millisecond)))
}

// CallUserFunc runs fn, a function of the program that may ignore its context or panic. It returns the result of
// fn, or the cause of ctx if ctx ends first. If fn returns a value without an error after that, late gets the
// value.
func CallUserFunc[T any](ctx context.Context, fn func() (T, error), late func(T)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	result := make(chan outcome, 1)
	go func() {
		var got outcome
		defer func() {
			if fault := recover(); fault != nil {
				got.err = fmt.Errorf("a function of the program panicked: %v", fault)
			}
			result <- got
		}()
		got.value, got.err = fn()
	}()
	select {
	case got := <-result:
		return got.value, got.err
	case <-ctx.Done():
		go func() {
			if got := <-result; got.err == nil {
				late(got.value)
			}
		}()
		var none T
		return none, context.Cause(ctx)
	}
}

// RetryUnanswered repeats fn while the service does not answer, until ctx ends.
func RetryUnanswered(ctx context.Context, fn func() error) error {
	for pause := pace.ShortPause; ; pause = min(2*pause, pace.LongPause) {
		err := fn()
		if !errors.Is(err, driver.ErrUnavailable) || IsPermanent(err) || !Sleep(ctx, pause) {
			return err
		}
	}
}

// Calls tracks the calls of a driver and their background work.
type Calls struct {
	Alive context.Context // ends when Close begins
	Work  context.Context // context of requests; ends when Close has waited for them
	end   context.CancelFunc
	stop  context.CancelFunc

	mu     sync.Mutex // guards the fields below
	closed bool
	tasks  sync.WaitGroup // once closed is set, only running tasks add more
}

// NewCalls returns the Calls of a new driver.
func NewCalls() *Calls {
	c := &Calls{}
	c.Alive, c.end = context.WithCancel(context.Background())
	c.Work, c.stop = context.WithCancel(context.Background())
	return c
}

// Enter begins a call, which ends with Leave. It returns ErrClosed after Close.
func (c *Calls) Enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return driver.ErrClosed
	}
	c.tasks.Add(1)
	return nil
}

// Leave ends a call.
func (c *Calls) Leave() { c.tasks.Done() }

// Go runs fn in the background. Only a running call, the fn of another Go, or the constructor of the driver
// calls it.
func (c *Calls) Go(fn func()) { c.tasks.Go(fn) }

// FinishRelease runs fn, which frees a lock, to its end, and returns its error. fn calls begun when its turn in l has
// come; without l it has begun at once. FinishRelease returns earlier, with an error about the missing answer, a
// moment after ctx ends, and if the service is silent for too long (driver: Prompt). Only a running call calls
// it.
func (c *Calls) FinishRelease(ctx context.Context, s *States, l *Lane, fn func(begun func()) error) error {
	done, turn := make(chan error, 1), make(chan struct{})
	begun := sync.OnceFunc(func() { close(turn) })
	if l == nil {
		begun()
	}
	c.Go(func() { done <- fn(begun) })
	late := time.NewTimer(pace.ReleaseTime())
	defer late.Stop()
	waits, ends := turn, ctx.Done()
	for {
		select {
		case err := <-done:
			return err
		case <-waits:
			waits = nil
			late.Reset(pace.ReleaseTime())
			continue
		case <-ends:
			waits, ends = nil, nil
			late.Reset(pace.FinishTime())
			continue
		case <-late.C:
			if waits != nil && l.silentTime() < pace.ReleaseTime() {
				late.Reset(pace.ReleaseTime() - l.silentTime())
				continue
			}
		}
		err := error(s.Unavailable(errors.New("the release is not confirmed yet")))
		if down := s.downError(); down != nil {
			err = fmt.Errorf("the release is not confirmed yet: %w", down)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return err
	}
}

// Close ends Alive, waits for all calls and their work in the background, and ends Work, at the latest after
// two seconds. Then it waits for the rest for at most two seconds more, because a hook of the program may ignore
// its context. A second Close returns false and does nothing.
func (c *Calls) Close() bool {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	if again {
		return false
	}
	c.end()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.tasks.Wait()
	}()
	late := time.NewTimer(pace.CloseTime())
	defer late.Stop()
	select {
	case <-ended:
		c.stop()
		return true
	case <-late.C:
	}
	c.stop()
	late.Reset(pace.CloseTime())
	select {
	case <-ended:
	case <-late.C:
	}
	return true
}
