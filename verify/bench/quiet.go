package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// lookTime is the time of a measurement of the processors, while this program is idle.
	lookTime = 500 * time.Millisecond
	// quietShare is the highest load of the processors on a machine that counts as quiet.
	quietShare = 0.1
)

// warnIfBusy writes a warning if other programs use the processors: then libraries that do more work
// themselves look worse than on a quiet machine, and ratios change between rounds. when names the time of the
// check.
func warnIfBusy(ctx context.Context, out io.Writer, when string) {
	before, err := readCPUTimes()
	select {
	case <-time.After(lookTime):
	case <-ctx.Done():
		return
	}
	after, err2 := readCPUTimes()
	if err != nil || err2 != nil { // not Linux
		return
	}
	if share := before.busyUntil(after); share > quietShare {
		fmt.Fprintf(out, "\nWARNING: other programs used %.0f %% of the processors %s. Neither figures nor ratios are those of a quiet machine: "+
			"stop the others and run it again.\n", 100*share, when)
	}
}

// cpuTimes holds the times of all processors since the boot, in ticks.
type cpuTimes struct{ idle, all int64 }

func readCPUTimes() (cpuTimes, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}, err
	}
	return parseCPUTimes(string(text))
}

// parseCPUTimes reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, and
// guests' shares of user and nice.
func parseCPUTimes(text string) (t cpuTimes, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, f := range fields[1:9] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return t, err
		}
		t.all += n
		if i == 3 || i == 4 { // idle and iowait
			t.idle += n
		}
	}
	return t, nil
}

// busyUntil returns the share of the time until later in which processors were busy.
func (t cpuTimes) busyUntil(later cpuTimes) float64 {
	if later.all <= t.all {
		return 0
	}
	return 1 - float64(later.idle-t.idle)/float64(later.all-t.all)
}
