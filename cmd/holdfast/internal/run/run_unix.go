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

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// releaseTimeout bounds the wait for a release to be confirmed: a lock that is
// not released lapses by itself.
const releaseTimeout = 2 * time.Second

// strayTimeout bounds the hunt for processes that left the group.
const strayTimeout = 2 * time.Second

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

// session is a command that runs.
type session struct {
	plan    *Plan
	runner  *Runner
	log     *slog.Logger
	client  *holdfast.Client
	lease   *holdfast.Lease // nil: it runs without
	signals chan os.Signal
	resumed chan os.Signal // SIGCONT

	job    *proc.Job
	alarm  *boot.Alarm
	keeper keeper

	started    boot.Instant
	trusted    boot.Instant // D; 0 without a lease
	why        Outcome      // why the command is being stopped; "": it is not
	cause      error
	killAt     boot.Instant // of the command that is being stopped
	killing    bool
	asked      int   // how many INT and TERM were passed on
	suspending bool  // a SIGTSTP was passed on
	failing    bool  // the last renewal did
	gone       bool  // the lease is
	goesOn     error // why it is, while the command goes on: --on-lost=warn

	exited   bool
	status   unix.WaitStatus // of the command
	endedAt  boot.Instant
	lingered bool // it was said that others of the group go on
}

// run starts the command, sees it through, and gives the lease back.
func (s *session) run() Result {
	begun := time.Now()
	res := s.command()
	if s.lease != nil {
		s.settle(&res.Status)
		res.Status.HeldMS = time.Since(begun).Milliseconds()
	}
	return res
}

// settle gives the lease back and notes what became of it.
func (s *session) settle(st *Status) {
	var err error
	if st.Started {
		err = release(s.lease)
	} else {
		err = giveBack(s.client, s.lease, s.plan)
	}
	if err != nil && !s.gone {
		s.log.Warn("the release was not confirmed; the lock lapses by itself: " + err.Error())
	}
	st.Held, st.Token, st.Owner = !s.gone, s.lease.Token(), s.lease.ID()
}

func (s *session) command() Result {
	if err := s.start(); err != nil {
		outcome := Failed
		if errors.Is(err, holdfast.ErrLost) {
			outcome, s.gone = Lost, true
		}
		return Result{Err: err, Status: Status{Outcome: outcome, ExitCode: exitcode.Of(err)}}
	}
	s.loop()
	s.keeper.stop()
	s.alarm.Close()
	s.reportEscaped()
	lent := s.job.HadTerminal()
	s.job.Close()
	res := s.result()
	if lent && s.status.Signaled() && s.status.Signal() == syscall.SIGINT {
		res.Raise = syscall.SIGINT
	}
	return res
}

func (s *session) start() error {
	if err := s.fresh(); err != nil {
		return err
	}
	var err error
	if s.alarm, err = boot.NewAlarm(); err != nil {
		return notRun(err)
	}
	notify(s.signals, passing) // now, or SIGTSTP would stop this process and not a command that has just begun
	s.resumed = make(chan os.Signal, 4)
	signal.Notify(s.resumed, unix.SIGCONT)
	s.job, err = proc.Start(proc.Command{
		Path: s.plan.Path, Args: s.plan.Args, Env: s.plan.environment(s.lease), Self: s.runner.Self, Guard: s.plan.Guard && s.lease != nil,
	}, s.lastMoment())
	if err != nil {
		s.alarm.Close()
		return notRun(err)
	}
	s.started = boot.Now()
	if s.lease != nil {
		s.log.Debug("running", "pid", s.job.PID(), "until", s.lease.Deadline())
	}
	s.keeper = s.plan.keep(s.lease)
	return nil
}

// fresh sees to it that the command does not start on a lease that is about to
// end: this process may have been stopped while it waited.
func (s *session) fresh() error {
	if s.lease == nil {
		return nil
	}
	s.trusted = boot.At(s.lease.Deadline())
	if boot.Now() < s.softEnd() {
		return nil
	}
	r := s.plan.round(context.Background(), s.lease)
	s.trusted = r.trusted
	if r.err != nil {
		return fmt.Errorf("the lease could not be renewed before the command was started: %w", r.err)
	}
	return nil
}

// notRun gives the code for a command that could not be executed. Anything else that
// kept it from being started is holdfast's own failure.
func notRun(err error) error {
	if _, ok := errors.AsType[*proc.ExecError](err); !ok {
		return exitcode.With(exitcode.Bug, fmt.Errorf("the command was not started: %w", err))
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return exitcode.With(exitcode.NotFound, fmt.Errorf("%w: the program, or the interpreter its first line names, is not there", err))
	case errors.Is(err, unix.ENOEXEC):
		return exitcode.With(exitcode.NotExecutable, fmt.Errorf("%w: a script needs a first line such as #!/bin/sh", err))
	}
	return exitcode.With(exitcode.NotExecutable, err)
}

// lastMoment is when every process of the command must be dead, or 0.
func (s *session) lastMoment() boot.Instant {
	if s.lease == nil || s.plan.OnLost.Warn {
		return 0
	}
	return s.trusted.Add(-s.plan.Margin)
}

