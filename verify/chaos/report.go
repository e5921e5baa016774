//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is the outcome of a run.
type Report struct {
	Seed     uint64                  `json:"seed"`
	Seconds  float64                 `json:"seconds"`
	Peer     string                  `json:"peer"` // the other library
	Schedule Schedule                `json:"schedule"`
	Faults   map[string]int          `json:"faults"` // by kind
	Classes  map[string]*ClassReport `json:"classes"`
	Findings []Finding               `json:"findings"`
	Slow     []Finding               `json:"slow,omitempty"`     // recoveries beyond their bound: one in a hundred is allowed
	Troubles []string                `json:"troubles,omitempty"` // failures of the run itself
	Stills   int                     `json:"standstills"`        // of the machine, or of a disk that servers wait for
	Longest  Duration                `json:"longest_standstill"`
	Excused  int                     `json:"losses_excused"` // leases lost during a standstill, without a writable server, or in an election

	Porcupine map[string]*Judged     `json:"porcupine"`          // of Holdfast, of the control and of the other library
	Tasks     map[string]*TaskReport `json:"tasks"`              // by title
	Pictures  []string               `json:"pictures,omitempty"` // pictures of Porcupine's findings, in the folder of the report
	Mix       *Mix                   `json:"mix,omitempty"`      // nil: all clients have one build
}

func newReport(seed uint64, s *Schedule) *Report {
	return &Report{
		Seed: seed, Schedule: *s, Peer: s.backend().peer,
		Faults: map[string]int{}, Classes: map[string]*ClassReport{},
		Findings: []Finding{}, Porcupine: map[string]*Judged{}, Tasks: map[string]*TaskReport{},
	}
}

// Finding is a broken promise.
type Finding struct {
	Class   string `json:"class"`
	Promise string `json:"promise"`
	finding
}

// ClassReport sums up the windows of one class.
type ClassReport struct {
	Shared   string `json:"exclusion_not_promised,omitempty"` // reason
	Mortal   string `json:"losses_not_promised,omitempty"`    // reason
	Windows  int    `json:"windows"`
	Faults   int    `json:"faults"`
	Holdfast Tally  `json:"holdfast"`
	Peer     Tally  `json:"peer"`

	Lost        int            `json:"lost_leases"`
	Duplicates  int            `json:"duplicate_tokens"`
	Disorder    int            `json:"order_violations"`
	Inversions  int            `json:"inversions"` // among concurrent attempts: no promise
	LostUpdates map[string]int `json:"lost_updates"`
	Written     map[string]int `json:"confirmed_writes"`
	Refused     map[string]int `json:"refused"` // rejected reads and writes
	Ghosts      int            `json:"ghost_locks"`
	Recovery    []int64        `json:"recovery_ns"` // sorted
	Bound       int64          `json:"recovery_bound_ns"`
	Free        int64          `json:"longest_without_ns"` // longest time for which a wanted lock was free
}

// Tally holds the counts of Holdfast or of the other library.
type Tally struct {
	Granted     int `json:"granted"`
	Failed      int `json:"failed"`
	Overlaps    int `json:"overlaps"`        // of intervals of trust
	Worked      int `json:"worked_overlaps"` // of intervals of work, with or without trust
	Acked       int `json:"unfenced_writes"`
	LostUpdates int `json:"unfenced_lost_updates"`
}

func (t *Tally) add(u Tally) {
	t.Granted += u.Granted
	t.Failed += u.Failed
	t.Overlaps += u.Overlaps
	t.Worked += u.Worked
	t.Acked += u.Acked
	t.LostUpdates += u.LostUpdates
}

