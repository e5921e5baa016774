// Package live keeps a picture of the locks of a backend for its viewers, top and the console. It only reads.
//
// Two loops read the backend. One reads all locks, at a bounded rate, and then rests for at least as long as
// that took. The other reads once a second the few locks on a viewer's screen, so that these are fresh even if
// a complete read takes long. Viewers wait for neither.
//
// Both loops rest if nothing has requested a Picture for some time.
//
// Polling misses what happens between two reads: a Picture counts only the hand-overs that were seen.
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

// Options of a Source. The zero value of a field is its default.
type Options struct {
	Prefix string        // only locks whose name begins with it
	Every  time.Duration // minimal rest between two complete reads; default 1 s
	Rate   int           // maximal number of locks read per second; default 5,000
	Most   int           // maximal number of locks kept; default 20,000. A Picture has the number of others
}

const (
	step       = 50              // locks between two checks of the clock
	wantedFor  = 3 * time.Second // time for which a lock counts as viewed
	maxWanted  = 200
	askers     = 8
	freedKept  = 3 * time.Second // time for which a freed lock is shown
	maxQueue   = 20
	pictureAge = 200 * time.Millisecond // time for which all viewers share one picture
	rateOver   = 10                     // seconds
	idle       = 10 * time.Second       // time without a viewer after which the loops rest
)

// Source keeps the picture. Its methods are safe for concurrent use.
type Source struct {
	backend Backend
	opts    Options
	viewer  chan struct{} // receives when a Picture was requested

	mu      sync.Mutex // guards the fields below
	rows    map[string]*Row
	wanted  map[string]time.Time // by lock: time until which it counts as viewed
	err     error                // error of the last complete read
	whole   time.Time            // end of the last complete read without an error
	took    time.Duration
	hidden  int
	seconds [rateOver + 1]secondCount
	last    *Picture
	viewed  time.Time // time of the last request for a Picture
}

// secondCount counts the hand-overs that were seen in one second.
type secondCount struct{ unix, count int64 }

// New returns a source that has read nothing yet: see Run.
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

// Run reads until ctx ends.
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

// waitForViewer waits for a viewer if there is none, and returns false when ctx ends. After a wait it forgets
// what was read before.
func (s *Source) waitForViewer(ctx context.Context) bool {
	s.mu.Lock()
	if time.Since(s.viewed) < idle {
		s.mu.Unlock()
		return true
	}
	s.rows, s.last, s.whole, s.err, s.hidden = make(map[string]*Row), nil, time.Time{}, nil, 0
	select {
	case <-s.viewer: // a request from long ago
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

// sleep waits for d and returns false if ctx ends first.
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

// readAll reads all locks once.
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
		case s.wanted[name].After(now): // its single read is newer
		case failed == nil && r.Seen.Before(start): // not listed: the lock is free
			s.rows[name] = r.nextRow(holdfast.Status{Key: name}, now)
		}
	}
}

// askWanted reads the locks that are being viewed.
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

// readOne reads one lock. Without a majority it stores what the other nodes know, but adds no row for a name
// that was never listed: otherwise each name that a viewer requests would become a row.
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

// noteStatus stores the current status of a lock. It returns false if there is no room.
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

// countHandOver counts a hand-over.
func (s *Source) countHandOver(now time.Time) {
	at := &s.seconds[now.Unix()%int64(len(s.seconds))]
	if at.unix != now.Unix() {
		*at = secondCount{unix: now.Unix()}
	}
	at.count++
}

// Want keeps the named locks fresh for the next three seconds, because they are on a viewer's screen. It does
// not block. Names beyond 200 are as old as the last complete read.
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
	Queue []driver.Waiter // the first waiters in order; empty if the service does not name them
	Err   error           // why the detail is incomplete
}

// Detail reads one lock. It blocks for an answer of the service, two seconds at most.
func (s *Source) Detail(ctx context.Context, name string) (d Detail) {
	st, err := s.readOne(ctx, name)
	d.Err = err
	s.mu.Lock()
	row := s.rows[name]
	s.mu.Unlock()
	if row == nil || row.Status.Owner != st.Owner { // no room for a row, or free, or changed meanwhile
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

// Picture returns the current picture. It does not wait for the backend.
func (s *Source) Picture() *Picture {
	nodes := s.backend.Nodes()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.viewed = now
	select {
	case s.viewer <- struct{}{}:
	default: // a request is pending already
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
