package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/election"
)

const electHelp = `Elect keeps one instance of a command running over all machines that call it
with the same NAME. Each call waits for the lock, runs the command, and waits
again: when the command has ended, its machine has died or its lease was lost,
the next one in the queue starts it. holdfast show NAME prints the leader, its
note (--note), and its term, which the command has in HOLDFAST_LOCK_TOKEN.

A command that ends within ten seconds is started again after a pause that
grows from one second to one minute; meanwhile another machine may have it.
TERM and INT end the command, and then elect with 0. QUIT and HUP are for a
command that runs: while elect stands by, QUIT ends it with 131, and HUP does
nothing. An error that a new attempt cannot fix ends elect at once: wrong usage
or credentials, a missing program.
`

const (
	quickEnd   = 10 * time.Second // a command that ends sooner counts as failed
	pauseFirst = time.Second
	maxPause   = time.Minute
)

func (a *app) electCommand() *cobra.Command {
	fl := newRunFlags()
	cmd := &cobra.Command{
		Use:   "elect [flags] NAME -- COMMAND [ARGUMENT...]",
		Short: "Keep one instance of a command running over all machines",
		Long:  electHelp,
		Example: `  holdfast elect scheduler -- ./scheduler.sh
  holdfast elect --status-file leader.json scheduler -- ./scheduler.sh`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runElect(cmd, fl, args) },
	}
	fl.defineCommand(cmd)
	return cmd
}

func (a *app) runElect(cmd *cobra.Command, fl *runFlags, args []string) error {
	j, err := a.newJob(cmd, fl, args)
	if err != nil {
		return err
	}
	defer j.close()
	ctx, stop := contextUntilSignal(syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), run.Passed...) // they are for the command; between two commands they are dropped
	runner := j.newRunner(true)
	started := runner.Started
	runner.Take = campaign
	runner.Started = func(held run.Held) {
		started(held)
		j.log.Info(fmt.Sprintf("leading under the lock %q: the command was started", j.plan.Name()))
	}
	for failures := 0; ; {
		j.manager.notifyReady("standing by for %s", j.plan.Locks())
		res := runner.Run(j.plan)
		j.reports.end(res.Status)
		if res.Asked || ctx.Err() != nil {
			j.logSignal(ctx)
			return nil
		}
		if res.Status.ExitCode == exitcode.Signal(syscall.SIGHUP) && res.Status.Outcome == run.Signal {
			j.manager.notifyReloaded()
			continue // only a running command gets it
		}
		if isFinal(res) {
			a.code = res.Status.ExitCode
			j.printConclusion(res)
			return nil
		}
		failures++
		if st := res.Status; st.Started && st.EndedAt.Sub(st.StartedAt) > quickEnd {
			failures = 0
		}
		if !j.waitBeforeRetry(ctx, res, failures) {
			return nil
		}
	}
}

// campaign acquires the lock of a plan as a leader.
func campaign(ctx context.Context, client *holdfast.Client, p *run.Plan) (run.Held, error) {
	opts := p.Options()
	opts.Note = ""
	term, err := election.Campaign(ctx, client, p.Name(), p.Note, opts)
	if err != nil {
		return nil, err
	}
	return run.Single{Lease: term.Lease()}, nil
}

// isFinal reports whether another attempt would end in the same way.
func isFinal(res run.Result) bool {
	never := []exitcode.Code{exitcode.Usage, exitcode.Auth, exitcode.NotExecutable, exitcode.NotFound}
	return res.Status.Outcome == run.Signal || !res.Status.Started && slices.Contains(never, res.Status.ExitCode)
}

// waitBeforeRetry logs how an attempt ended and waits. It reports whether there is a next attempt.
func (j *job) waitBeforeRetry(ctx context.Context, res run.Result, failures int) bool {
	pause := time.Duration(0)
	if failures > 0 {
		pause = min(pauseFirst<<min(failures-1, 10), maxPause)
	}
	why := fmt.Sprintf("the command ended with %d", res.Status.ExitCode)
	if res.Err != nil {
		why = oneLine(res.Err)
	}
	j.log.Warn(fmt.Sprintf("%s; standing by again in %v", why, pause))
	j.manager.sendStatus("the command ended; standing by again in %v", pause)
	j.reports.begun = run.Begun{Outcome: run.Running, Name: j.plan.Name(), PID: os.Getpid(), BeganAt: time.Now().UTC()}
	if err := j.reports.begin(); err != nil {
		j.log.Error("the status was not written: " + oneLine(err))
	}
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		j.logSignal(ctx)
		return false
	}
}

// logSignal waits for the end of ctx and logs the signal that ended elect. ctx may end a moment after the
// command got the signal.
func (j *job) logSignal(ctx context.Context) {
	<-ctx.Done()
	which := "a signal"
	if why, ok := errors.AsType[exitcode.Interruption](context.Cause(ctx)); ok {
		which = exitcode.Name(why.Signal)
	}
	j.log.Info("stopped: " + which + " asked for it")
}