// totalClass returns the sum over all classes.
func (r *Report) totalClass() *ClassReport {
	sum := &ClassReport{LostUpdates: map[string]int{}, Written: map[string]int{}, Refused: map[string]int{}}
	for _, c := range r.Classes {
		sum.Windows += c.Windows
		sum.Faults += c.Faults
		sum.Holdfast.add(c.Holdfast)
		sum.Peer.add(c.Peer)
		sum.Lost += c.Lost
		sum.Duplicates += c.Duplicates
		sum.Disorder += c.Disorder
		sum.Inversions += c.Inversions
		sum.Ghosts += c.Ghosts
		sum.Free = max(sum.Free, c.Free)
		sum.Recovery = append(sum.Recovery, c.Recovery...)
		for _, name := range fencedStores {
			sum.LostUpdates[name] += c.LostUpdates[name]
			sum.Written[name] += c.Written[name]
			sum.Refused[name] += c.Refused[name]
		}
	}
	slices.Sort(sum.Recovery)
	return sum
}

// Mix counts the locks granted to clients of each of two builds, and how often a lock passed between the builds.
type Mix struct {
	Granted [2]int `json:"granted"`   // locks and slots, by build
	Passed  int    `json:"passed_on"` // to a client of the other build than its last holder
	Adopted int    `json:"adopted"`   // of those, by Adopt
}

// count adds the history of a lock.
func (m *Mix) count(l *lockHistory, buildOf func(client string) build) {
	granted := l.grantedAttempts()
	slices.SortFunc(granted, func(a, b *attempt) int { return cmp.Compare(a.got, b.got) })
	for i, a := range granted {
		by := buildOf(a.client)
		m.Granted[by]++
		if i > 0 && buildOf(granted[i-1].client) != by {
			m.Passed++
			if a.from != "" {
				m.Adopted++
			}
		}
	}
}

func (m *Mix) String() string {
	return fmt.Sprintf("%d locks and slots were granted to clients of the newer build and %d to clients of the older one; "+
		"%d times one passed from a build to the other, %d of them by Adopt", m.Granted[newer], m.Granted[older], m.Passed, m.Adopted)
}

// quantile returns a quantile of sorted values.
func quantile(sorted []int64, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return time.Duration(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))])
}

// Passed reports whether every promise was kept.
func (r *Report) Passed() bool {
	return len(r.Findings) == 0 && len(r.Troubles) == 0 && r.recovered()
}

// recovered reports whether the 99th percentile of recovery is within its bound.
func (r *Report) recovered() bool { return len(r.Slow)*100 <= len(r.totalClass().Recovery) }

