//go:build linux

package main

import (
	"os"
	"slices"
	"testing"
	"time"
)

// TestMain is a client process where it was started as one.
func TestMain(m *testing.M) {
	if text := os.Getenv(orderVariable); text != "" {
		exit(beClient(text))
	}
	os.Exit(m.Run())
}

// TestPromisesHoldUnderFaults goes through a few classes of the engines, with the race detector through more, as CI does, and with HOLDFAST_LONG
// once through the schedule of Redis but for the crowd, whose callers have to be served in time: beside other packages that says
// nothing. It does not run at the same time as other tests of this package: their load would look like a fault.
func TestPromisesHoldUnderFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out minutes of faults on real servers and processes")
	}
	classes := map[string][]string{
		"redis":     {"client-pause", "client-kill", "net-lost-replies", "node-wipe-majority", "rolling-upgrade"},
		"etcd":      {"leader-isolated"},
		"zookeeper": {"leader-isolated"},
		"postgres":  {"migration", "client-kill", "node-kill"},
	}
	if raced { // mariadb and sqlite run by hand, for the sake of time
		classes = map[string][]string{
			"redis": {
				"client-pause", "client-kill", "net-lost-replies", "net-split", "node-kill", "node-wipe-majority", "node-commands", "rolling-upgrade", "operator",
			},
			"cluster":   {"reshard-paused"}, // its failovers take minutes, and have a test of their own in redlock
			"etcd":      {"client-pause", "leader-kill", "leader-isolated", "client-close"},
			"etcd-auth": {"logins", "compaction"},
			"zookeeper": {"client-pause", "leader-kill", "leader-isolated", "client-close", "nested"},
			"postgres":  {"migration", "client-pause", "client-kill", "node-kill", "node-pause", "pooler-kill", "clock-jump"},
		}
	}
	if os.Getenv("HOLDFAST_LONG") != "" {
		s, err := loadSchedule("redis", "")
		if err != nil {
			t.Fatal(err)
		}
		classes["redis"] = nil
		for _, w := range s.Windows {
			if w.Class != "crowd" {
				classes["redis"] = append(classes["redis"], w.Class)
			}
		}
	}
	for backend, only := range classes {
		t.Run(backend, func(t *testing.T) {
			times := 1
			for range 4 { // so short a run may strike no holder at work, above all where others take the processors
				r := faults(t, backend, only, times)
				// Whether leases outlast a fault, and how soon a lock is free after it, says nothing either beside other packages.
				broken := slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool { return f.Promise == leasesLive })
				if len(broken) > 0 || len(r.Troubles) > 0 {
					t.Fatal("a promise was broken")
				}
				if !r.proves() || r.controlFailed() {
					return
				}
				only, times = []string{striking}, 4
			}
			t.Error("the control lost no update: the runs prove nothing")
		})
	}
}

// faults goes through the windows of these classes so many times.
func faults(t *testing.T, backend string, classes []string, times int) *Report {
	t.Helper()
	s, err := loadSchedule(backend, "")
	if err == nil {
		err = s.keep(classes)
	}
	if err != nil {
		t.Fatal(err)
	}
	var once time.Duration
	for _, w := range s.Windows {
		once += time.Duration(w.Length)
	}
	length := time.Duration(times) * once
	r, err := run(t.Context(), settings{backend: backend, only: classes, length: length, out: t.ArtifactDir()}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.Text())
	return r
}
