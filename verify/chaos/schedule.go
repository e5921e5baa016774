//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Schedule holds the faults and their times. It is read from a file. Each backend has a default.
type Schedule struct {
	Backend string   `json:"backend"` // keeps the locks; empty: redis
	Nodes   int      `json:"nodes"`   // servers that keep the locks
	Clients int      `json:"clients"` // processes that use Holdfast
	Peers   int      `json:"peers"`   // processes that use the other library
	Workers int      `json:"workers"` // goroutines of each process
	Keys    int      `json:"keys"`    // locks per window, for Holdfast and for the other library each
	Long    int      `json:"long"`    // keys for long jobs, done by one worker of each process
	Durable int      `json:"durable"` // number of redis-servers with appendfsync always
	Narrow  int      `json:"narrow"`  // number of clients, the last ones, with GOMAXPROCS=1
	TTL     Duration `json:"ttl"`
	MaxTTL  Duration `json:"max_ttl"`
	// Windows run in order, again and again until the time is over. Each has its own locks, so that only the
	// faults of its window affect a lock.
	Windows []Window `json:"windows"`
}

// Window is a period with faults of one class.
type Window struct {
	Class  string   `json:"class"`
	Length Duration `json:"length"`
	Hold   Duration `json:"hold,omitempty"` // duration of a long job; default: up to 4 s
	Faults []Fault  `json:"faults,omitempty"`
}

// Fault is one kind of fault, on a number of random victims.
type Fault struct {
	Do      string   `json:"do"`
	At      Duration `json:"at"`            // since the start of the window
	For     Duration `json:"for,omitempty"` // duration, or time for which the victim is down
	Clients int      `json:"clients,omitempty"`
	Nodes   int      `json:"nodes,omitempty"`
	Of      string   `json:"of,omitempty"`    // which nodes: durable, volatile, the leader, or any
	Each    Duration `json:"each,omitempty"`  // delay between victims
	By      Duration `json:"by,omitempty"`    // clock jump; or delay of a reply, password, hook or request
	Count   int      `json:"count,omitempty"` // lost replies per node, or callers per processor
	Side    int      `json:"side,omitempty"`  // network faults: 1 for even clients, 2 for odd ones; 0 for all
}

// Duration is a time.Duration that is written as "1.5s" in JSON.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// class holds the promises for one kind of fault. Every class promises that tokens are unique and rise, and
// that a fenced storage loses no update.
type class struct {
	shared string // why exclusion is not promised; empty: it is
	// from is the start of recovery: the start of a fault that the service should survive, the end of one that
	// it cannot, or the end of the quarantine.
	from  reference
	extra time.Duration // time that recovery may take, beyond TTL + 1 s
	lives bool          // no lease may be lost: a majority answers all the time
	duty  holderDuty    // the holders' extra task
	// patient means that a caller gets either a grant or the end of its wait, and no other error.
	patient bool
	unfit   bool // a majority must not vote during the faults, so there are no grants
}

// tooShort reports whether a lease with that TTL may end while the service elects a leader: when a renewal
// falls due, two thirds of the TTL are left.
func (c *class) tooShort(ttl int64) bool { return c.extra > 0 && ttl*2/3 < int64(c.extra) }

// holderDuty is a task of holders beside the work under a lock.
type holderDuty int

const (
	usual      holderDuty = iota
	stretching            // change the TTL repeatedly, some of the calls without waiting
	apart                 // half of the clients have a nested prefix, and locks of the same names
	passing               // hand leases over, keep locks after the release; an operator force-releases
	handing               // hand leases over, above all when a process ends
)

// handsOver reports whether holders hand leases over to other processes.
func (d holderDuty) handsOver() bool { return d == passing || d == handing }

type reference int

const (
	fromStart reference = iota
	fromEnd
	fromQuarantine
)

// stoppedAhead is the highest number of suspended waiters ahead of another in the schedule. Each costs a
// hand-over time of a second, because a suspended process looks like a slow one.
const stoppedAhead = 6

// loadSchedule reads the file or, if path is empty, the backend's default.
func loadSchedule(name, path string) (*Schedule, error) {
	b, err := backendOf(name)
	if err != nil {
		return nil, err
	}
	text := b.schedule
	if path != "" {
		if text, err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	s := new(Schedule)
	if err := d.Decode(s); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", path, err)
	}
	if s.Backend == "" {
		s.Backend = "redis"
	}
	return s, s.check()
}

// backend returns the backend that keeps the locks.
func (s *Schedule) backend() *backend { return backends[s.Backend] }

func (s *Schedule) check() error {
	b, err := backendOf(s.Backend)
	if err != nil {
		return fmt.Errorf("schedule: %w", err)
	}
	actions := (&nemesis{site: b.site()}).actions()
	switch {
	case s.Nodes < b.fewest, s.Clients < unfaultedClients, s.Workers < 2, s.Long < 1, s.Keys <= s.Long, len(s.Windows) == 0:
		return fmt.Errorf("schedule: needs %d nodes, %d clients, 2 workers, a key for long jobs and one for short ones, and a window: %+v",
			b.fewest, unfaultedClients, *s)
	case s.TTL <= 0, s.MaxTTL < s.TTL:
		return fmt.Errorf("schedule: ttl %v, max_ttl %v: the first must be above 0 and not above the second", time.Duration(s.TTL), time.Duration(s.MaxTTL))
	}
	for i, w := range s.Windows {
		if _, ok := b.classes[w.Class]; !ok {
			return fmt.Errorf("schedule: window %d: no class %q", i, w.Class)
		}
		for _, f := range w.Faults {
			switch {
			case actions[f.Do] == nil:
				return fmt.Errorf("schedule: window %d: no fault %q", i, f.Do)
			case f.Nodes > s.Nodes || f.Clients > s.Clients-unfaultedClients:
				return fmt.Errorf("schedule: window %d: %s wants more victims than there are", i, f.Do)
			case f.Of != "" && f.Of != durable && f.Of != volatile && f.Of != leader:
				return fmt.Errorf("schedule: window %d: of %q is none of %s, %s and %s", i, f.Of, durable, volatile, leader)
			case f.Of == leader && f.Nodes != 1:
				return fmt.Errorf("schedule: window %d: %s wants %d leaders, and there is one", i, f.Do, f.Nodes)
			case f.Nodes > len(s.nodesOfKind(f.Of)):
				return fmt.Errorf("schedule: window %d: %s wants %d nodes that are %s", i, f.Do, f.Nodes, f.Of)
			case f.At+f.For+f.Each*Duration(max(f.Nodes, f.Clients, 1)-1) >= w.Length:
				return fmt.Errorf("schedule: window %d: %s ends after it", i, f.Do)
			}
		}
	}
	return nil
}

