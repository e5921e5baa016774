package main

import (
	"strings"
	"testing"
	"time"
)

// typicalCosts has typical costs on a machine of 2026.
var typicalCosts = costs{
	fresh: nodeRate{50e3, 12 * time.Microsecond}, again: nodeRate{50e3, 9 * time.Microsecond}, renewal: nodeRate{100e3, 6 * time.Microsecond},
	idle: 5e-6, lease: 350, connection: 38e3,
}

func TestPlanUsesFewestNodeSets(t *testing.T) {
	t.Parallel()
	for _, l := range demands {
		p := typicalCosts.planFor(l)
		node := func(sets int) float64 { return p.processor/float64(sets) + l.clients*typicalCosts.idle }
		if p.sets == 0 || node(p.sets) > full+1e-9 {
			t.Errorf("%s: %d sets, a node at %.2f", l.name, p.sets, node(p.sets))
		}
		if p.why == "processor" && p.sets > 1 && node(p.sets-1) <= full {
			t.Errorf("%s: %d sets, one fewer would do", l.name, p.sets)
		}
	}
}

func TestTooManyClientsAreReported(t *testing.T) {
	t.Parallel()
	if p := typicalCosts.planFor(demand{locks: 1, clients: 1e6}); p.sets != 0 || !strings.Contains(p.why, "connections") {
		t.Errorf("a million clients: %d sets, %s", p.sets, p.why)
	}
}

func TestSimulatedNodeHasPlannedLoad(t *testing.T) {
	t.Parallel()
	p := typicalCosts.planFor(demand{name: "test", locks: 50e3, fresh: 0.5, held: 100e3, clients: 1e3})
	o, err := simulateLoad(p, typicalCosts)
	if err != nil {
		t.Fatal(err)
	}
	planned := p.processor/float64(p.sets) + p.clients*typicalCosts.idle
	if o.busiest < planned*0.95 || o.busiest > planned*1.15 {
		t.Errorf("the busiest node is at %.2f, planned at %.2f", o.busiest, planned)
	}
	if least, most := o.waitQuantile(0), o.waitQuantile(1); least < trip || most > 100*trip {
		t.Errorf("locks take %v to %v", least, most)
	}
}

func TestNumbersAreRounded(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 800: "800", 1000: "1.0k", 45_300: "45k", 1.25e6: "1.2M", 10e6: "10M", 123e6: "123M"} {
		if got := roundNumber(v); got != want {
			t.Errorf("round(%v) = %q, want %q", v, got, want)
		}
	}
}
