//go:build unix

package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// Missing says what cannot be done on this system; "" for nothing.
func Missing() string {
	switch {
	case proc.Missing == "":
		return boot.Missing
	case boot.Missing == "":
		return proc.Missing
	}
	return proc.Missing + "; " + boot.Missing
}

// Runner runs plans.
type Runner struct {
	Self proc.Self
	Log  *slog.Logger
	// Open opens the backend.
	Open func(context.Context) (*holdfast.Client, error)
	// Busy adds to an ErrHeld what the backend knows about the holder.
	Busy func(*holdfast.Client, error) error
}

// Result is how a run ended.
type Result struct {
	Status Status
	Err    error          // why the command was not run, or was stopped
	Raise  syscall.Signal // to end by, so that a script in the terminal ends as well; 0: none
}

// Run runs p. It blocks until the command and its group have ended and the lease
// is released.
func (r *Runner) Run(p *Plan) Result {
	signals := make(chan os.Signal, 16)
	notify(signals, ending)
	defer signal.Stop(signals)

	began := time.Now()
	client, lease, err := r.acquire(p, signals)
	waited := time.Since(began)
	if client != nil {
		defer client.Close()
	}
	s := &session{plan: p, runner: r, log: r.Log, client: client, lease: lease, signals: signals}
	var res Result
	switch {
	case err == nil:
		res = s.run()
	case errors.Is(err, holdfast.ErrUnavailable) && p.Otherwise == "run" && !interrupted(err):
		r.Log.Error("running without the lock, as --if-unavailable=run says: " + err.Error()) // also with -q: nothing protects the command
		res = s.run()
		res.Status.unlocked(err)
	default:
		if client != nil && !interrupted(err) {
			err = r.Busy(client, err)
		}
		res = p.refusal(err)
	}
	st := &res.Status
	st.Name, st.WaitedMS, st.BeganAt, st.EndedAt = p.Name, waited.Milliseconds(), began.UTC(), time.Now().UTC()
	if res.Err != nil {
		st.Error = res.Err.Error()
	}
	return res
}

// unlocked notes that there never was a lease, and why.
func (st *Status) unlocked(why error) {
	if st.Outcome == Ran {
		st.Outcome, st.Error = RanUnlocked, why.Error()
	}
}

func interrupted(err error) bool {
	_, ok := errors.AsType[exitcode.Interruption](err)
	return ok
}

// acquire opens the backend and waits for the lease, or for a signal.
func (r *Runner) acquire(p *Plan, signals <-chan os.Signal) (*holdfast.Client, *holdfast.Lease, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	waited := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case s := <-signals:
			cancel(exitcode.Interruption{Signal: s.(syscall.Signal)})
		case <-waited:
		}
	}()
	client, lease, err := r.take(ctx, p)
	close(waited)
	<-watching
	if why, ok := errors.AsType[exitcode.Interruption](context.Cause(ctx)); ok {
		if err == nil {
			giveBack(client, lease, p) // the signal came with the lease
		}
		lease, err = nil, errors.Join(err, why)
	}
	cancel(nil)
	return client, lease, err
}

func (r *Runner) take(ctx context.Context, p *Plan) (*holdfast.Client, *holdfast.Lease, error) {
	if err := splay(ctx, p.Splay); err != nil {
		return nil, nil, err
	}
	client, err := r.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	opts := &holdfast.AcquireOptions{TTL: p.TTL, Wait: p.Wait, MinHold: p.HoldAtLeast, NoRenew: true}
	take := client.Acquire
	if p.NoWait {
		take = client.TryAcquire
	}
	lease, err := take(ctx, p.Name, opts)
	return client, lease, err
}

// splay waits up to d, so that machines whose cron starts at the same second do
// not all come at once.
func splay(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-time.After(rand.N(d)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refusal is the result of a run that did not start.
func (p *Plan) refusal(err error) Result {
	res := Result{Err: err}
	st := &res.Status
	st.ExitCode = exitcode.Of(err)
	if why, ok := errors.AsType[exitcode.Interruption](err); ok {
		st.Outcome, st.ExitCode = Signal, exitcode.Signal(why.Signal)
		res.Err = fmt.Errorf("%s ended the wait for %q; the command was not run", signalName(why.Signal), p.Name)
		return res
	}
	if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
		st.Outcome, st.ExitCode, st.Holder = Busy, p.Busy, &held.Holder
		return res
	}
	st.Outcome = Failed
	if errors.Is(err, holdfast.ErrUnavailable) {
		st.Outcome = Unavailable
		if p.Otherwise == "skip" {
			st.ExitCode = exitcode.OK
		}
	}
	return res
}
