//go:build !unix

package run

import (
	"errors"
	"os"
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// Missing describes what this system cannot do.
func Missing() string { return "run needs a Unix system" }

// Passed are the signals that a command gets: none, as there is no command.
var Passed []os.Signal

var signalNames = map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGKILL: "SIGKILL"}

// Run returns an error: without process groups and signals, a command cannot be stopped together with what it
// started.
func (r *Runner) Run(p *Plan) Result {
	err := exitcode.Usagef("run needs process groups and signals, which this system lacks; use acquire, renew and release: %w", errors.ErrUnsupported)
	return Result{Err: err, Status: Status{Outcome: Failed, ExitCode: exitcode.Usage, Name: p.Name()}}
}
