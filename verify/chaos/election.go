//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/election"
)

// With -elections there are no windows of faults, but one election: some processes campaign, and leaders are
// killed or told to resign, again and again. The history is judged like that of a lock; it also has the events
// that an observer saw.

// candidateRole is the role of a process that always campaigns.
const candidateRole = "candidate"

const (
	candidates = 4
	electorate = "w0/he0" // name of the election
	resign     = "resign" // the order to resign
)

// Promises of package election, beyond those of a lock.
const (
	termsRise   = "each leader has a higher term than all before"
	neverBack   = "an observer never sees a term go back"
	seenAreReal = "an observer sees a term of the leader that began it"
	succession  = "another leads when a leader is gone"
)

// leadRepeatedly campaigns again and again, and leads until it is told to resign.
func (h *holdfasts) leadRepeatedly(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		try := fmt.Sprintf("%s/%d", h.order.Name, n)
		opts := &holdfast.AcquireOptions{TTL: time.Duration(h.order.Schedule.TTL)}
		h.rec.record(event{Kind: asked, Key: electorate, Try: try, TTL: int64(opts.TTL)})
		term, err := election.Campaign(ctx, h.current.Load(), electorate, h.order.Name, opts)
		if err != nil {
			h.rec.record(event{Kind: failed, Key: electorate, Try: try, Err: err.Error()})
			sleep(ctx, 10*time.Millisecond)
			continue
		}
		l := h.newHeld(term.Lease(), electorate)
		h.rec.record(event{Kind: got, Key: electorate, Try: try, Token: int64(term.Term()), ID: l.id, Until: l.until})
		select {
		case <-h.resign:
		case <-term.Context().Done():
		}
		h.rec.record(event{Kind: leaving, Key: electorate, Try: try})
		err = term.Resign(context.WithoutCancel(ctx))
		h.rec.record(event{Kind: released, Key: electorate, Try: try, Err: errorText(err)})
	}
}

// recordLeaders records what an observer sees until ctx ends.
func recordLeaders(ctx context.Context, client *holdfast.Client, rec *recorder) {
	for leader, err := range election.Observe(ctx, client, electorate) {
		rec.record(event{Kind: observed, Key: electorate, Token: int64(leader.Term), ID: leader.Value, Err: errorText(err)})
	}
}

// ElectionReport is the outcome of a run with -elections.
type ElectionReport struct {
	Backend   string    `json:"backend"`
	Terms     int       `json:"terms"`
	Observed  int       `json:"observed"`    // terms that the observer saw
	Killed    []int64   `json:"killed_ns"`   // sorted: time from the kill of a leader to the next leader
	Resigned  []int64   `json:"resigned_ns"` // sorted: time from a call of Resign to the next leader
	Bound     int64     `json:"bound_ns"`    // bound for Killed
	RoundTrip int64     `json:"round_trip_ns"`
	Findings  []Finding `json:"findings"`
}

