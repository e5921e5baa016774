//go:build linux

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// judge holds the history of each window against the promises, soon after its end.
type judge struct {
	site     site
	stores   *openStores
	nemesis  *nemesis
	schedule *Schedule
	still    *standstill
	dir      string // of the histories
	keep     bool   // all of them
	report   *Report
	timeline *timeline
}

// promises by the name under which they are reported.
const (
	uniqueTokens = "tokens are unique"
	tokenOrder   = "tokens rise"
	fencedWrites = "a fenced storage loses no update"
	exclusion    = "holders who trust their lease exclude one another"
	noGhosts     = "no lock outlives its holder by more than its TTL"
	recovery     = "the lock is free again within its bound"
	leasesLive   = "a lease lives while a majority of the nodes answers"
	unfitMute    = "a node that cannot show what it is does not vote"
	staysDead    = "a lease that was released is not adopted"
	spares       = "the token of a lease that was released takes no lock away"
	staysTaken   = "a lease that was taken away is not renewed"
	kept         = "a lock is kept for as long as its holder asked for"
	turnsNone    = "who waits is not turned away"
	keptApart    = "locks below one prefix have nothing to do with those below another"
	allServed    = "everybody is served who waits for a free lock"
	noBlame      = "a node that is well is not blamed"
	inTime       = "a call ends with what it asked for, or when it was to wait no longer"
	getsThrough  = "everybody gets through when the faults are over"
)

// window judges one window, whose history is dropped unless it shows a violation.
func (j *judge) window(ctx context.Context, s *span) error {
	events, err := readHistory(j.dir, s.index)
	if err != nil {
		return err
	}
	faults := j.nemesis.of(s.index)
	cl := j.class(s.Class, faults)
	c := j.report.Classes[s.Class]
	if c == nil {
		c = &ClassReport{
			Shared: cl.shared, LostUpdates: map[string]int{}, Written: map[string]int{}, Refused: map[string]int{},
			Bound: int64(j.schedule.TTL) + int64(time.Second) + int64(cl.extra),
		}
		if !cl.lives {
			c.Mortal = "a majority may be away, or a holder"
		}
		j.report.Classes[s.Class] = c
	}
	c.Windows++
	c.Faults += len(faults)
	for _, f := range faults {
		j.report.Faults[f.Do]++
	}
	j.consumption(events)

	var found []Finding
	add := func(promise string, list []finding) {
		for _, f := range list {
			found = append(found, Finding{s.Class, promise, f})
		}
	}
	locks := histories(events)
	befallen := j.befallen(faults)
	for key, l := range locks {
		l.stops = stopsOf(faults)
		tally := &c.Holdfast
		peer := strings.Contains(key, "/r")
		if peer {
			tally = &c.Peer
		}
		overlaps := l.overlaps((*attempt).trusted)
		t := Tally{
			Granted: len(l.granted()), Overlaps: len(overlaps), Worked: len(l.overlaps((*attempt).worked)),
			Acked: count(l.writes[byNobody], acked),
		}
		t.Failed = len(l.attempts) - t.Granted
		lostHere, err := j.lostUpdates(ctx, l, byNobody)
		if err != nil {
			return err
		}
		t.LostUpdates = len(lostHere)
		task := j.report.task(key)
		if task != nil {
			task.count(l)
			task.Overlaps += t.Overlaps
			t.Granted, t.Failed = 0, 0
		}
		tally.add(t)
		if peer {
			continue
		}
		if cl.shared == "" {
			add(exclusion, overlaps)
		}
		add(inTime, l.overdue(int64(j.schedule.TTL)+int64(time.Second), befallen))
		if s.Class == after && !j.still.within(s.start, s.end) {
			add(getsThrough, l.unserved())
		}
		if cl.patient {
			add(turnsNone, l.rebuffs(s.end-int64(tail)))
		}
		if l.most > 1 { // its slots have the rest
			continue
		}
		dup, dis := l.duplicates(), l.disorder()
		c.Duplicates += len(dup)
		c.Disorder += len(dis)
		c.Inversions += l.inversions()
		add(uniqueTokens, dup)
		add(tokenOrder, dis)
		add(staysDead, l.revivals())
		add(spares, l.robberies())
		add(staysTaken, l.returns())
		add(kept, l.cutShort())
		if cl.duty == apart && l.waited(s.start, c.Bound) {
			add(keptApart, []finding{{key, fmt.Sprintf("nobody of this prefix had it, and somebody waited for more than %v", time.Duration(c.Bound))}})
		}
		lapsed, excused := l.losses(func(a *attempt) bool {
			return cl.tooShort(a.ttl) || j.still.within(a.lost-int64(j.schedule.TTL), a.lost)
		})
		c.Lost += len(lapsed) + excused
		if task != nil {
			task.Duplicates += len(dup)
			task.Disorder += len(dis)
			task.Lost += len(lapsed) + excused
		}
		if cl.lives {
			add(leasesLive, lapsed)
			j.report.Excused += excused
		}
		if cl.unfit {
			from, to := j.unfit(faults)
			add(unfitMute, l.within(from, to))
		}
		for _, name := range fencedStores {
			lost, err := j.lostUpdates(ctx, l, name)
			if err != nil {
				return err
			}
			c.LostUpdates[name] += len(lost)
			c.Written[name] += count(l.writes[name], acked)
			c.Refused[name] += count(l.writes[name], refused) + count(l.reads[name], barred)
			add(fencedWrites, lost)
		}
	}
	add(keptApart, strangers(events))
	broken, err := j.linear(s, cl.shared == "", time.Now().Add(patience), events, locks, faults)
	if err != nil {
		return err
	}
	found = append(found, broken...)
	crowds := slices.DeleteFunc(slices.Clone(faults), func(h happened) bool { return h.Do != "crowd" })
	if !j.still.within(s.start, s.end) { // else it was not the client that had no time for its crowd
		add(allServed, left(events, crowds))
		add(noBlame, suspicions(events, crowds))
	}
	ghosts, err := j.ghosts(ctx, s)
	if err != nil {
		return err
	}
	c.Ghosts += len(ghosts)
	add(noGhosts, ghosts)
	times, slow := j.recoveries(s, cl, locks, faults, c.Bound)
	c.Recovery = append(c.Recovery, times...)
	slices.Sort(c.Recovery)
	for _, f := range slow {
		j.report.Slow = append(j.report.Slow, Finding{s.Class, recovery, f})
	}

	j.timeline.add(s, locks, faults, found)
	j.report.Findings = append(j.report.Findings, found...)
	if len(found) > 0 || len(slow) > 0 || j.keep {
		return nil
	}
	return dropHistory(j.dir, s.index)
}

