package main

import (
	"cmp"
	"container/heap"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/sharding"
)

const (
	full     = 0.7  // maximal load of a node's processor with a short queue
	sockets  = 50e3 // connections of a node, with maxclients and ulimit raised
	gigabyte = 1e9  // of memory
	memoryOf = 8 * gigabyte
	trip     = 200 * time.Microsecond // round trip over the network
)

// demand is the load on a service.
type demand struct {
	name    string
	locks   float64 // per second
	fresh   float64 // share of locks with new names
	held    float64 // leases held at once, each renewed every ttl/3
	clients float64
}

var demands = []demand{
	{"a busy service", 10e3, 0.5, 10e3, 500},
	{"a large one", 100e3, 0.5, 1e6, 5e3},
	{"10^6 locks/s", 1e6, 0.5, 1e6, 20e3},
	{"10^7 names held", 100e3, 0.5, 1e7, 20e3},
	{"10^5 clients", 100e3, 0.5, 1e6, 100e3},
	{"all of these", 1e6, 0.5, 1e7, 100e3},
}

// plan holds the resources that a load needs of one node, with a single set.
type plan struct {
	demand
	processor   float64 // share of a processor
	memory      float64 // bytes
	connections float64
	sets        int
	why         string
}

// planFor returns the plan for a demand. Each node of a set does the work of the whole set; each client has a
// connection to each node of each set.
func (c *costs) planFor(l demand) plan {
	p := plan{demand: l, connections: l.clients}
	p.processor = l.locks*(l.fresh*c.fresh.cpu.Seconds()+(1-l.fresh)*c.again.cpu.Seconds()) + l.held/(ttl.Seconds()/3)*c.renewal.cpu.Seconds()
	p.memory = l.held * c.lease
	// More sets do not reduce the connections of a node.
	room, space := full-l.clients*c.idle, memoryOf-l.clients*c.connection
	if room <= 0 || space <= 0 {
		p.why = "connections: too many for any node"
		return p
	}
	for _, need := range []struct {
		sets float64
		why  string
	}{{p.processor / room, "processor"}, {p.memory / space, "memory"}} {
		if n := int(math.Ceil(need.sets)); n > p.sets {
			p.sets, p.why = n, need.why
		}
	}
	return p
}

// writePlans prints what each demand needs, and the result of a simulation.
func writePlans(w io.Writer, c costs) error {
	needs := [][]string{{
		"load", "decided by", "locks/s", "leases held", "clients", "sets", "servers with 1, 3, 5 nodes a set", "processor of a node", "memory of a node",
		"connections of a node",
	}}
	shown := [][]string{{"load", "sets of 3 nodes", "busiest set, against the mean", "busiest node", "lock taken p50 ms", "p99 ms", "p99.9 ms"}}
	for _, l := range demands {
		p := c.planFor(l)
		line := []string{l.name, p.why, roundNumber(l.locks), roundNumber(l.held), roundNumber(l.clients), "–", "", "", "", roundNumber(p.connections)}
		if p.connections > sockets {
			line[9] += " (!)"
		}
		if n := float64(p.sets); p.sets > 0 {
			copy(line[5:], []string{
				fmt.Sprint(p.sets), fmt.Sprintf("%d, %d, %d", p.sets, 3*p.sets, 5*p.sets),
				fmt.Sprintf("%.0f %%", 100*(p.processor/n+l.clients*c.idle)), fmt.Sprintf("%.1f GB", (p.memory/n+l.clients*c.connection)/gigabyte),
			})
			o, err := simulateLoad(p, c)
			if err != nil {
				return err
			}
			shown = append(shown, []string{
				p.name, fmt.Sprint(p.sets), fmt.Sprintf("%.3f", o.uneven), fmt.Sprintf("%.0f %%", 100*o.busiest),
				formatDigits(inMillis(o.waitQuantile(0.5))), formatDigits(inMillis(o.waitQuantile(0.99))), formatDigits(inMillis(o.waitQuantile(0.999))),
			})
		}
		needs = append(needs, line)
	}
	_, err := fmt.Fprintf(w, `
What follows, with nodes that are as fast as this one, have %.0f GB for locks, and use %.0f %% of one processor for them:

%s
Half of the names are new, leases are renewed every third of %v.
(!): more connections than the %s that a server takes with some care for its limits.

The same in a simulation: a second of each load, names spread by the hash of package sharding, locks at random times, each
node with one processor and the measured times, %v for a round trip. A lock is taken once a majority has answered.

%s`, memoryOf/gigabyte, full*100, markdownTable(needs, 2), ttl, roundNumber(sockets), trip, markdownTable(shown, 1))
	return err
}

