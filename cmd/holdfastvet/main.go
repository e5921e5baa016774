// Holdfastvet finds mistakes with leases that the compiler lets through:
//
//	go run github.com/holdfast-go/holdfast/cmd/holdfastvet@latest ./...
//
// It is also a tool for go vet -vettool. Its checks are described in docs/programs.md, and by holdfastvet help.
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/holdfast-go/holdfast/cmd/holdfastvet/internal/vet"
)

func main() { multichecker.Main(vet.Analyzers...) }
