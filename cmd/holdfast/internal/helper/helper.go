// Package helper is this program as gate and as guard of a run. It takes over before the
// packages are initialised that neither needs, above all the packages of etcd's client: their
// initialisation takes three times as long as a helper otherwise needs to start, and a run starts two.
//
// Go initialises packages in the order of their paths, as far as their imports allow (The Go
// Programming Language Specification, Program initialization). So this one comes before
// go.etcd.io and google.golang.org, as long as it imports nothing that comes later by itself,
// such as log/slog, os/exec or path/filepath.
package helper

import (
	"os"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

func init() {
	if len(os.Args) < 3 {
		return
	}
	switch os.Args[1] {
	case proc.Gate:
		os.Exit(proc.RunGate(os.Args[2:]))
	case proc.Guard:
		os.Exit(proc.RunGuard(os.Stdin, os.Stdout, func(did proc.Killing) error { return proc.Bequeath(did, os.Args[2]) }))
	}
}
