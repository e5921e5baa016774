package live

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// service is a scripted backend.
type service struct {
	mu     sync.Mutex // guards the fields below
	locks  map[string]holdfast.Status
	nodes  []holdfast.NodeEvent
	err    error // error of every read
	listed int   // number of locks that were listed
	asked  map[string]int
	hang   bool // calls hang until their context ends

	unlisted holdfast.Status // only Inspect returns it
}

func (s *service) List(ctx context.Context, _ string) iter.Seq2[holdfast.Status, error] {
	return func(yield func(holdfast.Status, error) bool) {
		s.mu.Lock()
		var all []holdfast.Status
		for _, st := range s.locks {
			all = append(all, st)
		}
		err, hang := s.err, s.hang
		s.mu.Unlock()
		if hang {
			<-ctx.Done()
			err = ctx.Err()
		}
		if err != nil {
			yield(holdfast.Status{}, err)
			return
		}
		for _, st := range all {
			s.mu.Lock()
			s.listed++
			s.mu.Unlock()
			if !yield(st, nil) {
				return
			}
		}
	}
}

func (s *service) Inspect(ctx context.Context, key string) (holdfast.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == nil {
		s.asked = make(map[string]int)
	}
	s.asked[key]++
	st := s.locks[key]
	if key == s.unlisted.Key {
		st = s.unlisted
	}
	st.Key = key
	return st, s.err
}

func (s *service) Queue(context.Context, string, int) ([]driver.Waiter, error) {
	return []driver.Waiter{{Owner: "next"}}, nil
}

func (s *service) Nodes() []holdfast.NodeEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes
}

// set makes owner hold these locks.
func (s *service) set(owner string, names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks == nil {
		s.locks = make(map[string]holdfast.Status)
	}
	for _, name := range names {
		s.locks[name] = holdfast.Status{Key: name, Held: true, Owner: owner, Remaining: 10 * time.Second}
	}
}

func (s *service) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, name)
}

func (s *service) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func numberedNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("lock-%05d", i))
	}
	return names
}

// run runs a source in a bubble until the test ends. The test requests pictures often enough, or calls wait in
// place of time.Sleep.
func run(t *testing.T, b Backend, opts *Options, test func(t *testing.T, s *Source)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := New(b, opts)
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		test(t, s)
		stop()
		running.Wait()
	})
}

// wait requests pictures while time passes.
func wait(s *Source, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(min(time.Second, time.Until(end))) {
		s.Picture()
	}
}

func TestCompleteReadHasBoundedRate(t *testing.T) {
	b := &service{}
	b.set("a", numberedNames(10_000)...)
	run(t, b, nil, func(t *testing.T, s *Source) {
		for range 20 {
			wait(s, time.Second)
			b.mu.Lock()
			listed := b.listed
			b.listed = 0
			b.mu.Unlock()
			if listed > 5000+step {
				t.Fatalf("%d locks were requested in a second", listed)
			}
		}
		if n := len(s.Picture().Rows); n != 10_000 {
			t.Errorf("%d rows", n)
		}
	})
}

func TestSnapshotBoundsLocks(t *testing.T) {
	b := &service{}
	b.set("a", numberedNames(150)...)
	run(t, b, &Options{Most: 100}, func(t *testing.T, s *Source) {
		wait(s, 5*time.Second)
		if p := s.Picture(); len(p.Rows) != 100 || p.Hidden != 50 {
			t.Errorf("%d rows, %d hidden", len(p.Rows), p.Hidden)
		}
		if d := s.Detail(t.Context(), "lock-00149"); !d.Row.Held {
			t.Error("a lock beyond the limit cannot be viewed")
		}
	})
}

func TestReleasedLockIsShownBriefly(t *testing.T) {
	b := &service{}
	b.set("a", "job", "other")
	run(t, b, nil, func(t *testing.T, s *Source) {
		wait(s, 1500*time.Millisecond)
		b.drop("job")
		wait(s, 1500*time.Millisecond)
		p := s.Picture()
		if len(p.Rows) != 2 {
			t.Fatalf("%d rows", len(p.Rows))
		}
		if word, _, _ := p.State(p.Rows[0]); word != "free" {
			t.Errorf("state %q", word)
		}
		wait(s, 5*time.Second)
		p = s.Picture()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(p.Rows) != 1 || len(s.rows) != 1 {
			t.Errorf("%d rows, of %d", len(p.Rows), len(s.rows))
		}
	})
}

