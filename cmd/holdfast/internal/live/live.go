// Package live keeps a picture of the locks of a backend for its viewers, top and the console.
// It only reads.
//
// Two loops ask the backend. One reads all locks, at a bounded rate, and then rests at least
// as long as that took. The other asks once a second for the few locks that somebody looks
// at, so that these are fresh where the whole takes long. Nobody who looks waits for either.
//
// Both rest while nobody has asked for a Picture for some time.
//
// A look does not show what happened between two looks: a Picture counts the hand-overs that
// were seen, and there may have been more.
package live

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Backend is the client that a Source reads from, such as a *holdfast.Client.
type Backend interface {
	List(ctx context.Context, prefix string) iter.Seq2[holdfast.Status, error]
	Inspect(ctx context.Context, key string) (holdfast.Status, error)
	Queue(ctx context.Context, key string, most int) ([]driver.Waiter, error)
	Nodes() []holdfast.NodeEvent
}

// Options of a Source. nil and zero values stand for the defaults.
type Options struct {
	Prefix string        // only locks whose name begins with it
	Every  time.Duration // the least rest between two whole looks; 1 s
	Rate   int           // locks a second that a whole look asks for, at most; 5,000
	Most   int           // locks kept; 20,000. Of the others a Picture has the number
}

const (
	step       = 50              // locks between two looks at the clock
	wantedFor  = 3 * time.Second // how long a lock counts as looked at
	maxWanted  = 200
	askers     = 8
	freedKept  = 3 * time.Second // how long a lock that is free is shown
	maxQueue   = 20
	pictureAge = 200 * time.Millisecond // one picture serves all who ask within that time
	rateOver   = 10                     // seconds
	idle       = 10 * time.Second       // after which nobody looks any more
)

// Source keeps the picture. Its methods are safe for concurrent use.
type Source struct {
	backend Backend
	opts    Options
	viewer  chan struct{} // has one if somebody has asked for a Picture

	mu      sync.Mutex // guards what follows
	rows    map[string]*Row
	wanted  map[string]time.Time // until when somebody looks at a lock
	err     error                // of the last whole look
	whole   time.Time            // when the last one without an error ended
	took    time.Duration
	hidden  int
	seconds [rateOver + 1]second
	last    *Picture
	viewed  time.Time // when somebody asked for a Picture
}

// second counts the hand-overs that were seen in one.
type second struct{ unix, count int64 }

// New returns a source that has seen nothing yet: see Run.
func New(b Backend, opts *Options) *Source {
	s := &Source{backend: b, rows: make(map[string]*Row), wanted: make(map[string]time.Time), viewer: make(chan struct{}, 1), viewed: time.Now()}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.Every = cmp.Or(s.opts.Every, time.Second)
	s.opts.Rate = cmp.Or(s.opts.Rate, 5000)
	s.opts.Most = cmp.Or(s.opts.Most, 20_000)
	return s
}

// Run looks until ctx ends.
func (s *Source) Run(ctx context.Context) {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		for sleep(ctx, time.Second) {
			s.askWanted(ctx)
		}
	})
	for more := true; more; {
		s.readAll(ctx)
		s.mu.Lock()
		rest := max(s.took, s.opts.Every)
		s.mu.Unlock()
		more = sleep(ctx, rest) && s.waitForViewer(ctx)
	}
}