// softEnd is when the command is told to end if the lease was not renewed.
func (s *session) softEnd() boot.Instant {
	return s.trusted.Add(-s.plan.Margin - s.plan.killAfter())
}

// bound says that the command has to end before its lease does. Where it need not,
// the lease is lost when the client says so, who may yet renew it in the last moment.
func (s *session) bound() bool { return s.lease != nil && !s.plan.OnLost.Warn }

func (s *session) loop() {
	for !s.over() {
		s.alarm.Set(s.next())
		select {
		case e, ok := <-s.job.Events:
			s.happened(e, ok)
		case sig := <-s.signals:
			s.signalled(sig.(syscall.Signal))
		case <-s.resumed:
			s.resume()
		case r := <-s.keeper.renewals:
			s.renewed(r)
		case <-s.alarm.C:
		}
		s.advance(boot.Now())
	}
}

// over says that nothing of the command is left that has to end.
func (s *session) over() bool {
	switch {
	case !s.exited:
		return false
	case s.job.Alive():
		return false
	case s.why == Lost: // also those who have left the group
		return !s.job.Kill() || boot.Now() > s.endedAt.Add(strayTimeout)
	}
	return true
}

// next is when to look again if nothing happens; 0: never.
func (s *session) next() boot.Instant {
	now := boot.Now()
	var at boot.Instant
	earliest := func(i boot.Instant) {
		if i != 0 && (at == 0 || i < at) {
			at = i
		}
	}
	switch {
	case s.exited: // no signal tells that the last of a group has ended
		earliest(now.Add(min(max(now.Sub(s.endedAt)/8, 5*time.Millisecond), 200*time.Millisecond)))
	case s.killing:
		earliest(now.Add(10 * time.Millisecond))
	}
	if !s.killing {
		earliest(s.killAt)
		earliest(s.lastMoment())
	}
	if s.why == "" {
		if s.bound() {
			earliest(s.softEnd())
		}
		if s.plan.MaxRuntime > 0 {
			earliest(s.started.Add(s.plan.MaxRuntime))
		}
	}
	return at
}

// advance does what is due.
func (s *session) advance(now boot.Instant) {
	if s.why == "" && s.bound() && now >= s.softEnd() {
		s.lose(errors.New("the lease was not renewed in time"))
	}
	if s.why == "" && s.plan.MaxRuntime > 0 && now >= s.started.Add(s.plan.MaxRuntime) && !s.exited {
		s.log.Warn(fmt.Sprintf("stopping the command: --max-runtime %v is over", s.plan.MaxRuntime))
		s.stop(Timeout, fmt.Errorf("the command was stopped after --max-runtime %v", s.plan.MaxRuntime), Term)
	}
	last := s.lastMoment()
	due := s.killAt
	if due == 0 || last != 0 && last < due {
		due = last
	}
	if due != 0 && now >= due && !s.exited {
		s.job.Signal(syscall.SIGKILL) // before anything that takes time
		if !s.killing {
			s.log.Debug("killing the group", "late", now.Sub(due))
		}
		s.killing = true
	}
	if s.killing {
		s.job.Signal(syscall.SIGKILL)
		if s.why == Lost {
			s.job.Kill()
		}
	}
}

// lose stops the command because of its lease, as --on-lost says.
func (s *session) lose(cause error) {
	if s.gone {
		return
	}
	s.gone = true
	policy := s.plan.OnLost
	switch {
	case policy.Warn:
		s.goesOn = cause
		s.log.Error("the lease is lost, and the command goes on, as --on-lost=warn says: " + cause.Error())
	case s.why != "": // being stopped already; the last moment bounds it
		s.why, s.cause = Lost, cause
	default:
		s.log.Error("stopping the command: " + cause.Error())
		s.stop(Lost, fmt.Errorf("the lease was lost and the command stopped: %w", cause), policy)
	}
}

func (s *session) stop(why Outcome, cause error, how Policy) {
	s.why, s.cause = why, cause
	s.killAt = boot.Now()
	if how.Kill {
		return
	}
	s.killAt = s.killAt.Add(s.plan.KillAfter)
	s.pass(how.Signal)
	s.job.Signal(unix.SIGCONT) // one that is stopped would not see it
}

// pass hands a signal on, as --signal-scope says.
func (s *session) pass(sig syscall.Signal) {
	if s.plan.OnlyChild && !s.exited {
		s.job.SignalCommand(sig)
		return
	}
	s.job.Signal(sig)
}