func TestPictureCountsHandOvers(t *testing.T) {
	b := &service{}
	b.set("a", "job")
	run(t, b, nil, func(t *testing.T, s *Source) {
		for i := range 20 {
			b.set(fmt.Sprint("owner", i), "job")
			wait(s, 2*time.Second)
		}
		p := s.Picture()
		if r := p.Rows[0]; r.HandOvers != 19 || r.Changed.IsZero() {
			t.Errorf("%+v", r)
		}
		if p.HandOvers < 0.4 || p.HandOvers > 0.6 {
			t.Errorf("%v hand-overs a second", p.HandOvers)
		}
	})
}

// If a rate counted parts of a second, it would rise and fall within it.
func TestRatesCountWholeSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(&service{}, nil)
		for range 30 {
			s.mu.Lock()
			s.countHandOver(time.Now())
			s.mu.Unlock()
			time.Sleep(time.Second / 2)
			if p := s.Picture(); time.Now().Unix()-bubble > rateOver && (p.HandOvers < 0.99 || p.HandOvers > 1.01) {
				t.Fatalf("%v hand-overs a second, want 1", p.HandOvers)
			}
			time.Sleep(time.Second / 2)
		}
	})
}

// bubble is the Unix time at which a bubble of synctest begins.
const bubble = 946684800

func TestPictureNeverWaitsForBackend(t *testing.T) {
	b := &service{hang: true}
	run(t, b, nil, func(t *testing.T, s *Source) {
		wait(s, time.Minute)
		start := time.Now()
		if p := s.Picture(); !p.Whole.IsZero() || time.Since(start) != 0 {
			t.Errorf("%v later: %+v", time.Since(start), p)
		}
	})
}

func TestSourceStopsReadingWithoutViewer(t *testing.T) {
	b := &service{}
	b.set("a", "job")
	run(t, b, nil, func(t *testing.T, s *Source) {
		s.Want("job")
		s.Picture()
		time.Sleep(20 * time.Second)
		b.mu.Lock()
		listed, asked := b.listed, b.asked["job"]
		b.mu.Unlock()
		time.Sleep(time.Hour)
		b.mu.Lock()
		if b.listed != listed || b.asked["job"] != asked {
			t.Errorf("%d locks were listed and %d requested", b.listed-listed, b.asked["job"]-asked)
		}
		b.mu.Unlock()
		if p := s.Picture(); len(p.Rows) != 0 || !p.Whole.IsZero() {
			t.Error("a lock from an hour ago is shown")
		}
		time.Sleep(time.Second)
		if p := s.Picture(); len(p.Rows) != 1 || p.Bad != 0 {
			t.Errorf("%d rows, %d bad", len(p.Rows), p.Bad)
		}
	})
}

func TestViewedLockIsFresh(t *testing.T) {
	b := &service{}
	b.set("a", numberedNames(1000)...)
	run(t, b, &Options{Rate: 10}, func(t *testing.T, s *Source) {
		wait(s, 150*time.Second)
		for range 10 {
			s.Want("lock-00007")
			wait(s, time.Second)
		}
		b.set("b", "lock-00007")
		s.Want("lock-00007")
		wait(s, 1500*time.Millisecond)
		if r := s.Picture().Rows[7]; r.Owner != "b" {
			t.Errorf("owner %q in an answer from %v ago", r.Owner, time.Since(r.Seen))
		}
		wait(s, 10*time.Second)
		b.mu.Lock()
		before := b.asked["lock-00007"]
		b.mu.Unlock()
		wait(s, 10*time.Second)
		if b.mu.Lock(); b.asked["lock-00007"] != before {
			t.Error("a lock without viewers is still requested")
		}
		b.mu.Unlock()
	})
}

// List omits the lock, because only a minority of the nodes has it.
func TestViewedLockIsKeptWithoutListing(t *testing.T) {
	b := &service{}
	b.set("a", "job")
	run(t, b, nil, func(t *testing.T, s *Source) {
		wait(s, 1500*time.Millisecond)
		b.mu.Lock()
		b.unlisted = holdfast.Status{Key: "job", Nodes: []holdfast.NodeView{{Owner: "a"}, {}, {}}}
		delete(b.locks, "job")
		b.mu.Unlock()
		s.Want("job")
		wait(s, 2*time.Second)
		for range 50 {
			s.Want("job")
			time.Sleep(250 * time.Millisecond)
			p := s.Picture()
			if len(p.Rows) != 1 {
				t.Fatalf("%d rows", len(p.Rows))
			}
			if word, _, _ := p.State(p.Rows[0]); word != "split" {
				t.Fatalf("state %q", word)
			}
		}
	})
}

