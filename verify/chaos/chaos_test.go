//go:build linux

package main

import (
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/tempo"
	"github.com/holdfast-go/holdfast/verify/tool"
)

// TestMain runs a client if this process was started as one.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if text := os.Getenv(orderVariable); text != "" {
		tempo.Adopt()
		tool.Exit("chaos", runClient(text))
	}
	stop := tempo.Start()
	code := m.Run()
	stop()
	os.Exit(code)
}

// faultClasses are the windows that TestPromisesHoldUnderFaults runs for each engine. Windows with crowds are
// left out: beside other packages, timeliness proves nothing. The failovers of a cluster take minutes and have
// a test in package redis.
var faultClasses = map[string][]string{
	"redis": {
		"client-pause", "client-kill", "net-lost-replies", "net-split", "node-kill", "node-wipe-majority", "node-commands", "rolling-upgrade", "operator",
	},
	"cluster":   {"reshard-paused"},
	"etcd":      {"client-pause", "leader-kill", "leader-isolated", "client-close"},
	"etcd-auth": {"logins", "compaction"},
	"zookeeper": {"client-pause", "leader-kill", "leader-isolated", "client-close", "nested"},
	"postgres":  {"migration", "client-pause", "client-kill", "node-kill", "node-pause", "pooler-kill", "clock-jump", "turnstile"},
	"mariadb":   {"turnstile"},
	"sqlite":    {"bell", "bell-stopped"},
}

// The test runs the chosen windows of each engine once. It does not run in parallel with other tests of this
// package: their load would look like a fault.
func TestPromisesHoldUnderFaults(t *testing.T) {
	rig.Nightly(t, "faults")
	for backend, only := range faultClasses {
		t.Run(backend, func(t *testing.T) {
			r := runFaults(t, backend, only)
			// Whether a lease outlasts a fault, and how soon a lock is free after it, depends on the load of
			// the machine.
			broken := slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool { return f.Promise == leasesLive })
			if len(broken) > 0 || len(r.Troubles) > 0 {
				t.Error("a promise was broken")
			}
		})
	}
}

// runFaults runs the windows of these classes once.
func runFaults(t *testing.T, backend string, classes []string) *Report {
	t.Helper()
	s, err := loadSchedule(backend, "")
	if err == nil {
		err = s.keepClasses(classes)
	}
	if err != nil {
		t.Fatal(err)
	}
	var length time.Duration
	for _, w := range s.Windows {
		length += time.Duration(w.Length)
	}
	r, err := runSchedule(t.Context(), settings{backend: backend, only: classes, length: length, out: t.ArtifactDir()}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.Text())
	return r
}
