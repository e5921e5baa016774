package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

const (
	ms     = int64(time.Millisecond)
	second = int64(time.Second)

	epoch = int64(1_800_000_000_000_000) // start of a run, in µs since 1970
)

// Rules are rules of the protocol that can be turned off, to test the checks.
type Rules struct {
	CommitAnybody  bool // commit does not compare the owner
	CommitAnyToken bool // commit does not compare the token
	NoQuarantine   bool // a node without data votes at once
	TrustFromReply bool // trust counts from the answer, without drift
	NoDrift        bool // trust ignores drift
	TrustForever   bool // a holder that is cut off keeps its trust
	NeverAnew      bool // a node without the holder's lock never sets it again
	ReuseID        bool // an owner is reused after an unanswered give-back
	SeedAtAnyTime  bool // a counter starts at the node's clock, however wrong
	NoFloor        bool // a node with older data continues from its older counters
	Shorten        bool // a request shortens the promise of another one of its owner
	TrustFromWake  bool // trust in a hand-over counts from the wake-up
	ReleaseAnybody bool // release does not compare the owner
	Minority       bool // one node counts as a majority
}

// Config configures one run.
type Config struct {
	Seed  uint64
	Class Class
	Rules Rules
	Storm bool      // always make the run a storm
	Adopt bool      // half of the leases are adopted before they are used
	Log   io.Writer // nil: no history

	Nodes  int     // not 0: a small world with this many nodes, one lock and one TTL
	Record *Record // record of the first lock; nil: none
}

// world is one run.
type world struct {
	cfg  Config
	rng  *rand.Rand
	now  int64 // ns since the start of the run: the simulation's clock
	seq  uint64
	todo events

	nodes   []*node
	clients []*client
	keys    []*key

	ttl, maxTTL int64
	lag         int64 // usual upper bound of a message's delay
	pause       int64 // approximate pause between two faults
	calm        int64 // end of faults
	hopeless    int64 // time by which all must have been served
	working     int   // number of workers in a cycle
	report      Report
}

// key is one lock with the stores that it protects.
type key struct {
	name     string
	fenced   store
	unfenced store
	grants   []*grant
}

// grant is one grant of a lock.
type grant struct {
	owner       string
	token       int64
	asked       int64 // time of the request
	issued      int64 // time of the first counted grant by a node
	from, until int64 // interval of trust
}

// event happens at a time. An event of a suspended client waits until the client runs.
type event struct {
	at  int64
	seq uint64
	to  *client // nil: no client
	do  func()
}

type events []event

// push and pop keep q a heap by time. container/heap would box each event in an interface, which costs a third
// of a run.
func (q *events) push(e event) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].isBefore(&h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *events) pop() event {
	h := *q
	e, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	*q = h
	for i := 0; ; {
		least := i
		for _, down := range [2]int{2*i + 1, 2*i + 2} {
			if down < len(h) && h[down].isBefore(&h[least]) {
				least = down
			}
		}
		if least == i {
			return e
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

func (e *event) isBefore(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// scheduleAfter schedules do after d.
func (w *world) scheduleAfter(d int64, do func()) { w.schedule(nil, d, do) }

// schedule schedules do for c after d.
func (w *world) schedule(c *client, d int64, do func()) {
	w.seq++
	w.todo.push(event{at: w.now + max(d, 0), seq: w.seq, to: c, do: do})
}

func (w *world) logEvent(format string, args ...any) {
	if w.cfg.Log != nil {
		fmt.Fprintf(w.cfg.Log, "%12.3f ms  %s\n", float64(w.now)/float64(ms), fmt.Sprintf(format, args...))
	}
}

// upTo returns a random time from 0 to d, with a preference for small ones.
func (w *world) upTo(d int64) int64 {
	return int64(float64(d) * w.rng.Float64() * w.rng.Float64())
}

func (w *world) rollChance(p float64) bool { return w.rng.Float64() < p }

// Run runs one seed and returns the report.
func Run(cfg Config) Report {
	w := &world{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x686f6c6466617374))}
	w.build()
	w.run()
	return w.report
}

// run processes the events and checks the history.
func (w *world) run() {
	for len(w.todo) > 0 {
		e := w.todo.pop()
		if c := e.to; c != nil {
			if c.dead {
				continue
			}
			if c.asleep > e.at {
				e.at = c.asleep // in the old order
				w.todo.push(e)
				continue
			}
		}
		w.now = e.at
		w.report.Events++
		e.do()
		if w.now >= w.calm && w.working == 0 {
			break
		}
		if w.now > w.hopeless {
			w.noteFailure(P5, "%d workers still wait %v after the last fault", w.working, time.Duration(w.now-w.calm))
			break
		}
	}
	w.checkHistory()
}

// build creates nodes, clients and keys, and starts them.
func (w *world) build() {
	r := w.rng
	n := []int{1, 3, 3, 3, 5, 5, 4, 7}[r.IntN(8)]
	if w.cfg.Class.Has(Wipe) {
		n = max(n, 3) // a single node that forgets has no other to remember for it
	}
	w.ttl = []int64{200 * ms, second, 4 * second, 10 * second}[r.IntN(4)]
	w.maxTTL = w.ttl * int64(1+r.IntN(2))
	clients, workers, keys := 2+r.IntN(6), 1+r.IntN(3), 1+r.IntN(3)
	length := min(w.ttl*int64(6+r.IntN(10)), 60*second)
	if r.IntN(100) == 0 { // a crowd
		clients, keys, length = 100+r.IntN(200), 50+r.IntN(150), w.ttl*3
	}
	w.lag = 2 * ms
	w.pause = w.ttl / int64(1+r.IntN(6))
	if w.cfg.Class.hasFaults() && (r.IntN(3) == 0 || w.cfg.Storm) { // a storm: many faults within one exchange of messages
		w.lag = min(w.ttl, 4*second) / int64(10+r.IntN(40))
		w.pause = w.lag / int64(1+r.IntN(3))
		clients, keys, length = 2+r.IntN(3), 1, min(length, 150*w.lag)
	}
	if w.cfg.Nodes > 0 {
		n, w.maxTTL, keys, clients = w.cfg.Nodes, w.ttl, 1, min(clients, 4)
	}
	if w.cfg.Record != nil {
		w.cfg.Record.Nodes, w.cfg.Record.TTL = n, w.ttl
	}
	w.report = Report{Seed: w.cfg.Seed, Class: w.cfg.Class.Name}
	w.calm = length
	for i := range n {
		w.nodes = append(w.nodes, w.newNode(i))
	}
	for i := range keys {
		w.keys = append(w.keys, &key{name: fmt.Sprintf("k%d", i)})
	}
	for range clients {
		w.newClient(workers)
	}
	w.hopeless = w.calm + w.maxRecoveryTime()
	w.logEvent("%s: %d nodes, %d clients of %d workers, %d keys, TTL %v, MaxTTL %v",
		w.cfg.Class.Name, n, clients, workers, keys, time.Duration(w.ttl), time.Duration(w.maxTTL))
	w.scheduleFaults()
}

// maxRecoveryTime returns the time after the last fault by which all must have been served: the quarantine of
// the last node that forgot, a TTL for the locks of dead clients, and for each worker its turn, or its
// hand-over if it does not come.
func (w *world) maxRecoveryTime() int64 {
	workers := 0
	for _, c := range w.clients {
		workers += len(c.workers)
	}
	return w.quarantineTime() + 2*w.maxTTL + int64(workers)*(longestWork*w.ttl+quorum.HandOverTime(w.ttl)) + 10*second
}

func (w *world) quarantineTime() int64 { return w.maxTTL + 2*second }
