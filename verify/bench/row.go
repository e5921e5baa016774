package main

import (
	"slices"
	"time"
)

// row is one line of the table: the medians over the repetitions.
type row struct {
	Scenario string    `json:"scenario"`
	Nodes    int       `json:"nodes"`
	Peer     string    `json:"peer"`
	Rate     float64   `json:"locks_per_second"`
	P50      float64   `json:"wait_p50_ms"`
	P99      float64   `json:"wait_p99_ms"`
	Max      float64   `json:"wait_max_ms"`
	Requests float64   `json:"requests_per_lock"` // sent to all servers together
	Commands float64   `json:"commands_per_lock"` // executed by them, with what scripts call
	Allocs   float64   `json:"allocations_per_lock"`
	OwnCPU   float64   `json:"client_cpu_us_per_lock"`
	NodeCPU  float64   `json:"server_cpu_us_per_lock"` // of all servers together
	Jain     float64   `json:"jain_index"`
	Stuck    int       `json:"stuck"`  // waits without end, over all repetitions
	Failed   int       `json:"failed"` // calls that returned an error
	Rates    []float64 `json:"all_locks_per_second"`
	P50s     []float64 `json:"all_wait_p50_ms"`
	Healthy  []float64 `json:"all_healthy_wait_p50_ms,omitempty"` // of rounds without the fault, by turns with the others
	Metered  bool      `json:"metered"`                           // requests, commands and allocations were counted
}

func newRow(scenario string, nodes int, peer string, samples []sample) row {
	r := row{Scenario: scenario, Nodes: nodes, Peer: peer, Metered: !samples[0].unmetered}
	for _, s := range samples {
		r.Stuck += s.stuck
		r.Failed += s.failed
		r.Rates = append(r.Rates, s.rate())
		r.P50s = append(r.P50s, ms(s.percentile(0.50)))
	}
	perLock := func(n int64, s sample) float64 { return float64(n) / max(float64(s.locks), 1) }
	r.Rate = median(r.Rates)
	r.P50 = median(r.P50s)
	r.P99 = medianOf(samples, func(s sample) float64 { return ms(s.percentile(0.99)) })
	r.Max = medianOf(samples, func(s sample) float64 { return ms(s.longest) })
	r.Requests = medianOf(samples, func(s sample) float64 { return perLock(s.requests, s) })
	r.Commands = medianOf(samples, func(s sample) float64 { return perLock(s.commands, s) })
	r.Allocs = medianOf(samples, func(s sample) float64 { return perLock(int64(s.mallocs), s) })
	r.OwnCPU = medianOf(samples, func(s sample) float64 { return perLock(s.ownCPU.Microseconds(), s) })
	r.NodeCPU = medianOf(samples, func(s sample) float64 { return perLock(s.nodeCPU.Microseconds(), s) })
	r.Jain = medianOf(samples, func(s sample) float64 { return jain(s.byClient) })
	return r
}

func (s sample) rate() float64 { return float64(s.locks) / s.elapsed.Seconds() }

// percentile is the wait that a share of all waits does not exceed. Where none
// has ended it is that of those that have not.
func (s sample) percentile(share float64) time.Duration {
	if len(s.waits) == 0 {
		return s.longest
	}
	return s.waits[min(int(share*float64(len(s.waits))), len(s.waits)-1)]
}

// jain is Jain's fairness index: 1 when all have got the same, 1/n when one has
// got everything. (R. Jain et al., DEC-TR-301, 1984.)
func jain(got []int) float64 {
	var sum, squares float64
	for _, x := range got {
		sum += float64(x)
		squares += float64(x) * float64(x)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(got)) * squares)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func medianOf(samples []sample, f func(sample) float64) float64 {
	var list []float64
	for _, s := range samples {
		list = append(list, f(s))
	}
	return median(list)
}

// median is the middle of list, or the mean of its two middle values.
func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
