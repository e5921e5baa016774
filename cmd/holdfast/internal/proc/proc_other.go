//go:build !unix

// Package proc runs one command as a process group of its own. This system has
// no process groups, so it cannot.
package proc

import "io"

// Self says how to start this program once more.
type Self struct{ Path, Name, Log string }

// The names under which this program runs helpers of its own.
const (
	Gate  = "gate-of-run"
	Guard = "guard-of-run"
)

// Myself is nothing here.
func Myself(name string) Self { return Self{Name: name} }

// RunGate does nothing here.
func RunGate([]string) int { return 1 }

// RunGuard does nothing here.
func RunGuard(io.Reader, io.Writer, func(string), func([]byte) error) int { return 1 }
