//go:build !unix

// Package proc runs one command in a process group of its own. This system has no process groups, so proc
// cannot.
package proc

import "io"

// Self describes how to start this program again.
type Self struct{ Path, Name, Log string }

// The names under which this program runs its helpers.
const (
	GateName  = "gate-of-run"
	GuardName = "guard-of-run"
	HeirName  = "heir-of-run"
)

// Killing is unused on this system.
type Killing struct {
	Group      int
	Why, Error string
	Lease      []byte
}

// Myself describes this program.
func Myself(name string) Self { return Self{Name: name} }

// RunGate does nothing here.
func RunGate([]string) int { return 1 }

// RunGuard does nothing here.
func RunGuard(io.Reader, io.Writer, func(Killing) error) int { return 1 }

// RunHeir does nothing here.
func RunHeir(Killing, string) error { return nil }

// Name returns "", because this system does not show processes.
func Name(int) string { return "" }
