// Package helper runs this program as the gate or the guard of a run. It starts before packages are initialized that
// neither needs, above all the packages of etcd's client: their initialization takes three times as long as the rest of a
// helper's start, and a run starts two helpers.
//
// Go initializes packages in the order of their paths, as far as their imports allow (The Go Programming Language
// Specification, Program initialization). So this package comes before go.etcd.io and google.golang.org, unless it
// imports a package that itself comes later, such as log/slog, os/exec or path/filepath.
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
	case proc.GateName:
		os.Exit(proc.RunGate(os.Args[2:]))
	case proc.GuardName:
		os.Exit(proc.RunGuard(os.Stdin, os.Stdout, func(did proc.Killing) error { return proc.RunHeir(did, os.Args[2]) }))
	}
}