func TestViewedLocksAreBounded(t *testing.T) {
	b := &service{}
	b.set("a", numberedNames(1000)...)
	run(t, b, nil, func(t *testing.T, s *Source) {
		s.Want(numberedNames(1000)...)
		wait(s, 1500*time.Millisecond)
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.asked) != maxWanted {
			t.Errorf("%d locks were requested", len(b.asked))
		}
	})
}

func TestOutageMakesLocksUnknown(t *testing.T) {
	b := &service{}
	b.set("a", "job")
	run(t, b, nil, func(t *testing.T, s *Source) {
		wait(s, 1500*time.Millisecond)
		b.fail(&holdfast.UnavailableError{Err: errors.New("gone")})
		wait(s, 30*time.Second)
		p := s.Picture()
		if len(p.Rows) != 1 || p.Err == nil {
			t.Fatalf("%d rows, %v", len(p.Rows), p.Err)
		}
		if word, level, _ := p.State(p.Rows[0]); word != "unknown" || level != Bad || p.Bad != 1 {
			t.Errorf("%q %v", word, level)
		}
		b.fail(nil)
		wait(s, 5*time.Second)
		if p := s.Picture(); p.Err != nil || p.Bad != 0 || p.Rows[0].Who() != "another library" {
			t.Errorf("%v, %d bad", p.Err, p.Bad)
		}
	})
}

// The names are requested while too few nodes answer.
func TestUnlistedNamesAreOmitted(t *testing.T) {
	b := &service{}
	b.set("a", "job")
	run(t, b, nil, func(t *testing.T, s *Source) {
		wait(s, 1500*time.Millisecond)
		b.mu.Lock()
		b.unlisted = holdfast.Status{Key: "made up", Nodes: []holdfast.NodeView{{Err: errors.New("down")}, {Err: errors.New("down")}, {}}}
		b.err = &holdfast.UnavailableError{Err: errors.New("no majority")}
		b.mu.Unlock()
		if d := s.Detail(t.Context(), "made up"); d.Row == nil || d.Err == nil {
			t.Errorf("detail = %+v, %v", d.Row, d.Err)
		}
		wait(s, 2*time.Second)
		if p := s.Picture(); len(p.Rows) != 1 || p.Rows[0].Key != "job" {
			t.Errorf("%d rows, want the listed one", len(p.Rows))
		}
	})
}

// A lock whose state is unknown shows its last known holder.
func TestUnknownLockNamesLastHolder(t *testing.T) {
	t.Parallel()
	silent := []holdfast.NodeView{{}, {Err: errors.New("gone")}, {Err: errors.New("gone")}}
	held := func(host string) holdfast.Status {
		return holdfast.Status{Held: true, Owner: host, Holder: holdfast.Holder{Host: host}, Nodes: make([]holdfast.NodeView, 3)}
	}
	var r *Row
	for _, step := range []struct {
		st   holdfast.Status
		want string
	}{
		{holdfast.Status{Nodes: silent}, ""},
		{held("web-1"), "web-1"},
		{holdfast.Status{Nodes: silent}, "was web-1"},
		{holdfast.Status{Nodes: silent}, "was web-1"},
		{held("web-2"), "web-2"},
		{holdfast.Status{Nodes: silent}, "was web-2"},
		{holdfast.Status{Nodes: make([]holdfast.NodeView, 3)}, ""},
		{holdfast.Status{Nodes: silent}, ""},
	} {
		if r = r.nextRow(step.st, time.Now()); r.Who() != step.want {
			t.Errorf("%+v: %q, want %q", step.st, r.Who(), step.want)
		}
	}
}

