// Mono prints CLOCK_MONOTONIC in ns, which all processes of a machine share.
package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func main() {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	fmt.Println(ts.Nano())
}
