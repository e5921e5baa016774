//go:build linux

package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/tempo"
	drivers "github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/verify/tool"
)

// TestMain runs a client if this process was started as one.
func TestMain(m *testing.M) {
	if text := os.Getenv(orderVariable); text != "" {
		tempo.Adopt()
		tool.Exit("soak", runClient(text))
	}
	os.Exit(leaktest.Run(m))
}

func TestSoakMeasuresEveryGivenEngine(t *testing.T) {
	rig.Nightly(t, "soak")
	t.Parallel()
	chosen, err := chooseEngines("redis,sqlite")
	if err != nil {
		t.Fatal(err)
	}
	p := &plan{length: 26 * time.Second, engines: chosen, rate: 40, handovers: 1, command: true, out: t.ArtifactDir(), logs: t.Output()}
	r, err := p.runEngines(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.Text())
	if !r.Passed() || r.Judged {
		t.Errorf("passed: %v, judged: %v; want a run that passes, and is too short to judge curves", r.Passed(), r.Judged)
	}
	for i, want := range [][]string{
		{"client heap", "client files", "server memory", "redis memory", "keys", "connections", "guard rss", "guard files", "console rss", "console files"},
		{"client heap", "client rss", "client goroutines", "rows", "size"},
	} {
		e := r.Engines[i]
		if c := e.Counts; c.Granted == 0 || c.HandedOver == 0 || c.GivenUp == 0 || e.Faults == 0 {
			t.Errorf("%s: %d locks, %d after a wait, %d timeouts, %d faults; want some of each", e.Name, c.Granted, c.HandedOver, c.GivenUp, e.Faults)
		}
		for _, name := range want {
			if c := e.curveOf(figure{name: name}); len(c.at) < 5 || medianOf(c.values) == 0 && name != "keys" {
				t.Errorf("%s: %s was %v", e.Name, name, c.values)
			}
		}
	}
}

func TestReportFailsByGrowthOrBrokenPromise(t *testing.T) {
	t.Parallel()
	judged := func(change func(n int, s *sample)) *EngineReport {
		e := &EngineReport{Name: "x"}
		for n := range 120 {
			s := sample{Hours: float64(n) / 60, Figures: map[string]float64{"keys": 100}, Counts: state{Granted: int64(n + 1)}}
			change(n, &s)
			e.Samples, e.Counts = append(e.Samples, s), s.Counts
		}
		e.judgeCurves(true)
		return e
	}
	for name, c := range map[string]struct {
		change        func(n int, s *sample)
		grows, broken int
	}{
		"all is well":             {func(int, *sample) {}, 0, 0},
		"a leak of keys":          {func(n int, s *sample) { s.Figures["keys"] = 100 + 2*float64(n) }, 1, 0},
		"two at work at once":     {func(_ int, s *sample) { s.Counts.Overlaps = 1 }, 0, 1},
		"a token that is no more": {func(_ int, s *sample) { s.Counts.Disorders = 1 }, 0, 1},
		"no lock at all":          {func(_ int, s *sample) { s.Counts.Granted = 0 }, 0, 2},
		"no lock for a while":     {func(n int, s *sample) { s.Counts.Granted = int64(min(n, 60)) + 1 }, 0, 1},
	} {
		e := judged(c.change)
		r := &Report{Judged: true, Engines: []*EngineReport{e}}
		if len(e.Grows) != c.grows || len(e.Broken) != c.broken || r.Passed() != (c.grows+c.broken == 0) {
			t.Errorf("%s: grows %v, broken %v, passed %v", name, e.Grows, e.Broken, r.Passed())
		}
	}
}

func TestFailedStartStopsServers(t *testing.T) {
	t.Parallel()
	stopped := false
	start := func(context.Context) (*service, error) {
		return &service{stop: func() error { stopped = true; return nil }}, nil
	}
	p := &plan{engines: []engine{{"x", start}}, rate: 1, out: "\x00"} // no such folder can be
	if w, err := p.startEngine(t.Context(), 0); w != nil || err == nil || !stopped {
		t.Errorf("startEngine() = %v, %v, and stopped the servers: %v", w, err, stopped)
	}
}

func TestProcessesDetectTwoHolders(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/board"
	one, err1 := openBoard(path)
	two, err2 := openBoard(path)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	c := newClient(t)
	first, second := acquireLock(t, c, "a"), acquireLock(t, c, "b") // both use the same cell, as if of one lock
	leave := one.enterCell(0, first)
	leave()
	if two.enterCell(0, second); two.overlaps.Load() != 0 {
		t.Error("the second holder came after the first left")
	}
	if one.enterCell(0, first); one.overlaps.Load() != 1 {
		t.Error("the first holder came again while the second was at work, unnoticed")
	}
	if one.disorders.Load() == 0 {
		t.Error("the first token counted as higher when it came again")
	}
}

// newClient returns a client of a driver whose tokens start again for each lock.
func newClient(t *testing.T) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(drivers.New(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func acquireLock(t *testing.T, c *holdfast.Client, key string) *holdfast.Lease {
	t.Helper()
	//holdfastvet:ignore the client is closed by the test's end
	l, err := c.Acquire(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
