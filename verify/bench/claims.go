package main

import (
	"fmt"
	"strings"
)

// claim is something that Holdfast is meant to show, and what was found.
type claim struct {
	Text  string  `json:"claim"`
	Found float64 `json:"found"`
	Bound float64 `json:"bound"`
	Most  bool    `json:"at_most"` // Bound is the most that is allowed; otherwise the least
}

func (c claim) holds() bool {
	if c.Most {
		return c.Found <= c.Bound
	}
	return c.Found >= c.Bound
}

// judge holds the report against what Holdfast claims. A claim whose rows were
// not measured is left out.
func judge(r *report) []claim {
	var out []claim
	for _, j := range judgements {
		if found, ok := j.find(r); ok {
			out = append(out, claim{Text: j.text, Found: found, Bound: j.bound, Most: j.most})
		}
	}
	return out
}

type judgement struct {
	text  string
	bound float64
	most  bool
	find  func(*report) (found float64, ok bool)
}

// Which peers a claim is about.
func redsyncs(name string) bool { return strings.HasPrefix(name, "redsync/") }
func defaults(name string) bool { return redsyncs(name) && !strings.HasSuffix(name, "-5ms") }
func others(name string) bool   { return name != holdfastName }
func polling(name string) bool  { return others(name) && name != "rueidislock" }

func p50(r row) float64  { return r.P50 }
func p99(r row) float64  { return r.P99 }
func most(r row) float64 { return r.Max }

var judgements = []judgement{
	{"new names, 64 workers, 1 node: locks/s against the best peer's", 0.95, false, best("new-throughput", 1, others)},
	{"new names, 64 workers, 5 nodes: locks/s against the best redsync's", 1.8, false, best("new-throughput", 5, defaults)},
	{"new names, 1 worker, 1 node: locks/s against the best redsync's", 0.8, false, best("new-latency", 1, defaults)},
	{"new names, 1 worker, 5 nodes: locks/s against the best redsync's", 0.9, false, best("new-latency", 5, defaults)},
	{"100,000 new names: MB·minutes that they occupy on a node", 45, true, func(r *report) (float64, bool) {
		for _, l := range r.Left {
			if l.Peer == holdfastName {
				return l.MBMinutes, true
			}
		}
		return 0, false
	}},
	{"throughput, 5 nodes: locks/s against the best redsync's", 2, false, best("throughput", 5, defaults)},
	{"throughput, 1 node: locks/s against the best peer's", 1, false, best("throughput", 1, others)},
	{"latency, 1 node: locks/s against the best redsync's", 1, false, best("latency", 1, defaults)},
	{"latency, 5 nodes: locks/s against the best redsync's", 1, false, best("latency", 5, defaults)},
	{"latency, 1 node: median wait against the best redsync's", 1, true, least("latency", 1, p50, defaults)},
	{"latency, 5 nodes: median wait against the best redsync's", 1, true, least("latency", 5, p50, defaults)},
	{"dead: median wait against that of all nodes healthy", 1.3, true, besideHealthy("dead", 5)},
	{"hung: median wait against that of all nodes healthy", 1.3, true, besideHealthy("hung", 5)},
	{"slow, 1 node: median wait of 8 workers against that of one", 1.5, true, against("slow-8", "slow-1", 1)},
	{"slow, 5 nodes: median wait of 8 workers against that of one", 1.5, true, against("slow-8", "slow-1", 5)},
	{"relay, 1 node: locks/s against redsync's", 1.9, false, best("relay", 1, defaults)},
	{"relay, 1 node: p99 wait against redsync's", 1. / 20, true, least("relay", 1, p99, defaults)},
	{"relay, 1 node: Jain's index", 0.99, false, own("relay", 1)},
	{"relay, 5 nodes: locks/s against redsync's", 1.8, false, best("relay", 5, defaults)},
	{"relay, 5 nodes: p99 wait against redsync's", 1. / 20, true, least("relay", 5, p99, defaults)},
	{"relay, 5 nodes: Jain's index", 0.99, false, own("relay", 5)},
	{"handoff, 1 node: longest wait against every polling peer's", 0.1, true, least("handoff", 1, most, polling)},
	{"handoff, 5 nodes: longest wait against every polling peer's", 0.1, true, least("handoff", 5, most, polling)},
	{"handoff, 1 node: locks/s against the fastest peer's", 0.6, false, best("handoff", 1, others)},
	{"handoff, 5 nodes: locks/s against the fastest peer's", 0.6, false, best("handoff", 5, others)},
	{"handoff, 1 node: Jain's index", 0.98, false, own("handoff", 1)},
	{"handoff, 5 nodes: Jain's index", 0.98, false, own("handoff", 5)},
	{"herd, 1 node: locks/s against the best peer's", 10, false, best("herd", 1, others)},
	{"herd, 5 nodes: locks/s against the best peer's", 10, false, best("herd", 5, others)},
	{"herd, 1 node: p99 wait against the best peer's", 1. / 20, true, least("herd", 1, p99, others)},
	{"herd, 5 nodes: p99 wait against the best peer's", 1. / 20, true, least("herd", 5, p99, others)},
	{"mix, 1 node: locks/s against the best peer's", 10, false, best("mix", 1, others)},
	{"mix, 5 nodes: locks/s against the best peer's", 10, false, best("mix", 5, others)},
	{"mix, 1 node: p99 wait against the best peer's", 1. / 20, true, least("mix", 1, p99, others)},
	{"mix, 5 nodes: p99 wait against the best peer's", 1. / 20, true, least("mix", 5, p99, others)},
	{"allocations per lock, 5 nodes, 64 workers", 40, true, allocations("throughput", 5)},
	{"allocations per lock, 5 nodes, 1 worker", 80, true, allocations("latency", 5)},
	{"commands per hand-over with 256 waiting clients against 8", 1.2, true, func(r *report) (float64, bool) {
		if r.Waiters == nil {
			return 0, false
		}
		return r.Waiters.ManyCommands / r.Waiters.FewCommands, true
	}},
	{"2,000 waiting clients while nobody releases: share of the node's processor", 0.05, true, func(r *report) (float64, bool) {
		if r.Waiters == nil {
			return 0, false
		}
		return r.Waiters.Crowd.Load, true
	}},
	{"2,000 waiting clients: hand-over beside that with 8", 1.5, true, func(r *report) (float64, bool) {
		if r.Waiters == nil || r.Waiters.Crowd.FewHandOver == 0 {
			return 0, false
		}
		return r.Waiters.Crowd.HandOver / r.Waiters.Crowd.FewHandOver, true
	}},
	{"names that come back: least rate beside the older checkout", 0.97, false, func(r *report) (float64, bool) {
		least, ok := 0., false
		for _, a := range r.Older {
			if !ok || a.Ratio < least {
				least, ok = a.Ratio, true
			}
		}
		return least, ok
	}},
	{"MB for 1,000 waiters in one process", 20, true, func(r *report) (float64, bool) {
		if r.Waiters == nil {
			return 0, false
		}
		return r.Waiters.MegaBytes, true
	}},
}

