//go:build unix

package run

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// ending are the signals that end a wait; the command gets them when it runs.
var ending = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT}

// passing are the further ones that the command gets.
var passing = []os.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP}

var signalNames = map[unix.Signal]string{
	unix.SIGHUP: "SIGHUP", unix.SIGINT: "SIGINT", unix.SIGQUIT: "SIGQUIT", unix.SIGABRT: "SIGABRT",
	unix.SIGKILL: "SIGKILL", unix.SIGUSR1: "SIGUSR1", unix.SIGUSR2: "SIGUSR2", unix.SIGPIPE: "SIGPIPE",
	unix.SIGALRM: "SIGALRM", unix.SIGTERM: "SIGTERM", unix.SIGCONT: "SIGCONT", unix.SIGSTOP: "SIGSTOP",
	unix.SIGTSTP: "SIGTSTP", unix.SIGWINCH: "SIGWINCH", unix.SIGSEGV: "SIGSEGV", unix.SIGBUS: "SIGBUS",
	unix.SIGILL: "SIGILL", unix.SIGFPE: "SIGFPE", unix.SIGTRAP: "SIGTRAP",
}

// notify has c told of those signals that our caller does not ignore: nohup and
// shells in the background rely on it.
func notify(c chan<- os.Signal, signals []os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}