// Text returns the report for people.
func (r *Report) Text() string {
	var b strings.Builder
	t := r.totalClass()
	fmt.Fprintf(&b, "%.0f s, seed %d: %d acquisitions by Holdfast on %s, %d by %s, %d faults in %d windows\n\n",
		r.Seconds, r.Seed, t.Holdfast.Granted, r.Schedule.Backend, t.Peer.Granted, r.Peer, t.Faults, t.Windows)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "class\tfaults\tlocks\tlost\tdup\torder\tlost: redis\tsql\tits own\toverlap\tghosts\t"+
		"recovery p50\tp99\tmax\tbound\twithout a lock\tcontrol: lost\t"+r.Peer+": locks\toverlap\tlost\t")
	line := func(name string, c *ClassReport) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t\n",
			name, c.Faults, c.Holdfast.Granted, bracketed(c.Lost, c.Mortal), c.Duplicates, c.Disorder,
			c.LostUpdates[byRedis], c.LostUpdates[bySQL], c.LostUpdates[byRow],
			bracketed(c.Holdfast.Overlaps, c.Shared), c.Ghosts,
			roundMilli(quantile(c.Recovery, .5)), roundMilli(quantile(c.Recovery, .99)), roundMilli(quantile(c.Recovery, 1)),
			boundText(c), roundMilli(time.Duration(c.Free)),
			c.Holdfast.LostUpdates, c.Peer.Granted, c.Peer.Overlaps, c.Peer.LostUpdates)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Classes)) {
		line(name, r.Classes[name])
	}
	line("all", t)
	w.Flush()
	b.WriteString("(in brackets: not promised against in this class)\n")
	b.WriteString("\nFaults:")
	for _, do := range slices.Sorted(maps.Keys(r.Faults)) {
		fmt.Fprintf(&b, " %s %d;", do, r.Faults[do])
	}
	b.WriteString("\n")
	b.WriteString("\nFenced:")
	for i, name := range fencedStores {
		if i < 2 || t.Written[name] > 0 {
			fmt.Fprintf(&b, " %d of %d updates lost by %s, which refused %d stale reads and writes;", t.LostUpdates[name], t.Written[name], name, t.Refused[name])
		}
	}
	b.WriteString("\n")
	fmt.Fprintf(&b, "Grants whose token is below an earlier one's, asked for at the same time: %d.\n", t.Inversions)
	fmt.Fprintf(&b, "Control (no fence): %d of %d updates lost, %d pairs of holders at work at once.\n",
		t.Holdfast.LostUpdates, t.Holdfast.Acked, t.Holdfast.Worked)
	fmt.Fprintf(&b, "%s (no fence): %d of %d updates lost, %d pairs of holders that both trusted the lock.\n",
		r.Peer, t.Peer.LostUpdates, t.Peer.Acked, t.Peer.Overlaps)
	fmt.Fprintf(&b, "The machine, a disk that servers wait for, or a process without a processor stood still %d times, for up to %v; ",
		r.Stills, roundMilli(time.Duration(r.Longest)))
	fmt.Fprintf(&b, "%d leases that were lost then, while no server took writes, or too short for an election, broke no promise.\n", r.Excused)
	for _, title := range slices.Sorted(maps.Keys(r.Tasks)) {
		fmt.Fprintf(&b, "%s: %v.\n", title, r.Tasks[title])
	}
	if r.Mix != nil {
		fmt.Fprintf(&b, "Two builds: %v.\n", r.Mix)
	}
	for _, who := range slices.Sorted(maps.Keys(r.Porcupine)) {
		fmt.Fprintf(&b, "porcupine, %s: %v.\n", who, r.Porcupine[who])
	}
	if len(r.Pictures) > 0 {
		fmt.Fprintf(&b, "Pictures of what it found: %s\n", strings.Join(r.Pictures, ", "))
	}
	r.verdict(&b)
	return b.String()
}

// bracketed puts a figure into brackets if it is no violation.
func bracketed(n int, whyNot string) string {
	if whyNot != "" {
		return fmt.Sprintf("(%d)", n)
	}
	return fmt.Sprint(n)
}

// boundText returns the bound of recovery; the sum over all classes has none.
func boundText(c *ClassReport) string {
	if c.Bound == 0 {
		return "-"
	}
	return time.Duration(c.Bound).String()
}

func roundMilli(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func (r *Report) verdict(b *strings.Builder) {
	if r.totalClass().Holdfast.LostUpdates == 0 {
		b.WriteString("\nThe storage without a fence lost no update: no holder was stopped between its read and its write.\n")
	}
	for _, t := range r.Troubles {
		fmt.Fprintf(b, "\ntrouble: %s\n", t)
	}
	if !r.recovered() {
		b.WriteString("\nRecovery is slow: its 99th percentile is beyond the bound.\n")
	}
	listFindings(b, "slow recoveries", r.Slow)
	if len(r.Findings) == 0 {
		b.WriteString("\nNo promise of safety was broken.\n")
	}
	listFindings(b, "broken promises", r.Findings)
}

const mostListed = 40

func listFindings(b *strings.Builder, what string, all []Finding) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%d %s:\n", len(all), what)
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b Finding) int { return cmp.Compare(a.Class, b.Class) })
	for i, f := range sorted {
		if i == mostListed {
			b.WriteString("  …\n")
			return
		}
		fmt.Fprintf(b, "  %s: %s: %s: %s\n", f.Class, f.Promise, f.Key, f.What)
	}
}