func TestStateDescribesVotes(t *testing.T) {
	t.Parallel()
	yes := holdfast.NodeView{Owner: "a"}
	other, none, silent := holdfast.NodeView{Owner: "b"}, holdfast.NodeView{}, holdfast.NodeView{Err: errors.New("gone")}
	now := time.Now()
	for _, row := range []struct {
		st    holdfast.Status
		want  string
		level Level
	}{
		{holdfast.Status{Held: true, Owner: "a", Nodes: []holdfast.NodeView{yes, yes, yes}}, "held", Fine},
		{holdfast.Status{Held: true, Owner: "a", Nodes: []holdfast.NodeView{yes, yes, silent}}, "held", Fine},
		{holdfast.Status{Held: true, Owner: "a", Nodes: []holdfast.NodeView{yes, yes, none}}, "at risk", Warn},
		{holdfast.Status{Held: true, Owner: "a", Nodes: []holdfast.NodeView{yes, other, yes}}, "at risk", Warn},
		{holdfast.Status{Held: true, Owner: "a", Nodes: []holdfast.NodeView{yes}, Remaining: -1}, "no end", Warn},
		{holdfast.Status{Nodes: []holdfast.NodeView{yes, other, none}}, "split", Warn},
		{holdfast.Status{Nodes: []holdfast.NodeView{yes, silent, silent}}, "unknown", Bad},
		{holdfast.Status{Waiters: 2, Nodes: []holdfast.NodeView{none, none, none}}, "passing", Fine},
		{holdfast.Status{Nodes: []holdfast.NodeView{none, none, none}}, "free", Fine},
		{holdfast.Status{Held: true, Owner: "a"}, "held", Fine},
	} {
		p := &Picture{Taken: now, stale: time.Minute}
		if got, level, _ := p.State((*Row)(nil).nextRow(row.st, now)); got != row.want || level != row.level {
			t.Errorf("%+v is %s, %v; want %s, %v", row.st, got, level, row.want, row.level)
		}
	}
}

func TestHeadlineNamesWorstState(t *testing.T) {
	t.Parallel()
	nodes := func(states ...holdfast.NodeState) (all []holdfast.NodeEvent) {
		for _, s := range states {
			all = append(all, holdfast.NodeEvent{State: s})
		}
		return all
	}
	up, down := holdfast.NodeUp, holdfast.NodeDown
	now := time.Now()
	for _, row := range []struct {
		p     Picture
		want  string
		level Level
	}{
		{Picture{}, "looking at the locks for the first time", Early},
		{Picture{Whole: now, Nodes: nodes(up, up, up)}, "all well", Fine},
		{Picture{Whole: now, Nodes: nodes(up, up, down)}, "DEGRADED: 1 of 3 nodes do not vote, the others go on", Warn},
		{Picture{Whole: now, Nodes: nodes(up, down, down)}, "NO MAJORITY: 2 of 3 nodes do not vote, nobody gets a lock", Bad},
		{Picture{Whole: now, Nodes: nodes(down)}, "DOWN: the server does not answer, nobody gets a lock", Bad},
		{Picture{Whole: now, Nodes: nodes(up), Err: errors.New("no rights")}, "INCOMPLETE: no rights", Bad},
		{Picture{Whole: now, Nodes: nodes(up), Bad: 2, Warn: 1}, "2 locks in an unknown state", Bad},
		{Picture{Whole: now, Nodes: nodes(up), Warn: 1}, "1 lock to look at", Warn},
	} {
		if got, level := row.p.Headline(); got != row.want || level != row.level {
			t.Errorf("%q, %v; want %q, %v", got, level, row.want, row.level)
		}
	}
}

func TestFilterMatchesShownText(t *testing.T) {
	t.Parallel()
	p := &Picture{Taken: time.Now(), stale: time.Minute}
	for i, name := range []string{"billing/1", "billing/2", "import"} {
		p.addRow((*Row)(nil).nextRow(holdfast.Status{
			Key: name, Held: true, Owner: "a", Waiters: i, Holder: holdfast.Holder{Host: fmt.Sprint("web-", 3-i), Note: "nightly"},
		}, p.Taken))
	}
	for _, row := range []struct {
		filter string
		by     Sort
		want   string
	}{
		{"", ByState, "billing/1 billing/2 import"},
		{"", ByWaiters, "import billing/2 billing/1"},
		{"", ByHolder, "import billing/2 billing/1"},
		{"BILL", ByName, "billing/1 billing/2"},
		{"bill web-3", ByName, "billing/1"},
		{"night held", ByName, "billing/1 billing/2 import"},
		{"free", ByName, ""},
	} {
		got := ""
		for _, r := range p.Select(row.filter, row.by) {
			got += " " + r.Key
		}
		if got = trim(got); got != row.want {
			t.Errorf("%q by %s: %s, want %s", row.filter, row.by, got, row.want)
		}
	}
}

func trim(s string) string {
	if s == "" {
		return ""
	}
	return s[1:]
}