// class is what a class leaves of the promises, less what the servers that run take back when one of them was stopped.
func (j *judge) class(name string, faults []happened) class {
	cl := j.schedule.backend().classes[name]
	site, ok := j.site.(interface{ whenStopped() (shared string) })
	stopped := func(h happened) bool { return h.Do == "pause-node" }
	if !ok || cl.shared != "" || !slices.ContainsFunc(faults, stopped) {
		return cl
	}
	cl.shared = site.whenStopped()
	cl.lives = cl.lives && cl.shared == ""
	return cl
}

// unfit is the time in which too few nodes may vote: when all faults have begun and what was held before has lapsed, until
// the first of them is over.
func (j *judge) unfit(faults []happened) (from, to int64) {
	to = math.MaxInt64
	for _, f := range faults {
		if f.Do != "pause-client" {
			from, to = max(from, f.Start), min(to, f.End)
		}
	}
	return from + int64(j.schedule.TTL) + int64(500*time.Millisecond), to
}

// befallen says whether a client had a fault of its own between two times, or the machine stood still.
func (j *judge) befallen(faults []happened) func(client string, from, to int64) bool {
	return func(client string, from, to int64) bool {
		name, _, _ := strings.Cut(client, ".")
		struck := func(h happened) bool { return h.Victim == name && h.Start < to && h.End > from }
		return slices.ContainsFunc(faults, struck) || j.still.within(from, to)
	}
}

// stopsOf are the faults that had a client stand still.
func stopsOf(faults []happened) (out []stop) {
	for _, f := range faults {
		if f.Do == "pause-client" {
			out = append(out, stop{f.Victim, f.Start, f.End})
		}
	}
	return out
}

func (j *judge) lostUpdates(ctx context.Context, l *lockHistory, store string) ([]finding, error) {
	if len(l.writes[store]) == 0 {
		return nil, nil
	}
	var final string
	err := persist(ctx, func() (err error) {
		final, err = j.stores.final(ctx, store, l.key)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("final value of %s in %s: %w", l.key, store, err)
	}
	l.finals[store] = final
	return l.lostUpdates(store, final), nil
}

// ghosts looks for locks of a window that is over for longer than a TTL.
func (j *judge) ghosts(ctx context.Context, s *span) (out []finding, _ error) {
	found, err := j.site.ghosts(ctx, s, time.Duration(j.schedule.TTL))
	for _, g := range found {
		out = append(out, finding{s.key("h", 0), g})
	}
	return out, err
}

// recoveries are the times from each fault to the next grant of each lock. Those
// that the window is too short to tell of are left out.
func (j *judge) recoveries(s *span, cl class, locks map[string]*lockHistory, faults []happened, bound int64) (times []int64, slow []finding) {
	for _, f := range faults {
		from := f.Start
		switch cl.from {
		case fromEnd:
			from = f.End
		case fromQuarantine:
			from = f.End + int64(j.schedule.MaxTTL) + int64(quarantineMargin)
		}
		for n := range j.schedule.Keys {
			l := locks[s.key("h", n)]
			if l == nil {
				continue
			}
			switch free, ok := l.nextGrant(from); {
			case ok:
				times = append(times, free)
				if free > bound {
					slow = append(slow, finding{l.key, fmt.Sprintf("%v after %s on %s", time.Duration(free), f.Do, f.Victim)})
				}
			case l.waited(from, bound):
				slow = append(slow, finding{l.key, fmt.Sprintf("not within %v after %s on %s", time.Duration(bound), f.Do, f.Victim)})
			}
		}
	}
	return times, slow
}

// consumption notes what the clients use that are never killed.
func (j *judge) consumption(events []event) {
	for _, e := range events {
		if e.Kind != resource {
			continue
		}
		for i := range immortal {
			if name := j.nemesis.fleet.orders[i].Name + ".0"; name == e.Client {
				j.report.Clients[name] = append(j.report.Clients[name], Consumption{e.Heap, e.Goroutines, e.Files})
			}
		}
	}
}