// The values of Fault.Of.
const (
	durable  = "durable"
	volatile = "volatile"
	leader   = "leader" // the leader when the fault begins
)

// nodesOfKind returns the numbers of the nodes of that kind: the first ones are durable.
func (s *Schedule) nodesOfKind(of string) (out []int) {
	for i := range s.Nodes {
		if of == "" || of == leader || (of == durable) == (i < s.Durable) {
			out = append(out, i)
		}
	}
	return out
}

// keepClasses keeps only the windows of these classes.
func (s *Schedule) keepClasses(classes []string) error {
	if len(classes) == 0 {
		return nil
	}
	for _, name := range classes {
		if !slices.ContainsFunc(s.Windows, func(w Window) bool { return w.Class == name }) {
			return fmt.Errorf("schedule: no window of class %q", name)
		}
	}
	s.Windows = slices.DeleteFunc(s.Windows, func(w Window) bool { return !slices.Contains(classes, w.Class) })
	return nil
}

// onNodes adapts the faults to n nodes; 0 leaves the schedule. Faults of a majority still hit a majority.
// Faults that come one after another come a TTL later, because a node without locks may leave fewer than a
// majority. A window without a fault is removed.
func (s *Schedule) onNodes(n int) {
	if n == 0 || n == s.Nodes {
		return
	}
	scaled := func(struck int) int {
		if struck <= (s.Nodes-1)/2 {
			return min(struck, (n-1)/2)
		}
		return max(n/2+1, n-(s.Nodes-struck))
	}
	var windows []Window
	for _, w := range s.Windows {
		all := w.Faults
		w.Faults = nil
		for _, f := range all {
			if f.Nodes > 0 {
				if f.Nodes = scaled(f.Nodes); f.Nodes == 0 {
					continue
				}
				if f.Each > f.For {
					f.Each += s.TTL
				}
			}
			w.Faults = append(w.Faults, f)
		}
		if len(w.Faults) > 0 || len(all) == 0 {
			windows = append(windows, w)
		}
	}
	s.Windows = windows
	s.Nodes, s.Durable = n, min(s.Durable, n/2+1)
}

// hasFault reports whether the schedule has a fault of that name.
func (s *Schedule) hasFault(do string) bool {
	return slices.ContainsFunc(s.Windows, func(w Window) bool {
		return slices.ContainsFunc(w.Faults, func(f Fault) bool { return f.Do == do })
	})
}

// hasDuty reports whether a class of the schedule has this duty.
func (s *Schedule) hasDuty(d holderDuty) bool {
	return slices.ContainsFunc(s.Windows, func(w Window) bool { return s.backend().classes[w.Class].duty == d })
}

// span is a window at its time.
type span struct {
	Window
	index      int
	start, end int64 // on the host's monotonic clock
}

// after is the class of the last window of each run, which has no faults: every caller that asks before the
// service has been up for a second must get through. The window ends when the last of these callers returns,
// so that a slow disk breaks no promise, and after calmFor at the latest.
const (
	after   = "after"
	calmFor = time.Minute
)

// planSpans lines windows up from start until length is filled, and adds a window without faults.
func (s *Schedule) planSpans(start int64, length time.Duration) []span {
	var out []span
	at := start
	for at < start+int64(length) {
		w := s.Windows[len(out)%len(s.Windows)]
		out = append(out, span{Window: w, index: len(out), start: at, end: at + int64(w.Length)})
		at += int64(w.Length)
	}
	last := Window{Class: after, Length: Duration(s.backend().lead(s) + time.Second + calmFor)}
	return append(out, span{Window: last, index: len(out), start: at, end: at + int64(last.Length)})
}

// spanAt returns the window at t, or nil.
func spanAt(spans []span, t int64) *span {
	i, found := slices.BinarySearchFunc(spans, t, func(s span, t int64) int {
		switch {
		case s.end <= t:
			return -1
		case s.start > t:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &spans[i]
}

// quietTime returns the length of the end of a window without new requests for locks.
func (s *span) quietTime() time.Duration {
	if s.Class == after {
		return calmFor
	}
	return tail
}

// key returns the key of a lock in the window; kind is one letter for its users.
func (s *span) key(kind string, n int) string {
	return "w" + strconv.Itoa(s.index) + "/" + kind + strconv.Itoa(n)
}

// prefix returns the beginning of the keys of Holdfast's locks in the window.
func (s *span) prefix() string { return strings.TrimSuffix(s.key("h", 0), "0") }

// windowOf returns the number of the window of a key.
func windowOf(key string) int {
	number, _, _ := strings.Cut(strings.TrimPrefix(key, "w"), "/")
	n, err := strconv.Atoi(number)
	if err != nil {
		return -1
	}
	return n
}
