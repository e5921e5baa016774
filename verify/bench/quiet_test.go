package main

import "testing"

func TestBusyShareExcludesIdleTime(t *testing.T) {
	t.Parallel()
	before, err := parseCPUTimes("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n")
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseCPUTimes("cpu  130 10 105 840 110 1 2 2 30 0\n") // 200 ticks later, 150 of them idle or iowait
	if err != nil {
		t.Fatal(err)
	}
	if share := before.busyUntil(after); share != 0.25 {
		t.Errorf("busy for %v of the time, want 0.25", share)
	}
	if share := after.busyUntil(after); share != 0 {
		t.Errorf("busy for %v of no time", share)
	}
	for _, text := range []string{"", "cpu0 1 2 3 4 5 6 7 8 9 10\n", "cpu 1 2 3\n", "cpu 1 2 3 x 5 6 7 8\n"} {
		if _, err := parseCPUTimes(text); err == nil {
			t.Errorf("%q is not the first line of /proc/stat", text)
		}
	}
}
