//go:build linux

package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// A late call in a process that got less than half of the processor time that it needed shows nothing about
// Holdfast.
func TestStarvedProcessExcusesLateCall(t *testing.T) {
	t.Parallel()
	l := &lockHistory{attempts: []*attempt{{try: "a", client: "c.0", asked: 10, wait: 10, gaveUp: 90}, {try: "b", client: "c.0", asked: 10, wait: 10}}}
	for name, row := range map[string]struct {
		earlier, later map[string]int64
		want           int
	}{
		"half of the time": {map[string]int64{"1": 5, "2": 5}, map[string]int64{"1": 6, "2": 15}, 0},
		"less":             {map[string]int64{"1": 5, "2": 5}, map[string]int64{"1": 6, "2": 14}, 2},
		"before it began":  {nil, map[string]int64{"1": 100}, 2},
	} {
		j := &judge{still: new(standstill)}
		j.still.noteWaits(row.earlier, row.later, 20, 40)
		if found := l.findOverdueCalls(5, j.faultExcuse(nil)); len(found) != row.want {
			t.Errorf("%s: found %v, want %d calls", name, found, row.want)
		}
	}
}

// The judge reads the time for which the processes of a run, and their children, wait for a processor.
func TestWaitsOfStartedProcessesAreRead(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", "sleep 100 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var inner int
	if _, err := fmt.Fscan(out, &inner); err != nil {
		t.Fatal(err)
	}
	threads := make(map[string]bool)
	for thread := range processorWaits() {
		threads[strings.Split(thread, "/")[2]] = true
	}
	for _, pid := range []int{cmd.Process.Pid, inner} {
		if !threads[fmt.Sprint(pid)] {
			t.Errorf("process %d is not among %v", pid, threads)
		}
	}
	exec.Command("kill", fmt.Sprint(inner)).Run()
	cmd.Process.Kill()
	cmd.Wait()
}