// outcome holds the results of a simulation.
type outcome struct {
	waits   []time.Duration // sorted
	uneven  float64
	busiest float64
}

func (o *outcome) waitQuantile(share float64) time.Duration {
	return o.waits[min(int(share*float64(len(o.waits))), len(o.waits)-1)]
}

const replicas = 3 // nodes of a set in the simulation

// job is work that arrives at a set.
type job struct {
	at      time.Duration
	set     int
	cost    time.Duration
	acquire bool
}

// jobs is a heap of future releases, the earliest first.
type jobs []job

func (j jobs) Len() int           { return len(j) }
func (j jobs) Less(a, b int) bool { return j[a].at < j[b].at }
func (j jobs) Swap(a, b int)      { j[a], j[b] = j[b], j[a] }

// Push implements heap.Interface.
func (j *jobs) Push(x any) { *j = append(*j, x.(job)) }

// Pop implements heap.Interface.
func (j *jobs) Pop() any {
	old := *j
	last := old[len(old)-1]
	*j = old[:len(old)-1]
	return last
}

// simulateLoad simulates one second of the load: names are placed by the clients' hash, locks arrive at
// random, and a node does one job at a time.
func simulateLoad(p plan, c costs) (o outcome, err error) {
	var sets []sharding.Set
	for i := range p.sets {
		sets = append(sets, sharding.Set{Name: fmt.Sprintf("set-%02d", i), Driver: memory.New(1)})
	}
	d, err := sharding.New(sets, nil)
	if err != nil {
		return o, err
	}
	defer d.Close()
	index := make(map[string]int)
	for i, s := range sets {
		index[s.Name] = i
	}
	const span = time.Second
	rng := rand.New(rand.NewPCG(1, 2))
	free := make([][replicas]time.Duration, p.sets) // time when each node is free
	busy := make([][replicas]time.Duration, p.sets)
	// Renewals of leases and pings of clients are a constant load.
	background := p.held/float64(p.sets)/(ttl.Seconds()/3)*c.renewal.cpu.Seconds() + p.clients*c.idle
	slow := 1 / max(1-background, 0.01)
	count := make([]float64, p.sets)
	var later jobs
	work := func(j job) {
		var done [replicas]time.Duration
		for n := range replicas {
			cost := time.Duration(float64(j.cost) * slow)
			begin := max(free[j.set][n], j.at+trip/2+time.Duration(rng.Int64N(int64(trip/10))))
			free[j.set][n] = begin + cost
			busy[j.set][n] += j.cost
			done[n] = begin + cost + trip/2
		}
		if !j.acquire {
			return
		}
		slices.Sort(done[:])
		got := done[replicas/2]
		o.waits = append(o.waits, got-j.at)
		heap.Push(&later, job{at: got, set: j.set, cost: j.cost})
	}
	for at := time.Duration(0); at < span; at += time.Duration(rng.ExpFloat64() / p.locks * float64(time.Second)) {
		for len(later) > 0 && later[0].at <= at {
			work(heap.Pop(&later).(job))
		}
		set := index[d.Home("order/"+strconv.FormatInt(rng.Int64N(1e7), 10))]
		cost := c.again.cpu
		if rng.Float64() < p.fresh {
			cost = c.fresh.cpu
		}
		count[set]++
		work(job{at: at, set: set, cost: cost / 2, acquire: true})
	}
	slices.Sort(o.waits)
	o.uneven = slices.Max(count) / (float64(len(o.waits)) / float64(p.sets))
	for _, nodes := range busy {
		o.busiest = max(o.busiest, slices.Max(nodes[:]).Seconds()/span.Seconds()+background)
	}
	return o, nil
}

// roundNumber formats a number for people: 1.2M, 45k, 800.
func roundNumber(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e6, "M"}, {1e3, "k"}} {
		if v >= unit.size {
			digits := cmp.Compare(10*unit.size, v) // one decimal below 10
			return strconv.FormatFloat(v/unit.size, 'f', max(digits, 0), 64) + unit.name
		}
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}