// waitForViewer waits until somebody looks, where nobody does, and says whether ctx still stands.
// What was seen before is old by then, so it is forgotten.
func (s *Source) waitForViewer(ctx context.Context) bool {
	s.mu.Lock()
	if time.Since(s.viewed) < idle {
		s.mu.Unlock()
		return true
	}
	s.rows, s.last, s.whole, s.err, s.hidden = make(map[string]*Row), nil, time.Time{}, nil, 0
	select {
	case <-s.viewer: // who looked long ago
	default:
	}
	s.mu.Unlock()
	select {
	case <-s.viewer:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// readAll asks for all locks, once.
func (s *Source) readAll(ctx context.Context) {
	start, seen, hidden := time.Now(), 0, 0
	var failed error
	for st, err := range s.backend.List(ctx, s.opts.Prefix) {
		if err != nil {
			failed = err
			break
		}
		if !s.noteStatus(st) {
			hidden++
		}
		if seen++; seen%step == 0 {
			due := start.Add(time.Duration(seen) * time.Second / time.Duration(s.opts.Rate))
			if wait := time.Until(due); wait > 0 && !sleep(ctx, wait) {
				break
			}
		}
	}
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.err, s.took, s.hidden = failed, now.Sub(start), hidden
	if failed == nil {
		s.whole = now
	}
	for name, r := range s.rows {
		switch {
		case !r.Freed.IsZero() && now.Sub(r.Freed) > freedKept:
			delete(s.rows, name)
		case s.wanted[name].After(now): // what asking for it said is newer
		case failed == nil && r.Seen.Before(start): // it was not listed: nobody has it
			s.rows[name] = r.nextRow(holdfast.Status{Key: name}, now)
		}
	}
}

// askWanted asks for the locks that somebody looks at.
func (s *Source) askWanted(ctx context.Context) {
	s.mu.Lock()
	now := time.Now()
	maps.DeleteFunc(s.wanted, func(_ string, until time.Time) bool { return until.Before(now) })
	names := slices.Collect(maps.Keys(s.wanted))
	s.mu.Unlock()
	next := make(chan string, len(names))
	for _, name := range names {
		next <- name
	}
	close(next)
	var all sync.WaitGroup
	for range min(askers, len(names)) {
		all.Go(func() {
			for name := range next {
				s.readOne(ctx, name)
			}
		})
	}
	all.Wait()
}

// readOne asks for one lock. Without a majority it notes what the other nodes know, but adds no row for a name that was
// never listed: each name that a viewer asks for would become one.
func (s *Source) readOne(ctx context.Context, name string) (holdfast.Status, error) {
	asking, cancel := context.WithTimeout(ctx, pace.HintTime())
	defer cancel()
	st, err := s.backend.Inspect(asking, name)
	if ctx.Err() == nil && (err == nil || errors.Is(err, holdfast.ErrUnavailable) && len(st.Nodes) > 0 && s.hasRow(name)) {
		s.noteStatus(st)
	}
	return st, err
}

// hasRow reports whether there is a row for the name.
func (s *Source) hasRow(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[name] != nil
}

// noteStatus notes what is known of a lock now. It says whether there was room.
func (s *Source) noteStatus(st holdfast.Status) bool {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.rows[st.Key]
	if old == nil && len(s.rows) >= s.opts.Most {
		return false
	}
	r := old.nextRow(st, now)
	if old == nil && !r.Freed.IsZero() {
		return true
	}
	if old != nil && r.HandOvers > old.HandOvers {
		s.countHandOver(now)
	}
	s.rows[st.Key] = r
	return true
}

// countHandOver notes a hand-over.
func (s *Source) countHandOver(now time.Time) {
	at := &s.seconds[now.Unix()%int64(len(s.seconds))]
	if at.unix != now.Unix() {
		*at = second{unix: now.Unix()}
	}
	at.count++
}

// Want keeps the named locks fresh for the next three seconds, because somebody looks at them. It does
// not block. Beyond 200 names the rest is as old as the last complete look.
func (s *Source) Want(names ...string) {
	until := time.Now().Add(wantedFor)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if _, has := s.wanted[name]; has || len(s.wanted) < maxWanted {
			s.wanted[name] = until
		}
	}
}

// Detail is one lock with its waiters.
type Detail struct {
	Row   *Row
	Queue []driver.Waiter // the first of them, in their order; empty where the service does not tell who they are
	Err   error           // why less is known than there is
}

// Detail asks for one lock. It blocks for an answer of the service, two seconds at most.
func (s *Source) Detail(ctx context.Context, name string) (d Detail) {
	st, err := s.readOne(ctx, name)
	d.Err = err
	s.mu.Lock()
	row := s.rows[name]
	s.mu.Unlock()
	if row == nil || row.Status.Owner != st.Owner { // without room, or free, or changed meanwhile
		row = row.nextRow(st, time.Now())
	}
	d.Row = row
	if err == nil && st.Waiters > 0 {
		ctx, cancel := context.WithTimeout(ctx, pace.HintTime())
		defer cancel()
		if d.Queue, err = s.backend.Queue(ctx, name, maxQueue); !errors.Is(err, holdfast.ErrUnsupported) {
			d.Err = err
		}
	}
	return d
}

// Picture returns the current state. It does not wait for the backend.
func (s *Source) Picture() *Picture {
	nodes := s.backend.Nodes()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.viewed = now
	select {
	case s.viewer <- struct{}{}:
	default: // it has one
	}
	if s.last != nil && now.Sub(s.last.Taken) < pictureAge {
		return s.last
	}
	p := &Picture{
		Taken: now, Nodes: nodes, Err: s.err, Whole: s.whole, Hidden: s.hidden, Prefix: s.opts.Prefix,
		stale: 2*max(s.took, s.opts.Every) + 10*time.Second,
	}
	for _, r := range s.rows {
		if r.Freed.IsZero() || now.Sub(r.Freed) <= freedKept {
			p.addRow(r)
		}
	}
	slices.SortFunc(p.Rows, func(a, b *Row) int { return strings.Compare(a.Key, b.Key) })
	for _, at := range s.seconds {
		if age := now.Unix() - at.unix; age >= 1 && age <= rateOver {
			p.HandOvers += float64(at.count) / rateOver
		}
	}
	s.last = p
	return p
}
