//go:build !unix

package run

import (
	"context"
	"errors"
	"log/slog"
	"syscall"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// Missing says what cannot be done on this system.
func Missing() string { return "run needs a Unix system" }

// Runner runs plans.
type Runner struct {
	Self proc.Self
	Log  *slog.Logger
	Open func(context.Context) (*holdfast.Client, error)
	Busy func(*holdfast.Client, error) error
}

// Result is how a run ended.
type Result struct {
	Status Status
	Err    error
	Raise  syscall.Signal
}

var signalNames = map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGKILL: "SIGKILL"}

// Run refuses: without process groups and signals, a command cannot be stopped
// together with what it started.
func (r *Runner) Run(p *Plan) Result {
	err := exitcode.Usagef("run needs process groups and signals, which this system lacks; use acquire, renew and release: %w", errors.ErrUnsupported)
	return Result{Err: err, Status: Status{Outcome: Failed, ExitCode: exitcode.Usage, Name: p.Name}}
}
