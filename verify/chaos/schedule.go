//go:build linux

package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed schedule.json
var defaultSchedule []byte

// Schedule is what happens, and when. It is read from a file; schedule.json is the
// one that is used when none is named.
type Schedule struct {
	Nodes   int      `json:"nodes"`   // redis-servers that keep the locks
	Clients int      `json:"clients"` // processes that use Holdfast
	Peers   int      `json:"peers"`   // processes that use redsync
	Workers int      `json:"workers"` // goroutines of each process
	Keys    int      `json:"keys"`    // locks of each window, for Holdfast and for redsync each
	Long    int      `json:"long"`    // how many of them are for long jobs, which one worker of each process does
	Durable int      `json:"durable"` // so many nodes write everything to disk before they answer (appendfsync always)
	Narrow  int      `json:"narrow"`  // so many clients, the last ones, have one processor (GOMAXPROCS=1)
	TTL     Duration `json:"ttl"`
	MaxTTL  Duration `json:"max_ttl"`
	// Windows are gone through from first to last, again and again until the time
	// is over. Each has locks of its own, so that what happens to a lock has to do
	// with the faults of its window alone.
	Windows []Window `json:"windows"`
}

// Window is a stretch of time with faults of one class.
type Window struct {
	Class  string   `json:"class"`
	Length Duration `json:"length"`
	Hold   Duration `json:"hold,omitempty"` // how long a long job takes; default: up to 4 s
	Faults []Fault  `json:"faults,omitempty"`
}

// Fault is one thing that goes wrong, on so many victims chosen at random.
type Fault struct {
	Do      string   `json:"do"`
	At      Duration `json:"at"`            // since the start of the window
	For     Duration `json:"for,omitempty"` // how long it lasts, or the victim is down
	Clients int      `json:"clients,omitempty"`
	Nodes   int      `json:"nodes,omitempty"`
	Of      string   `json:"of,omitempty"`    // which nodes: durable, volatile, or any
	Each    Duration `json:"each,omitempty"`  // how much later each victim follows than the one before
	By      Duration `json:"by,omitempty"`    // how far a clock jumps, how late a reply or a password is, how long a hook takes
	Count   int      `json:"count,omitempty"` // how many replies are lost on each node
	Side    int      `json:"side,omitempty"`  // network faults: 1 for clients with even, 2 with odd numbers; 0 for all
}

// Duration is a time.Duration that JSON has as "1.5s".
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// class is what one kind of fault leaves of the promises. That tokens are unique and
// rise, and that a fenced storage loses no update, is promised in every class.
type class struct {
	shared string // why exclusion is not promised: two may trust their lease at once; empty: it is
	// from is what recovery is counted from: the start of a fault that the service
	// should bear, the end of one that it cannot, or the end of the quarantine.
	from  reference
	extra time.Duration // that recovery may take, beyond TTL + 1 s
	lives bool          // no lease may be lost: a majority of the nodes answers all the time
	unfit bool          // while the faults last a majority must not vote, so that nobody is granted anything
}

type reference int

const (
	fromStart reference = iota
	fromEnd
	fromQuarantine
)

// stoppedAhead is how many stopped waiters can be ahead of another one in the
// schedule. Each costs a hand-over time of a second: nobody can tell a stopped
// process from a slow one sooner.
const stoppedAhead = 6

const clockRules = "a node's clock decides when its locks lapse"