func roundFine(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// Text returns the report for people.
func (r *ElectionReport) Text() string {
	var b strings.Builder
	late := 0
	for _, took := range r.Killed {
		if took > r.Bound {
			late++
		}
	}
	fmt.Fprintf(&b, "Elections on %s: %d terms, of which an observer has seen %d.\n", r.Backend, r.Terms, r.Observed)
	fmt.Fprintf(&b, "After a kill, %d times, the next leader began within p50 %v, at most %v; %d were later than TTL + 1 s and what the service takes, %v.\n",
		len(r.Killed), roundMilli(quantile(r.Killed, .5)), roundMilli(quantile(r.Killed, 1)), late, time.Duration(r.Bound))
	fmt.Fprintf(&b, "After a resignation, %d times, within p50 %v, at most %v; a round trip takes %v.\n", len(r.Resigned),
		roundFine(quantile(r.Resigned, .5)), roundFine(quantile(r.Resigned, 1)), roundFine(time.Duration(r.RoundTrip)))
	if len(r.Findings) == 0 {
		b.WriteString("No promise was broken.\n")
	}
	listFindings(&b, "broken promises", r.Findings)
	return b.String()
}

// Passed reports whether every promise was kept.
func (r *ElectionReport) Passed() bool { return len(r.Findings) == 0 }

// vote is one run with -elections.
type vote struct {
	schedule *Schedule
	fleet    *fleet
	dir      string // folder of the history
	report   *ElectionReport
}

// runElection kills and deposes that many leaders each, and reports.
func runElection(ctx context.Context, set settings, logs io.Writer) (_ *ElectionReport, err error) {
	schedule, dir, program, err := set.prepareRun()
	if err != nil {
		return nil, err
	}
	schedule.Clients, schedule.Peers, schedule.Narrow = candidates, 0, 0
	back := schedule.backend()
	place, err := set.siteFor(schedule)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, place.stop()) }()
	if err := place.start(ctx, schedule); err != nil {
		return nil, err
	}
	campaigns, watcher := voterOrders(schedule, place, dir)
	rec := &recorder{dir: dir, client: watcher.Name, files: make(map[int]*os.File)}
	own, err := openHoldfast(ctx, watcher, rec, nil)
	if err != nil {
		return nil, err
	}
	defer own.close()
	crew, err := launchFleet(program, set.older, campaigns, logs)
	if err != nil {
		return nil, err
	}
	defer crew.killAll()
	var watching sync.WaitGroup
	watch, rest := context.WithCancel(ctx)
	defer watching.Wait()
	defer rest()
	watching.Go(func() { recordLeaders(watch, own.current.Load(), rec) })

	bound := time.Duration(schedule.TTL) + time.Second + back.classes["client-kill"].extra
	v := &vote{schedule: schedule, fleet: crew, dir: dir, report: &ElectionReport{Backend: set.backend, Bound: int64(bound), Findings: []Finding{}}}
	if err := v.deposeLeaders(ctx, set.elections, back.lead(schedule)); err != nil {
		return nil, err
	}
	if v.report.RoundTrip, err = roundTrip(ctx, own.current.Load()); err != nil {
		return nil, err
	}
	rest()
	watching.Wait()
	crew.killAll()
	events, err := readHistory(dir, 0)
	if err != nil {
		return nil, err
	}
	v.report.judgeHistory(events)
	return v.report, nil
}

// voterOrders returns the orders of the candidates and of the observer.
func voterOrders(s *Schedule, place site, histories string) (campaigns []order, watcher *order) {
	all := make([]order, candidates+1)
	for i := range all {
		all[i] = order{Number: i, Name: fmt.Sprintf("candidate%d", i), Role: candidateRole, History: histories, Schedule: *s}
		place.setConnections(&all[i], i)
	}
	watcher = &all[candidates]
	watcher.Name = "observer"
	return all[:candidates], watcher
}

// deposeLeaders kills leaders and makes others resign, in turns.
func (v *vote) deposeLeaders(ctx context.Context, times int, lead time.Duration) error {
	r := v.report
	last, err := v.nextLeader(ctx, 0, lead)
	for n := 0; last != nil && err == nil && n < 2*times; n++ {
		sleep(ctx, rand.N(time.Duration(v.schedule.TTL)/2)) // it may or may not have renewed its lease
		leader := slices.IndexFunc(v.fleet.orders, func(o order) bool { return strings.HasPrefix(last.client, o.Name+".") })
		ship, from, took := v.fleet.ships[leader], monotonicNow(), &r.Killed
		if n%2 == 0 {
			ship.kill()
		} else {
			took = &r.Resigned
			err = ship.sendOrder(resign)
		}
		next, failed := v.nextLeader(ctx, from, 0)
		err = errors.Join(err, failed)
		if next != nil {
			*took = append(*took, next.got-v.resignTime(from, last.try))
			slices.Sort(*took)
		}
		if n%2 == 0 {
			err = errors.Join(err, v.fleet.start(leader, ship.build.other()))
		}
		last = next
	}
	return errors.Join(err, ctx.Err())
}

