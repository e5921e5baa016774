//go:build linux

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/redis"
)

var otherKeys = flag.Int("keys", 250_000, "how many keys of others TestLeakSearchDoesNotBlockServer looks through; the full count is 1000000")

const (
	slow   = 5000 // µs
	sweeps = 5    // a step that is slow by chance is not slow in all sweeps
)

// The test uses the server's slow log, not round trips. A server that does not get its processor is slow now
// and then, so a step counts only if it is slow in every sweep.
func TestLeakSearchDoesNotBlockServer(t *testing.T) {
	if testing.Short() {
		t.Skip("-short fills no server with keys")
	}
	t.Parallel()
	b := newBench(t, 1)
	do := func(args ...string) any {
		t.Helper()
		reply, err := b.servers[0].Do(args...)
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return reply
	}
	const fill = `for i = ARGV[1], ARGV[1] + 9999 do redis.call('SET', 'other:' .. i, i, 'EX', 9999) end`
	for from := 0; from < *otherKeys; from += 10_000 {
		do("EVAL", fill, "0", strconv.Itoa(from))
	}
	do("SET", "lock:theirs", "value")
	do("SET", "lock:ours", "AAAAAAAAAAAAAAAAAAAAAAAAAA.1")
	do("CONFIG", "SET", "slowlog-log-slower-than", strconv.Itoa(slow), "slowlog-max-len", "100000")

	var again map[string]int64 // steps that were slow in every sweep, with their µs
	for sweep := range sweeps {
		do("SLOWLOG", "RESET")
		do("CONFIG", "RESETSTAT")
		b.findLeaks(50_000)
		now := slowCommands(do("SLOWLOG", "GET", "-1"))
		stats := do("INFO", "commandstats").(string)
		_, stats, _ = strings.Cut(stats, "cmdstat_scan:")
		stats, _, _ = strings.Cut(stats, "\n")
		t.Logf("sweep %d of %d keys: SCAN %s; %d of them took more than %d µs", sweep+1, *otherKeys, strings.TrimSpace(stats), len(now), slow)
		if sweep == 0 {
			again = now
		}
		maps.DeleteFunc(again, func(command string, _ int64) bool { return now[command] == 0 })
		if len(again) == 0 {
			t.Logf("no step was slow in each of %d sweeps", sweep+1)
			return
		}
	}
	t.Errorf("these steps block the server for more than %d µs, each time: %v", slow, again)
}

// findLeaks finds the planted leaks, with at most so many kB of memory.
func (b *bench) findLeaks(most int64) {
	b.t.Helper()
	j := b.start("leaks", "-o", "json")
	var used int64
	eventually(b.t.Fatalf, "it ends", func() bool {
		text, _ := readFile(fmt.Sprintf("/proc/%d/status", j.Process.Pid))
		_, peak, alive := strings.Cut(text, "VmHWM:") // not rusage, which includes the peak of this process
		if alive {
			fmt.Sscan(peak, &used)
		}
		return !alive
	})
	if code := j.code(); code != 1 {
		b.t.Fatalf("exit code %d; output:\n%s", code, j.log.String())
	}
	var found []redis.Leak
	if err := json.Unmarshal(j.out.Bytes(), &found); err != nil {
		b.t.Fatal(err)
	}
	var keys []string
	for _, l := range found {
		keys = append(keys, l.Key)
	}
	slices.Sort(keys)
	if want := []string{"lock:ours", "lock:theirs"}; !slices.Equal(keys, want) {
		b.t.Errorf("found %q, want %q", keys, want)
	}
	if used > most {
		b.t.Errorf("it used %d kB, want at most %d", used, most)
	}
	b.t.Logf("%d kB, %v of processor time", used, j.ProcessState.UserTime()+j.ProcessState.SystemTime())
}

// slowCommands returns the commands in a slow log with their duration in µs.
func slowCommands(reply any) map[string]int64 {
	all := make(map[string]int64)
	entries, _ := reply.([]any)
	for _, e := range entries {
		if entry, ok := e.([]any); ok && len(entry) > 3 {
			if took, ok := entry[2].(int64); ok {
				all[fmt.Sprint(entry[3])] = took
			}
		}
	}
	return all
}
