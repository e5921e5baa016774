package election_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/election"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/redis"
)

// bench is a set of nodes in memory, inside a bubble of virtual time.
type bench struct {
	*testing.T
	nodes *memory.Driver
}

func inBubble(t *testing.T, fn func(b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { fn(&bench{t, memory.New(3)}) })
}

func (b *bench) newClient() *holdfast.Client { return openClient(b.T, b.nodes.Peer()) }

func openClient(t *testing.T, drv holdfast.Driver) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(drv, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (b *bench) startTerm(c *holdfast.Client, value string) *election.Leadership {
	b.Helper()
	term, err := election.Campaign(b.Context(), c, "e", value, nil)
	if err != nil {
		b.Fatalf("Campaign() = %v", err)
	}
	return term
}

func (b *bench) endTerm(term *election.Leadership) {
	b.Helper()
	if err := term.Resign(b.Context()); err != nil {
		b.Errorf("Resign() = %v", err)
	}
}

// observation is one result that Observe yields.
type observation struct {
	leader election.Leader
	err    error
}

// startObserver returns a channel with the results of an observer, which runs until the test ends.
func (b *bench) startObserver(c *holdfast.Client) <-chan observation {
	ctx, cancel := context.WithCancel(context.Background())
	all := make(chan observation, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(all)
		for leader, err := range election.Observe(ctx, c, "e") {
			all <- observation{leader, err}
		}
	}()
	b.Cleanup(func() { cancel(); <-done })
	return all
}

// awaitSeen waits for the next result of the observer.
func (b *bench) awaitSeen(all <-chan observation) observation {
	b.Helper()
	select {
	case s := <-all:
		return s
	case <-time.After(10 * time.Second):
		b.Fatal("Observe returned nothing")
		return observation{}
	}
}

// checkQuiet checks that the observer yields nothing for some time.
func (b *bench) checkQuiet(all <-chan observation) {
	b.Helper()
	select {
	case s := <-all:
		b.Errorf("Observe returned %+v without a change", s)
	case <-time.After(10 * time.Second):
	}
}

func TestOthersSeeLeaderAndValue(t *testing.T) {
	inBubble(t, func(b *bench) {
		me, other := b.newClient(), b.newClient()
		all := b.startObserver(other)
		if s := b.awaitSeen(all); s != (observation{}) {
			b.Errorf("before any campaign: %+v", s)
		}
		term := b.startTerm(me, "[2001:db8::7]:8080")
		want := election.Leader{Term: term.Term(), Value: "[2001:db8::7]:8080"}
		same := func(got election.Leader) bool {
			return got.Term == want.Term && got.Value == want.Value && got.Holder.PID != 0 && got.Holder.Note == "" && !got.Since.IsZero()
		}
		if s := b.awaitSeen(all); s.err != nil || !same(s.leader) {
			b.Errorf("seen %+v, want %+v", s, want)
		}
		if got, err := election.CurrentLeader(b.Context(), other, "e"); err != nil || !same(got) {
			b.Errorf("CurrentLeader() = %+v, %v, want %+v", got, err, want)
		}
		if term.Value() != want.Value || term.Lease().Key() != "e" || term.Lease().Token() != term.Term() {
			b.Errorf("leader has value %q, lease %q, token %d", term.Value(), term.Lease().Key(), term.Lease().Token())
		}
		var held *holdfast.HeldError
		if _, err := other.TryAcquire(b.Context(), "e", nil); !errors.As(err, &held) {
			b.Errorf("TryAcquire() = %v", err)
		} else if value, leads := election.Value(held.Holder); !leads || value != want.Value {
			b.Errorf("Proclaim(%q) by the holder = %v", value, leads)
		}
		b.checkQuiet(all)
		b.endTerm(term)
		if s := b.awaitSeen(all); s != (observation{}) {
			b.Errorf("after the resignation: %+v", s)
		}
		next := b.startTerm(other, "")
		if s := b.awaitSeen(all); s.err != nil || s.leader.Term != next.Term() || s.leader.Value != "" {
			b.Errorf("observed %+v, want term %d without a value", s, next.Term())
		}
		b.endTerm(next)
	})
}

func TestHolderWithoutCampaignDoesNotLead(t *testing.T) {
	inBubble(t, func(b *bench) {
		c, other := b.newClient(), b.newClient()
		for _, note := range []string{"", "leadership", "INC-512"} {
			l, err := c.Acquire(b.Context(), "e", &holdfast.AcquireOptions{Note: note})
			if err != nil {
				b.Fatal(err)
			}
			if got, err := election.CurrentLeader(b.Context(), other, "e"); err != nil || got != (election.Leader{}) {
				b.Errorf("note %q: CurrentLeader() = %+v, %v", note, got, err)
			}
			if err := l.Release(b.Context()); err != nil {
				b.Error(err)
			}
		}
		term, err := election.Campaign(b.Context(), c, "e", "x", &holdfast.AcquireOptions{MinHold: time.Minute})
		if err != nil {
			b.Fatal(err)
		}
		b.endTerm(term)
		if got, err := election.CurrentLeader(b.Context(), other, "e"); err != nil || got != (election.Leader{}) {
			b.Errorf("after the resignation, within MinHold: CurrentLeader() = %+v, %v", got, err)
		}
	})
}

func TestBadProclamationIsRejected(t *testing.T) {
	inBubble(t, func(b *bench) {
		c := b.newClient()
		long := strings.Repeat("x", election.MaxValueBytes)
		b.endTerm(b.startTerm(c, long))
		for _, value := range []string{long + "x", " x", "x\t", "a\nb", "\xff"} {
			_, err := election.Campaign(b.Context(), c, "e", value, nil)
			if !errors.Is(err, holdfast.ErrInvalid) ||
				strings.TrimSpace(value) != value && !strings.HasPrefix(err.Error(), `holdfast: campaign "e": invalid argument: the value `) {
				b.Errorf("Campaign(%q) = %v, want ErrInvalid", value, err)
			}
		}
		for _, opts := range []holdfast.AcquireOptions{
			{Note: "x"}, {NoRenew: true}, {Reentrant: true}, {Adoptable: true},
		} {
			if _, err := election.Campaign(b.Context(), c, "e", "", &opts); !errors.Is(err, holdfast.ErrInvalid) {
				b.Errorf("Campaign(%+v) = %v, want ErrInvalid", opts, err)
			}
		}
	})
}

func TestTermEndsWithLease(t *testing.T) {
	inBubble(t, func(b *bench) {
		c, operator := b.newClient(), b.newClient()
		term := b.startTerm(c, "x")
		if err := operator.ForceRelease(b.Context(), "e", term.Term(), "drill"); err != nil {
			b.Fatal(err)
		}
		<-term.Context().Done()
		if cause := context.Cause(term.Context()); !errors.Is(cause, holdfast.ErrLost) {
			b.Errorf("the term's context ended with %v", cause)
		}
		if err := term.Resign(b.Context()); !errors.Is(err, holdfast.ErrLost) {
			b.Errorf("Resign() = %v, want ErrLost", err)
		}
	})
}

// The next leader follows within one round trip of a resignation, and within the TTL and a second of a crash.
func TestNextLeaderFollowsSoon(t *testing.T) {
	inBubble(t, func(b *bench) {
		const ttl, way = 5 * time.Second, 10 * time.Millisecond
		opts := &holdfast.AcquireOptions{TTL: ttl}
		for i := range 3 {
			b.nodes.Node(i).Delay(way)
		}
		next := make(chan *election.Leadership)
		stand := func() {
			c := b.newClient()
			go func() {
				term, err := election.Campaign(b.Context(), c, "e", "", opts)
				if err != nil {
					b.Errorf("Campaign() = %v", err)
				}
				next <- term
			}()
			time.Sleep(time.Second)
		}
		term, err := election.Campaign(b.Context(), b.newClient(), "e", "", opts)
		if err != nil {
			b.Fatal(err)
		}
		stand()
		began := time.Now()
		go b.endTerm(term)
		term = <-next
		if took := time.Since(began); took > 3*way {
			b.Errorf("the next leader began %v after the resignation", took)
		}
		time.Sleep(time.Minute) // the lease is renewed
		lost := term.Lease()
		stand()
		began = time.Now()
		if err := lost.Detach(); err != nil { // like a dead process
			b.Fatal(err)
		}
		term = <-next
		if took := time.Since(began); took > ttl+time.Second {
			b.Errorf("the next leader began %v after the crash", took)
		}
		b.endTerm(term)
	})
}

// Observers see each term: no term is handed over inside the process.
func TestEachCampaignHasItsOwnTerm(t *testing.T) {
	inBubble(t, func(b *bench) {
		c := b.newClient()
		first := b.startTerm(c, "x")
		got := make(chan *election.Leadership)
		go func() { got <- b.startTerm(c, "x") }()
		synctest.Wait() // the second campaign waits in the process
		b.endTerm(first)
		second := <-got
		leader, err := election.CurrentLeader(b.Context(), b.newClient(), "e")
		if err != nil || leader.Term != second.Term() || second.Term() <= first.Term() {
			b.Errorf("terms %d, %d; seen %+v, %v", first.Term(), second.Term(), leader, err)
		}
		b.endTerm(second)
	})
}

func TestObserveSurvivesOutages(t *testing.T) {
	inBubble(t, func(b *bench) {
		term := b.startTerm(b.newClient(), "x")
		all := b.startObserver(b.newClient())
		if s := b.awaitSeen(all); s.leader.Term != term.Term() {
			b.Errorf("seen %+v", s)
		}
		for range 3 {
			for i := range 2 {
				b.nodes.Node(i).Stop()
			}
			if s := b.awaitSeen(all); !errors.Is(s.err, holdfast.ErrUnavailable) || s.leader != (election.Leader{}) {
				b.Errorf("during an outage Observe returned %+v", s)
			}
			time.Sleep(3 * time.Second)
			for i := range 2 {
				b.nodes.Node(i).Start()
			}
			if s := b.awaitSeen(all); s.err != nil || s.leader.Term != term.Term() {
				b.Errorf("after an outage Observe returned %+v", s)
			}
			time.Sleep(10 * time.Second) // the lease is renewed
		}
		b.checkQuiet(all)
		b.endTerm(term)
	})
}

func TestCloseEndsObserve(t *testing.T) {
	t.Parallel()
	drv, err := redis.Open(t.Context(), "redis://"+redistest.Start(t, nil).Addr(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := openClient(t, drv)
	looks := 0
	var last error
	for leader, err := range election.Observe(t.Context(), c, "e") {
		if looks++; looks == 1 && (err != nil || leader.Term != 0) {
			t.Errorf("seen %+v, %v", leader, err)
		}
		last = err
		c.Close()
	}
	if looks != 2 || !errors.Is(last, holdfast.ErrClosed) {
		t.Errorf("Observe ended after %d reads with %v, want ErrClosed", looks, last)
	}
}

// Observe reads the answers of services that lost their memory.
func TestObservedTermsNeverGoBack(t *testing.T) {
	t.Parallel()
	down := &holdfast.UnavailableError{}
	leads := func(owner string, token holdfast.Token) holdfast.Status {
		return holdfast.Status{Held: true, Owner: owner, Token: token, Holder: holdfast.Holder{Note: "leader"}}
	}
	var o election.Observer
	for i, row := range []struct {
		st   holdfast.Status
		err  error
		term holdfast.Token
		want error
		news bool
	}{
		{st: holdfast.Status{}, news: true},
		{st: leads("a", 40), term: 40, news: true},
		{st: leads("a", 90), term: 40},             // nodes that lost their counters
		{st: holdfast.Status{}, news: true},        // nodes that forgot the lock,
		{st: leads("a", 40), term: 40, news: true}, // until a renewal restored it
		{st: leads("b", 41), term: 41, news: true},
		{st: leads("b", 41), term: 41},
		{err: down, want: holdfast.ErrUnavailable, news: true},
		{err: down, want: holdfast.ErrUnavailable},
		{st: leads("b", 41), term: 41, news: true},
		{st: leads("c", 12), want: election.ErrTermDecreased, news: true},
		{st: leads("d", 13), want: election.ErrTermDecreased},
		{st: leads("a", 40), want: election.ErrTermDecreased},
		{st: leads("e", 42), term: 42, news: true},
		{st: leads("f", 42), want: election.ErrTermDecreased, news: true},
	} {
		leader, news, err := o.Follow(row.st, row.err)
		if leader.Term != row.term || !errors.Is(err, row.want) || news != row.news {
			t.Errorf("read %d: %+v, %v, changed %v; want term %d, %v, %v", i+1, leader, err, news, row.term, row.want, row.news)
		}
	}
}

// During an election some nodes have not committed the term yet, and afterwards some have promised a higher
// one. The observer yields only terms that leaders have.
func TestObserversSeeLeadersTerm(t *testing.T) {
	t.Parallel()
	shows := func(owner string, token holdfast.Token, tokens ...holdfast.Token) holdfast.Status {
		st := holdfast.Status{Held: true, Owner: owner, Token: token, Holder: holdfast.Holder{Note: "leader"}}
		for _, token := range tokens {
			st.Nodes = append(st.Nodes, holdfast.NodeView{Owner: owner, Token: token})
		}
		return st
	}
	down := holdfast.NodeView{Err: errors.New("down")}
	var o election.Observer
	o.Follow(shows("a", 96, 96, 96, 96), nil)
	for i, st := range []holdfast.Status{
		shows("b", 10, 10, 10, 42), // nodes before the commit
		shows("b", 42, 42, 42, 42), // nodes after the commit
		shows("c", 128, 128, 160),  // nodes that disagree
		shows("d", 200, 200, 200),  // and the next leader
		shows("e", 250, 250, 250),  // and another
	} {
		if leader, news, again := o.ApplyStatus(st); news || !again || leader.Term != 0 {
			t.Errorf("read %d returned the stale %+v", i+1, leader)
		}
	}
	st := shows("e", 250, 250, 250, 300)
	st.Nodes = append(st.Nodes, down)
	if leader, news, err := o.Follow(st, nil); leader.Term != 0 || !errors.Is(err, holdfast.ErrUnavailable) || !news {
		t.Errorf("two of four nodes agree: %+v, %v, changed %v", leader, err, news)
	}
	st.Nodes[3] = holdfast.NodeView{Owner: "e", Token: 250}
	o.Follow(st, nil)
	if leader, news, err := o.Follow(st, nil); leader.Term != 250 || err != nil || !news {
		t.Errorf("three of four nodes agree: %+v, %v, changed %v", leader, err, news)
	}
}

func TestRunCallsBackLikeLeaderElector(t *testing.T) {
	inBubble(t, func(b *bench) {
		c := b.newClient()
		other := b.startTerm(b.newClient(), "other")
		ctx, cancel := context.WithCancel(b.Context())
		var calls []string // written by one goroutine after the other
		var leaders []string
		ended := make(chan error)
		go func() {
			ended <- election.Run(ctx, c, "e", "me", nil, election.Callbacks{
				OnStartedLeading: func(ctx context.Context, term holdfast.Token) {
					calls = append(calls, fmt.Sprint("started ", term > other.Term()))
					<-ctx.Done()
					time.Sleep(3 * time.Second) // time to stop
					_, err := b.newClient().TryAcquire(b.Context(), "e", nil)
					calls = append(calls, fmt.Sprint("held ", errors.Is(err, holdfast.ErrHeld)))
				},
				OnStoppedLeading: func() { calls = append(calls, "stopped") },
				OnNewLeader:      func(l election.Leader) { leaders = append(leaders, l.Value) },
			})
		}()
		time.Sleep(3 * time.Second)
		b.endTerm(other)
		time.Sleep(3 * time.Second)
		cancel()
		if err := <-ended; err != nil {
			b.Errorf("Run() = %v", err)
		}
		if want := []string{"started true", "held true", "stopped"}; !slices.Equal(calls, want) {
			b.Errorf("called %q, want %q", calls, want)
		}
		if want := []string{"other", "me"}; !slices.Equal(leaders, want) {
			b.Errorf("leaders %q, want %q", leaders, want)
		}

		operator := b.newClient()
		go func() {
			ended <- election.Run(b.Context(), c, "e", "", nil, election.Callbacks{
				OnStartedLeading: func(ctx context.Context, term holdfast.Token) {
					if err := operator.ForceRelease(b.Context(), "e", term, ""); err != nil {
						b.Error(err)
					}
					<-ctx.Done()
				},
			})
		}()
		if err := <-ended; !errors.Is(err, holdfast.ErrLost) {
			b.Errorf("Run() = %v after a loss, want ErrLost", err)
		}
	})
}

// electionTrial is an election with observers, and with candidates that resign, lose their leases and die.
type electionTrial struct {
	*testing.T
	open  func() *holdfast.Client
	until time.Duration
	ttl   time.Duration
	think func() time.Duration // time that a leader stays

	mu      sync.Mutex // guards the fields below
	leading map[*election.Leadership]bool
	terms   []holdfast.Token
	values  map[holdfast.Token]string
}

func (r *electionTrial) runElection() (terms int) {
	r.leading, r.values = make(map[*election.Leadership]bool), make(map[holdfast.Token]string)
	ctx, cancel := context.WithTimeout(r.Context(), r.until)
	defer cancel()
	var all, watching sync.WaitGroup
	looking, stop := context.WithCancel(r.Context())
	for range 3 {
		c := r.open()
		watching.Go(func() { r.observeLeaders(looking, c) })
	}
	for i := range 4 {
		operator := r.open()
		all.Go(func() {
			for round := 0; ctx.Err() == nil; round++ {
				r.leadOnce(ctx, operator, fmt.Sprintf("candidate-%d:%d", i, round))
			}
		})
	}
	all.Wait()
	stop()
	watching.Wait()
	if !slices.IsSorted(r.terms) {
		r.Errorf("term %d is not above the last", r.terms)
	}
	return len(r.terms)
}

// leadOnce runs one campaign with a new client.
func (r *electionTrial) leadOnce(ctx context.Context, operator *holdfast.Client, value string) {
	c := r.open()
	defer c.Close()
	term, err := election.Campaign(ctx, c, "e", value, &holdfast.AcquireOptions{TTL: r.ttl})
	if err != nil {
		if ctx.Err() == nil {
			r.Errorf("Campaign() = %v", err)
		}
		return
	}
	r.mu.Lock()
	for earlier := range r.leading {
		// A term may end before its leader resigns: a lease that begins with a bare majority and loses one of
		// its nodes.
		if time.Now().Before(earlier.Lease().Deadline()) {
			r.Errorf("term %d begins within term %d", term.Term(), earlier.Term())
		}
	}
	r.leading[term] = true
	if r.values[term.Term()] != "" {
		r.Errorf("two leaders in term %d", term.Term())
	}
	r.values[term.Term()] = value
	r.terms = append(r.terms, term.Term())
	r.mu.Unlock()
	how := rand.N(3)
	select {
	case <-time.After(r.think()):
	case <-term.Context().Done():
	}
	r.mu.Lock()
	delete(r.leading, term)
	r.mu.Unlock()
	switch how {
	case 0:
		term.Resign(ctx)
	case 1:
		term.Lease().Detach() // like a dead process
	default:
		operator.ForceRelease(ctx, "e", term.Term(), "")
	}
}

func (r *electionTrial) observeLeaders(ctx context.Context, c *holdfast.Client) {
	var last holdfast.Token
	looks := 0
	for leader, err := range election.Observe(ctx, c, "e") {
		switch {
		case errors.Is(err, election.ErrTermDecreased):
			r.Error(err)
		case err != nil || leader.Term == 0:
			continue
		case leader.Term < last:
			r.Errorf("observed term %d after term %d", leader.Term, last)
		}
		looks++
		last = leader.Term
		r.mu.Lock()
		if value := r.values[leader.Term]; value != "" && value != leader.Value {
			r.Errorf("term %d is that of %q, and %q is seen", leader.Term, value, leader.Value)
		}
		r.mu.Unlock()
	}
	if looks == 0 {
		r.Error("an observer saw no leader")
	}
}

func TestEachTermIsHigherAndHasOneLeader(t *testing.T) {
	inBubble(t, func(b *bench) {
		stop := make(chan struct{})
		var failing sync.WaitGroup
		failing.Go(func() { // one node after the other
			for {
				n := b.nodes.Node(rand.N(3))
				switch rand.N(3) {
				case 0:
					n.Stop()
				case 1:
					n.Freeze()
				default:
					n.LoseReplies(10)
				}
				select {
				case <-time.After(rand.N(10 * time.Second)):
				case <-stop:
					return
				}
				n.LoseReplies(0)
				n.Start()
				time.Sleep(rand.N(5 * time.Second))
			}
		})
		r := &electionTrial{
			T: b.T, open: b.newClient, until: 20 * time.Minute, ttl: 4 * time.Second,
			think: func() time.Duration { return rand.N(2 * time.Second) },
		}
		if n := r.runElection(); n < 100 {
			b.Errorf("observed %d terms, want 100", n)
		}
		close(stop)
		failing.Wait()
	})
}

// When Close ends a term, another process may lead, as after a loss.
func TestRunReportsThatCloseEndedTerm(t *testing.T) {
	inBubble(t, func(b *bench) {
		c := b.newClient()
		err := election.Run(b.Context(), c, "e", "", nil, election.Callbacks{
			OnStartedLeading: func(ctx context.Context, _ holdfast.Token) { c.Close(); <-ctx.Done() },
		})
		if !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, holdfast.ErrClosed) {
			b.Errorf("Run() = %v, want ErrLost and ErrClosed", err)
		}
	})
}