// nextLeader waits for a leader whose term began after a time. It returns nil if there is none.
func (v *vote) nextLeader(ctx context.Context, after int64, lead time.Duration) (*attempt, error) {
	patience := lead + time.Duration(v.report.Bound) + 10*time.Second
	for end := monotonicNow() + int64(patience); monotonicNow() < end && ctx.Err() == nil; sleep(ctx, 20*time.Millisecond) {
		events, err := readHistory(v.dir, 0)
		if err != nil {
			return nil, err
		}
		if l := sortByLock(events)[electorate]; l != nil {
			for _, a := range l.grantedAttempts() {
				if a.got > after && a.left == 0 && a.lost == 0 {
					return a, nil
				}
			}
		}
	}
	v.report.add(succession, electorate, fmt.Sprintf("nobody within %v after %d", patience, after))
	return nil, nil
}

// resignTime returns the time when the leader called Resign, or from if it was killed.
func (v *vote) resignTime(from int64, try string) int64 {
	events, err := readHistory(v.dir, 0)
	if err != nil {
		return from
	}
	for _, e := range events {
		if e.Kind == leaving && e.Try == try {
			return e.T
		}
	}
	return from
}

func (r *ElectionReport) add(promise, key, what string) {
	r.Findings = append(r.Findings, Finding{"election", promise, finding{key, what}})
}

// judgeHistory checks the promises against the history of an election.
func (r *ElectionReport) judgeHistory(events []event) {
	l := sortByLock(events)[electorate]
	if l == nil {
		return
	}
	for promise, found := range map[string][]finding{
		uniqueTokens: l.findDuplicateTokens(), termsRise: l.findFallenTerms(), exclusion: l.findOverlaps((*attempt).trustedInterval),
		neverBack: findSetbacks(events), seenAreReal: l.findPhantomTerms(events),
	} {
		for _, f := range found {
			r.Findings = append(r.Findings, Finding{"election", promise, f})
		}
	}
	r.Terms = len(l.grantedAttempts())
	seen := make(map[int64]bool)
	for _, e := range events {
		if e.Kind == observed && e.Token != 0 {
			seen[e.Token] = true
		}
	}
	r.Observed = len(seen)
}

// findFallenTerms finds leaders whose term is not above all earlier terms.
func (l *lockHistory) findFallenTerms() (out []finding) {
	granted := l.grantedAttempts()
	slices.SortFunc(granted, func(a, b *attempt) int { return int(a.got - b.got) })
	var highest *attempt
	for _, a := range granted {
		if highest != nil && a.token <= highest.token {
			out = append(out, finding{l.key, fmt.Sprintf("%s began term %d at %d, after %s had begun term %d", a.try, a.token, a.got, highest.try, highest.token)})
			continue
		}
		highest = a
	}
	return out
}

// findSetbacks finds terms that an observer saw go back, and setbacks that it reported itself.
func findSetbacks(events []event) (out []finding) {
	var highest int64
	for _, e := range events {
		if e.Kind != observed {
			continue
		}
		if e.Token != 0 && e.Token < highest || strings.Contains(e.Err, election.ErrTermDecreased.Error()) {
			out = append(out, finding{e.Key, fmt.Sprintf("term %d at %d, after %d: %s", e.Token, e.T, highest, e.Err)})
		}
		highest = max(highest, e.Token)
	}
	return out
}

// findPhantomTerms finds terms that an observer attributed to the wrong leader. A term without a recorded
// leader belongs to a leader that was killed before it could record it.
func (l *lockHistory) findPhantomTerms(events []event) (out []finding) {
	leaders := make(map[int64][]string)
	for _, a := range l.grantedAttempts() {
		leaders[a.token] = append(leaders[a.token], a.client)
	}
	for _, e := range events {
		if of := leaders[e.Token]; e.Kind == observed && e.Token != 0 && of != nil && !slices.Contains(of, e.ID) {
			out = append(out, finding{e.Key, fmt.Sprintf("term %d of %q at %d, which is that of %v", e.Token, e.ID, e.T, of)})
		}
	}
	return out
}

// roundTrip returns the median time of a request for the leader.
func roundTrip(ctx context.Context, client *holdfast.Client) (int64, error) {
	var took []int64
	for range 51 {
		start := monotonicNow()
		if _, err := client.Inspect(ctx, electorate); err != nil {
			return 0, err
		}
		took = append(took, monotonicNow()-start)
	}
	slices.Sort(took)
	return int64(quantile(took, .5)), nil
}
