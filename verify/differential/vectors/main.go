// Vectors writes the test vectors of docs/wire.md into the given folder.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/holdfast-go/holdfast/verify/differential"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: vectors FOLDER")
		os.Exit(2)
	}
	for name, vectors := range map[string]differential.Vectors{
		"vectors.json": differential.MakeVectors(), "vectors-redisson.json": differential.RedissonVectors(),
	} {
		text, err := vectors.Encode()
		if err == nil {
			err = os.WriteFile(filepath.Join(os.Args[1], name), text, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "vectors:", err)
			os.Exit(1)
		}
	}
}