var classes = map[string]class{
	"calm":                {},
	"client-pause":        {extra: stoppedAhead * time.Second},
	"client-kill":         {},
	"node-pause":          {},
	"node-pause-majority": {from: fromEnd},
	"node-kill":           {},
	"node-wipe":           {},
	"node-wipe-majority":  {from: fromQuarantine},
	"node-restore":        {},
	"net-delay":           {},
	"net-lost-replies":    {from: fromEnd},
	"net-reset":           {from: fromEnd},
	"net-one-way":         {from: fromEnd},
	"net-split":           {from: fromEnd},
	"mixed":               {from: fromEnd, extra: stoppedAhead * time.Second},
	"node-replace":        {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"node-restart":        {from: fromEnd},
	"node-clock-at-boot":  {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"node-full":           {from: fromEnd},
	"node-commands":       {from: fromEnd},
	"node-unfit":          {from: fromQuarantine, extra: stoppedAhead * time.Second, unfit: true},
	"node-other-names":    {lives: true},
	"node-listeners":      {},
	"node-switch":         {from: fromEnd, extra: stoppedAhead * time.Second},
	"rolling-pause":       {lives: true},
	"rolling-restart":     {lives: true},
	"client-close":        {},
	"client-slow-hooks":   {lives: true},
	"client-throttle":     {from: fromEnd},
	"credentials":         {from: fromEnd},
	"flushall":            {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"replicaof":           {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"clock-jump":          {shared: clockRules, from: fromEnd},
	"clock-jump-hour":     {shared: clockRules, from: fromEnd},
}

func loadSchedule(path string) (*Schedule, error) {
	text := defaultSchedule
	if path != "" {
		var err error
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
	return s, s.check()
}

func (s *Schedule) check() error {
	switch {
	case s.Nodes < 3, s.Clients < immortal, s.Workers < 2, s.Long < 1, s.Keys <= s.Long, len(s.Windows) == 0:
		return fmt.Errorf("schedule: needs 3 nodes, %d clients, 2 workers, a key for long jobs and one for short ones, and a window: %+v", immortal, *s)
	case s.TTL <= 0, s.MaxTTL < s.TTL:
		return fmt.Errorf("schedule: ttl %v, max_ttl %v: the first must be above 0 and not above the second", time.Duration(s.TTL), time.Duration(s.MaxTTL))
	}
	for i, w := range s.Windows {
		if _, ok := classes[w.Class]; !ok {
			return fmt.Errorf("schedule: window %d: no class %q", i, w.Class)
		}
		for _, f := range w.Faults {
			switch {
			case actions[f.Do] == nil:
				return fmt.Errorf("schedule: window %d: no fault %q", i, f.Do)
			case f.Nodes > s.Nodes || f.Clients > s.Clients-immortal:
				return fmt.Errorf("schedule: window %d: %s wants more victims than there are", i, f.Do)
			case f.Of != "" && f.Of != durable && f.Of != volatile:
				return fmt.Errorf("schedule: window %d: of %q is neither %s nor %s", i, f.Of, durable, volatile)
			case f.Nodes > len(s.nodes(f.Of)):
				return fmt.Errorf("schedule: window %d: %s wants %d nodes that are %s", i, f.Do, f.Nodes, f.Of)
			case f.At+f.For+f.Each*Duration(max(f.Nodes, 1)-1) >= w.Length:
				return fmt.Errorf("schedule: window %d: %s ends after it", i, f.Do)
			}
		}
	}
	return nil
}

// What Fault.Of tells apart.
const (
	durable  = "durable"
	volatile = "volatile"
)

// nodes are the numbers of the nodes of that kind: the first ones are durable.
func (s *Schedule) nodes(of string) (out []int) {
	for i := range s.Nodes {
		if of == "" || (of == durable) == (i < s.Durable) {
			out = append(out, i)
		}
	}
	return out
}

// keep leaves only the windows of these classes.
func (s *Schedule) keep(classes []string) error {
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

// has says whether a fault of that name is in it.
func (s *Schedule) has(do string) bool {
	return slices.ContainsFunc(s.Windows, func(w Window) bool {
		return slices.ContainsFunc(w.Faults, func(f Fault) bool { return f.Do == do })
	})
}

// span is a window in its place.
type span struct {
	Window
	index      int
	start, end int64 // on the clock that mono reads
}

// plan lines windows up from start on until length is filled.
func (s *Schedule) plan(start int64, length time.Duration) []span {
	var out []span
	for at := start; at < start+int64(length); {
		w := s.Windows[len(out)%len(s.Windows)]
		out = append(out, span{Window: w, index: len(out), start: at, end: at + int64(w.Length)})
		at += int64(w.Length)
	}
	return out
}

// spanAt is the window at t, or nil.
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

// key names a lock of the window; kind is one letter for who uses it.
func (s *span) key(kind string, n int) string {
	return "w" + strconv.Itoa(s.index) + "/" + kind + strconv.Itoa(n)
}

// windowOf is the number of the window that a key belongs to.
func windowOf(key string) int {
	number, _, _ := strings.Cut(strings.TrimPrefix(key, "w"), "/")
	n, err := strconv.Atoi(number)
	if err != nil {
		return -1
	}
	return n
}