// row finds what a peer did.
func (r *report) row(scenario string, nodes int, peer string) (row, bool) {
	for _, line := range r.Rows {
		if line.Scenario == scenario && line.Nodes == nodes && line.Peer == peer {
			return line, true
		}
	}
	return row{}, false
}

// rivals are the rows of the peers that want chooses.
func (r *report) rivals(scenario string, nodes int, want func(string) bool) []row {
	var out []row
	for _, line := range r.Rows {
		if line.Scenario == scenario && line.Nodes == nodes && want(line.Peer) {
			out = append(out, line)
		}
	}
	return out
}

// best is Holdfast's rate divided by that of the rival that comes off best.
func best(scenario string, nodes int, want func(string) bool) func(*report) (float64, bool) {
	return func(r *report) (found float64, ok bool) {
		ours, measured := r.row(scenario, nodes, holdfastName)
		for _, rival := range r.rivals(scenario, nodes, want) {
			if v, some := medianRatio(ours.Rates, rival.Rates); some && (!ok || v < found) {
				found, ok = v, true
			}
		}
		return found, ok && measured
	}
}

// medianRatio is the median of a[i]/b[i]: of rounds, in each of which all ran within seconds of
// one another.
func medianRatio(a, b []float64) (found float64, ok bool) {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			ratios = append(ratios, a[i]/b[i])
		}
	}
	if len(ratios) == 0 {
		return 0, false
	}
	return median(ratios), true
}

// least is a wait of Holdfast's divided by the shortest of the rivals'.
func least(scenario string, nodes int, of func(row) float64, want func(string) bool) func(*report) (float64, bool) {
	return func(r *report) (float64, bool) {
		ours, ok := r.row(scenario, nodes, holdfastName)
		low := 0.
		for _, line := range r.rivals(scenario, nodes, want) {
			if v := of(line); low == 0 || v < low {
				low = v
			}
		}
		return of(ours) / low, ok && low > 0
	}
}

// against is Holdfast's median wait in one scenario divided by that in another.
func against(scenario, other string, nodes int) func(*report) (float64, bool) {
	return func(r *report) (float64, bool) {
		a, ok1 := r.row(scenario, nodes, holdfastName)
		b, ok2 := r.row(other, nodes, holdfastName)
		return a.P50 / b.P50, ok1 && ok2 && b.P50 > 0
	}
}

// besideHealthy is Holdfast's median wait while a node fails, divided by that while none does.
func besideHealthy(scenario string, nodes int) func(*report) (float64, bool) {
	return func(r *report) (float64, bool) {
		line, _ := r.row(scenario, nodes, holdfastName)
		return medianRatio(line.P50s, line.Healthy)
	}
}

func own(scenario string, nodes int) func(*report) (float64, bool) {
	return func(r *report) (float64, bool) {
		line, ok := r.row(scenario, nodes, holdfastName)
		return line.Jain, ok
	}
}

func allocations(scenario string, nodes int) func(*report) (float64, bool) {
	return func(r *report) (float64, bool) {
		line, ok := r.row(scenario, nodes, holdfastName)
		return line.Allocs, ok
	}
}

func claimTable(claims []claim) string {
	cells := [][]string{{"claim", "holds", "found", "bound"}}
	for _, c := range claims {
		verdict, bound := "no", fmt.Sprintf("at least %.3g", c.Bound)
		if c.holds() {
			verdict = "yes"
		}
		if c.Most {
			bound = fmt.Sprintf("at most %.3g", c.Bound)
		}
		cells = append(cells, []string{c.Text, verdict, digits(c.Found), bound})
	}
	return markdown(cells, 2)
}
