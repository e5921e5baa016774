//go:build ignore

// Miniredis serves the library of this name at the address in its argument. Its clock runs, so keys expire.
package main

import (
	"fmt"
	"os"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.StartAddr(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "miniredis:", err)
		os.Exit(1)
	}
	select {}
}
