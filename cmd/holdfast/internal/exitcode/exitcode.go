// Package exitcode defines the meaning of holdfast's exit codes. The program, its help and docs/run.md follow
// its table.
package exitcode

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/holdfast-go/holdfast"
)

// Code is an exit code.
type Code int

// From 64 on, codes follow sysexits.h if it has one, otherwise timeout(1) and the shell.
const (
	OK            Code = 0
	No            Code = 1
	Usage         Code = 64
	Unavailable   Code = 69
	Bug           Code = 70
	Output        Code = 74
	Busy          Code = 75
	Auth          Code = 77
	Lost          Code = 79
	Timeout       Code = 124
	NotExecutable Code = 126
	NotFound      Code = 127
	signalled     Code = 128
)

// Row is one line of the table.
type Row struct {
	Code    string
	Meaning string
}

// Table has the meaning of each code.
var Table = []Row{
	{"child's", "run: the command ended by itself with this code"},
	{text(OK), "done; run: also when --skip-ok or --if-unavailable=skip left the command out"},
	{text(No), "check: the lease is gone; show -e: nobody holds the lock; force-release: another holder has the lock, or nobody; " +
		"doctor: something is wrong; leaks: there are some; demo: a write was lost or doubled"},
	{text(Usage), "wrong usage: a flag, a name, the backend's URL, a file; nothing was done"},
	{text(Unavailable), "the backend cannot be reached, or is not fit for locks"},
	{text(Bug), "a fault in holdfast itself or of the system it runs on"},
	{text(Output), "the output could not be written"},
	{text(Busy), "another process holds the lock, or the wait is over (--conflict-exit-code)"},
	{text(Auth), "wrong credentials, or a permission is missing"},
	{text(Lost), "the lease was lost; run: and the command was stopped (--lost-exit-code)"},
	{text(Timeout), "run: the command was stopped after --max-runtime"},
	{text(NotExecutable), "run: the command cannot be executed"},
	{text(NotFound), "run: the command was not found"},
	{"128+N", "signal N ended the command, or the wait for the lock"},
}

func text(c Code) string { return fmt.Sprint(int(c)) }

// Help returns the table as indented text.
func Help() string {
	var b strings.Builder
	for _, r := range Table {
		fmt.Fprintf(&b, "  %-8s %s\n", r.Code, r.Meaning)
	}
	return b.String()
}

// Signal returns the code of a process that signal s ended.
func Signal(s syscall.Signal) Code { return signalled + Code(s) }

// Error is an error with an explicit code.
type Error struct {
	Code Code
	Err  error
}

// Error returns the text of the inner error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the inner error.
func (e *Error) Unwrap() error { return e.Err }

// With adds a code to err.
func With(code Code, err error) error { return &Error{Code: code, Err: err} }

// Usagef returns an error for wrong usage.
func Usagef(format string, args ...any) error { return With(Usage, fmt.Errorf(format, args...)) }

// Interruption is a signal that ended a wait.
type Interruption struct {
	Signal syscall.Signal
	What   string // what the signal ended, and the consequence; "": this command
}

// Error names the signal and the wait that it ended.
func (i Interruption) Error() string {
	return Name(i.Signal) + " ended " + cmp.Or(i.What, "this command")
}

// Waiting returns i as the end of a wait for the lock name, which failed with err. It adds the consequence and
// the last obstacle.
func (i Interruption) Waiting(name string, err error, meaning string) Interruption {
	i.What = fmt.Sprintf("the wait for %q; %s", name, meaning)
	var last error
	if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
		last = held
	} else if down, ok := errors.AsType[*holdfast.UnavailableError](err); ok {
		last = down
	}
	if last != nil {
		i.What += "; what stood in the way last: " + last.Error()
	}
	return i
}

var names = map[syscall.Signal]string{syscall.SIGINT: "SIGINT", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT"}

// Name returns the name of a signal that ends a wait.
func Name(s syscall.Signal) string { return cmp.Or(names[s], fmt.Sprintf("signal %d", int(s))) }

// Of returns the code for err.
func Of(err error) Code {
	if err == nil {
		return OK
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if i, ok := errors.AsType[Interruption](err); ok {
		return Signal(i.Signal)
	}
	for _, kind := range kinds {
		if errors.Is(err, kind.err) {
			return kind.code
		}
	}
	return Bug
}

// kinds lists the errors in order of precedence. The error of a lost lease also names the failure of its last
// renewal. An ErrAuth may be inside an ErrUnavailable, and is the error that the user must fix.
var kinds = []struct {
	err  error
	code Code
}{
	{holdfast.ErrLost, Lost},
	{holdfast.ErrAuth, Auth},
	{holdfast.ErrConfig, Unavailable},
	{holdfast.ErrInvalid, Usage},
	{holdfast.ErrHeld, Busy},
	{holdfast.ErrUnavailable, Unavailable},
	{holdfast.ErrUnsupported, Usage},
}