func (s *session) renewed(r renewal) {
	switch {
	case errors.Is(r.err, holdfast.ErrLost):
		s.keeper.renewals = nil
		s.lose(r.err)
		return
	case r.err != nil:
		s.trusted = min(s.trusted, r.trusted)
		end, what := s.softEnd(), "the command is stopped"
		if !s.bound() {
			end, what = s.trusted, "the lease ends"
		}
		if left := end.Sub(boot.Now()); s.why == "" && left > 0 {
			level := slog.LevelWarn
			if s.failing { // several follow within a second
				level = slog.LevelDebug
			}
			s.log.Log(context.Background(), level, fmt.Sprintf("renewal failed; trying again, %s in %v: %v", what, left.Round(time.Millisecond), r.err))
		}
		s.failing = true
	case s.why == Lost: // nothing brings the command back
		return
	default:
		s.log.Debug("renewed", "until", s.lease.Deadline())
		s.trusted, s.failing = r.trusted, false
	}
	if last := s.lastMoment(); last != 0 {
		if err := s.job.Protect(last); err != nil {
			s.log.Debug("the guard does not listen: " + err.Error())
		}
	}
}

func (s *session) happened(e proc.Event, open bool) {
	switch {
	case !open: // no process is left; the command was among them
		s.job.Events = nil
	case e.Kind == proc.Exited:
		s.exited, s.status, s.endedAt = true, e.Status, boot.Now()
		s.reportMembers()
	case e.Kind == proc.Stopped:
		s.stopped(e.Status.StopSignal())
	case e.Kind == proc.GuardGone:
		s.job.Unguarded()
		s.unguarded(e.Status.ExitStatus() == proc.GuardKilled)
	}
}

// unguarded notes that the guard has ended, and whether it has killed the command.
func (s *session) unguarded(killed bool) {
	switch {
	case killed:
		s.killing, s.gone, s.why = true, true, Lost
		s.cause = errors.New("the guard has killed the command: the lease was about to end, and holdfast had not renewed it in time")
	case !s.exited:
		s.log.Error("the guard has ended; the command goes on without it")
	}
}

// stopped follows a command that was stopped: this process stops as well if there
// is somebody who can continue it, and otherwise goes on keeping the lease.
func (s *session) stopped(sig syscall.Signal) {
	if s.job.Lend(sig) || !s.job.Interactive() && !s.suspending {
		return
	}
	whole := !s.suspending // the terminal told the command alone, and means all of us
	s.suspending = false
	s.job.Suspend(s.resumed, whole)
	s.resume()
}

// resume lets the command go on if there is still time for it to do so.
func (s *session) resume() {
	s.advance(boot.Now())
	if s.why == "" && !s.killing {
		s.job.Resume()
	}
}

func (s *session) signalled(sig syscall.Signal) {
	switch sig {
	case unix.SIGTSTP:
		s.suspending = true
	case unix.SIGINT, unix.SIGTERM:
		if s.asked++; s.asked > 1 {
			s.log.Warn("killing the command: " + signalName(sig) + " came again")
			s.killAt = boot.Now()
			return
		}
	}
	s.log.Debug("passing on " + signalName(sig))
	s.pass(sig)
	if sig == unix.SIGTERM {
		s.job.Signal(unix.SIGCONT)
	}
}

func (s *session) reportMembers() {
	if s.lingered || !s.job.Alive() {
		return
	}
	s.lingered = true
	text := "the command has ended, but others of its process group go on; "
	if s.lease != nil && !s.gone {
		text += "the lock is kept until they end"
	} else {
		text += "holdfast waits until they end"
	}
	if members := s.job.Members(); len(members) > 0 {
		text += fmt.Sprint(": ", members)
	}
	s.log.Warn(text)
}

// reportEscaped warns of processes that go on without the lock, also with -q.
func (s *session) reportEscaped() {
	if escaped := s.job.Escaped(); len(escaped) > 0 && s.lease != nil {
		s.log.Error(fmt.Sprint("the lock is released while processes go on that left the command's group: ", escaped))
	}
}

func (s *session) result() Result {
	res := Result{Err: s.cause}
	st := &res.Status
	st.Outcome, st.Started = s.why, true
	switch {
	case s.why == Lost:
		st.ExitCode = s.plan.Lost
	case s.why == Timeout:
		st.ExitCode = exitcode.Timeout
	case s.goesOn != nil:
		st.Outcome, st.Error = RanLost, s.goesOn.Error()
	default:
		st.Outcome = Ran
	}
	if s.status.Signaled() {
		st.ChildSignal = signalName(s.status.Signal())
		if s.why == "" {
			st.ExitCode = exitcode.Signal(s.status.Signal())
		}
		return res
	}
	code := s.status.ExitStatus()
	st.ChildExit = &code
	if s.why == "" {
		st.ExitCode = exitcode.Code(code)
	}
	return res
}

// release gives a lease up. It does not wait longer than a lock is worth that
// lapses by itself.
func release(lease *holdfast.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	return lease.Release(ctx)
}

// giveBack releases a lease under which nothing was run. --hold-at-least is not for
// it: the other machines would skip a run that nobody made.
func giveBack(client *holdfast.Client, lease *holdfast.Lease, p *Plan) error {
	err := release(lease)
	if err != nil || p.HoldAtLeast == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if err = client.ForceRelease(ctx, p.Name, lease.Token()); errors.Is(err, holdfast.ErrLost) {
		return nil // that time is over already
	}
	return err
}
