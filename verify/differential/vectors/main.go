// Vectors writes the test vectors of docs/wire.md to the file it is given.
package main

import (
	"fmt"
	"os"

	"github.com/holdfast-go/holdfast/verify/differential"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: vectors FILE")
		os.Exit(2)
	}
	text, err := differential.MakeVectors().Encode()
	if err == nil {
		err = os.WriteFile(os.Args[1], text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vectors:", err)
		os.Exit(1)
	}
}
