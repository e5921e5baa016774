//go:build unix

package run

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// Missing describes what this system cannot do; empty: nothing.
func Missing() string {
	switch {
	case proc.Missing == "":
		return boot.Missing
	case boot.Missing == "":
		return proc.Missing
	}
	return proc.Missing + "; " + boot.Missing
}

// Run runs p. It blocks until the command and its group have ended and the lease
// is released.
func (r *Runner) Run(p *Plan) Result {
	s := &session{plan: p, runner: r, log: r.Log, signals: make(chan os.Signal, 16), renewals: make(chan holdfast.RenewedEvent, 16)}
	notifyUnignored(s.signals, endSignals)
	defer signal.Stop(s.signals)

	began := time.Now()
	err := s.acquireLeases()
	waited := time.Since(began)
	if s.leases != nil && len(p.Names) == 1 {
		s.log = s.log.With("token", int64(s.leases.All()[0].Token()))
	}
	if s.client != nil {
		defer s.client.Close()
	}
	var res Result
	switch {
	case err == nil:
		res = s.run()
	case errors.Is(err, holdfast.ErrUnavailable) && p.Otherwise == "run" && !isInterrupted(err):
		r.Log.Error("running without the lock, because of --if-unavailable=run: " + err.Error()) // also with -q: nothing protects the command
		res = s.run()
		if res.Status.Outcome == Ran {
			res.Status.Outcome, res.Status.Error = RanUnlocked, err.Error()
		}
	default:
		if s.client != nil && !isInterrupted(err) {
			err = Patience{Most: p.Wait, Began: began}.NameEnd(r.Busy(s.client, err))
		}
		res = p.refusedResult(err)
	}
	st := &res.Status
	st.Name, st.WaitedMS, st.BeganAt, st.EndedAt = p.Name(), waited.Milliseconds(), began.UTC(), time.Now().UTC()
	if res.Err != nil {
		st.Error = res.Err.Error()
	}
	return res
}

func isInterrupted(err error) bool {
	_, ok := errors.AsType[exitcode.Interruption](err)
	return ok
}

// acquireLeases opens the backend and waits for the leases, or for a signal.
func (s *session) acquireLeases() error {
	ctx, cancel := context.WithCancelCause(context.Background())
	waited := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case sig := <-s.signals:
			cancel(exitcode.Interruption{Signal: sig.(syscall.Signal)})
		case <-waited:
		}
	}()
	err := s.takeLeases(ctx)
	close(waited)
	<-watching
	if why, ok := errors.AsType[exitcode.Interruption](context.Cause(ctx)); ok {
		if err == nil {
			s.releaseUnused() // the signal came together with the leases
		}
		s.leases, err = nil, errors.Join(err, why)
	}
	cancel(nil)
	return err
}

func (s *session) takeLeases(ctx context.Context) (err error) {
	p := s.plan
	if err := waitSplay(ctx, p.Splay); err != nil {
		return err
	}
	wait := Patience{Most: p.Wait, Began: time.Now()}
	if err := wait.During(ctx, func(ctx context.Context) error {
		s.client, err = s.runner.Open(ctx, s.noticeRenewal)
		return err
	}); err != nil {
		return err
	}
	if err := s.checkNesting(ctx); err != nil {
		return err
	}
	defer s.runner.Waits(s.client)()
	rest := *p
	rest.Wait = wait.Left()
	s.leases, err = s.runner.Take(ctx, s.client, &rest)
	return err
}

// checkNesting refuses to wait for a run that waits for this one: this process is part of that run's command,
// which would never end.
func (s *session) checkNesting(ctx context.Context) error {
	if s.plan.Nested {
		return nil
	}
	for owner, name := range outerRuns() {
		of := name
		if at := strings.LastIndexByte(name, '#'); at > 0 && s.plan.Readers > 0 {
			of = name[:at] // name may be a reader's place
		}
		if !slices.Contains(s.plan.Names, name) && !slices.Contains(s.plan.Names, of) {
			continue
		}
		if st, err := s.client.Inspect(ctx, name); err == nil && st.Held && st.Owner == owner {
			return exitcode.Usagef("this command already runs under %q, which is held until this command ends, so that waiting would never end; "+
				"remove the inner run; --nested is for a daemon that outlives the outer run", name)
		}
	}
	return nil
}

// noticeRenewal forwards a renewal to the session, without waiting: the session reads the lease.
func (s *session) noticeRenewal(e holdfast.RenewedEvent) {
	select {
	case s.renewals <- e:
	default:
	}
}

// waitSplay waits for a random time up to d, so that machines whose cron starts at the same second do not all
// start at once.
func waitSplay(ctx context.Context, d time.Duration) error {
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

// refusedResult returns the result of a run that did not start.
func (p *Plan) refusedResult(err error) Result {
	res := Result{Err: err}
	st := &res.Status
	st.ExitCode = exitcode.Of(err)
	if why, ok := errors.AsType[exitcode.Interruption](err); ok {
		st.Outcome, st.ExitCode = Signal, exitcode.Signal(why.Signal)
		res.Err = why.Waiting(p.Name(), err, "the command was not run")
		return res
	}
	if errors.Is(err, holdfast.ErrHeld) {
		st.Outcome, st.ExitCode = Busy, p.Busy
		if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
			st.Holder = &held.Holder
		}
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
