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

	epoch = int64(1_800_000_000_000_000) // µs since 1970 when a run begins
)

// Rules are rules of the protocol that can be switched off, to see that the
// checks would notice.
type Rules struct {
	CommitAnybody  bool // commit does not look whose the lock is
	CommitAnyToken bool // commit does not look which token the node gave
	NoQuarantine   bool // a node that has forgotten everything votes at once
	TrustFromReply bool // trust counts from the answer and without drift
	NoDrift        bool // trust takes all clocks to run at the same rate
	TrustForever   bool // a holder that is cut off goes on
	NeverAnew      bool // a node that does not have the holder's lock never sets it again
	ReuseID        bool // an id is used again after its give-back went unanswered
	SeedAtAnyTime  bool // a counter starts at the node's clock, however wrong that is
	NoFloor        bool // a node that went back to older data goes on from its older counters
	Shorten        bool // a request shortens what another of the same owner has promised
	TrustFromWake  bool // trust in a hand-over counts from when it was heard of
	ReleaseAnybody bool // release does not look whose the lock is
	Minority       bool // a client takes one node for all
}

// Config is one run.
type Config struct {
	Seed  uint64
	Class Class
	Rules Rules
	Storm bool      // make it one in any case
	Adopt bool      // half of the leases are adopted before they are used
	Log   io.Writer // nil: no history

	Nodes  int     // not 0: a small world, with one lock on so many nodes and one lease time
	Record *Record // nil: none. It is of the first lock
}

// world is one run.
type world struct {
	cfg  Config
	rng  *rand.Rand
	now  int64 // ns since the run began, by the clock on the wall of the laboratory
	seq  uint64
	todo events

	nodes   []*node
	clients []*client
	keys    []*key

	ttl, maxTTL int64
	lag         int64 // most messages take no longer
	pause       int64 // between two faults, about
	calm        int64 // from then on there are no faults
	hopeless    int64 // by then everybody must have been served
	working     int   // workers in a cycle
	report      Report
}

// key is one lock with what it protects.
type key struct {
	name     string
	fenced   store
	unfenced store
	grants   []*grant
}

// grant is one time that somebody had a lock.
type grant struct {
	owner       string
	token       int64
	asked       int64 // when the wish began
	issued      int64 // first grant by a node that was relied on
	from, until int64 // trusted
}

// event is something that happens at a time. What happens to a client waits until
// the client runs.
type event struct {
	at  int64
	seq uint64
	to  *client // nil: not to a client
	do  func()
}

type events []event

// push and pop keep q a heap by time. container/heap would put each event into an
// interface, which costs a third of a run.
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

// scheduleAfter has do happen in d.
func (w *world) scheduleAfter(d int64, do func()) { w.schedule(nil, d, do) }

// schedule has do happen to c in d.
func (w *world) schedule(c *client, d int64, do func()) {
	w.seq++
	w.todo.push(event{at: w.now + max(d, 0), seq: w.seq, to: c, do: do})
}

func (w *world) logEvent(format string, args ...any) {
	if w.cfg.Log != nil {
		fmt.Fprintf(w.cfg.Log, "%12.3f ms  %s\n", float64(w.now)/float64(ms), fmt.Sprintf(format, args...))
	}
}

// upTo is a random time, from 0 to d. Small ones are as frequent as large ones.
func (w *world) upTo(d int64) int64 {
	return int64(float64(d) * w.rng.Float64() * w.rng.Float64())
}

func (w *world) rollChance(p float64) bool { return w.rng.Float64() < p }

// Run runs one seed and returns what was found.
func Run(cfg Config) Report {
	w := &world{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x686f6c6466617374))}
	w.build()
	w.run()
	return w.report
}

// run lets happen what is to happen, and checks the history.
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

// build makes nodes, clients and keys, and starts them.
func (w *world) build() {
	r := w.rng
	n := []int{1, 3, 3, 3, 5, 5, 4, 7}[r.IntN(8)]
	if w.cfg.Class.Has(Wipe) {
		n = max(n, 3) // one node that forgets has nobody to remember for it
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

// maxRecoveryTime returns how long after the last fault everybody must have been served: the quarantine of
// the last node that forgot, a TTL for what dead clients hold, and for each worker its turn, or its
// hand-over if it does not come.
func (w *world) maxRecoveryTime() int64 {
	workers := 0
	for _, c := range w.clients {
		workers += len(c.workers)
	}
	return w.quarantineTime() + 2*w.maxTTL + int64(workers)*(longestWork*w.ttl+quorum.HandOver(w.ttl)) + 10*second
}

func (w *world) quarantineTime() int64 { return w.maxTTL + 2*second }
