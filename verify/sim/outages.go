package sim

import (
	"io"
	"math/rand/v2"
	"slices"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// outages is the class of RunOutages, which causes its faults itself.
var outages = Class{"outages", []Fault{Freeze, Restart, Wipe}, slices.Concat(all, []Property{P9})}

const (
	outageTurns = 2  // outages of each node
	maxRegain   = 20 // TTLs until the holder has a returned node again
)

// RunOutages runs one seed in which a holder keeps a lock while each node in turn is down for longer than the
// TTL: suspended, or restarted with or without its data. An outage begins when the holder has all nodes. Others
// wait for the lock or try, and take it wherever it is free. The lease must survive all of it.
func RunOutages(seed uint64, rules Rules, log io.Writer) Report {
	w := &world{cfg: Config{Seed: seed, Class: outages, Rules: rules, Log: log}, rng: rand.New(rand.NewPCG(seed, 0x6f757461676573))}
	n := []int{3, 3, 5}[w.rng.IntN(3)]
	w.ttl = []int64{second, 4 * second, 10 * second}[w.rng.IntN(3)]
	w.maxTTL, w.lag, w.pause = w.ttl, 2*ms, w.ttl/4
	w.calm, w.hopeless = afterEveryRun, afterEveryRun
	w.report = Report{Seed: seed, Class: outages.Name}
	for i := range n {
		w.nodes = append(w.nodes, w.newNode(i))
	}
	w.keys = []*key{{name: "k"}}
	w.newClient(0).startOutageWorker()
	rivals := 1 + w.rng.IntN(5)
	for range rivals {
		w.newClient(1)
	}
	w.logEvent("outages: %d nodes, %d rivals, TTL %d ms", n, rivals, w.ttl/ms)
	w.run()
	return w.report
}

// afterEveryRun is a time after the end of every run.
const afterEveryRun = int64(1) << 60

// startOutageWorker starts a worker that acquires the lock and keeps it through all outages.
func (c *client) startOutageWorker() {
	w := c.w
	wk := &worker{c: c, asked: w.now}
	wk.keeps = func() {
		var order []int
		for range outageTurns {
			order = append(order, w.rng.Perm(len(w.nodes))...)
		}
		wk.surviveOutages(order, nil, w.now)
	}
	c.workers = append(c.workers, wk)
	w.working++
	w.report.Attempts++
	wk.claim = c.newClaim(w.keys[0], w.ttl, true)
	wk.claim.postAwaited(quorum.Event{Kind: quorum.Start}, wk.handleOutcome)
}

// surviveOutages causes one outage after another, of the nodes in order, each when the holder has all nodes;
// then it releases. last is the node that was down last, and back the time of its return.
func (wk *worker) surviveOutages(order []int, last *node, back int64) {
	w := wk.c.w
	if wk.grant == nil { // it was lost, and that was recorded
		return
	}
	switch st := &wk.claim.st; {
	case w.now > back+maxRegain*w.ttl:
		w.noteFailure(P9, "%s has not got all nodes back", wk.claim.owner)
		wk.endRun()
	case st.Granted != quorum.All(len(w.nodes)) || last != nil && last.locks[wk.claim.key].At(last.wallClock()).Owner != wk.claim.owner:
		w.scheduleAfter(w.ttl/20, func() { wk.surviveOutages(order, last, back) })
	case len(order) == 0:
		w.report.Recovery = append(w.report.Recovery, w.now-back)
		wk.endRun()
	default:
		if last != nil {
			w.report.Recovery = append(w.report.Recovery, w.now-back)
		}
		w.scheduleAfter(w.upTo(w.ttl), func() { wk.takeNodeDown(w.nodes[order[0]], order[1:]) })
	}
}

// takeNodeDown takes n down for longer than the TTL.
func (wk *worker) takeNodeDown(n *node, order []int) {
	w := wk.c.w
	kind := outages.Faults[w.rng.IntN(len(outages.Faults))]
	long := w.ttl + w.ttl/10 + w.upTo(w.ttl)
	w.logEvent("OUTAGE of node %d for %d ms", n.i, long/ms)
	if kind == Freeze {
		n.frozen = true
	} else {
		n.stop()
	}
	w.scheduleAfter(long, func() {
		if kind == Freeze {
			n.thaw()
		} else {
			n.start()
		}
		if kind == Wipe {
			n.restoreLocks(make(map[*key]quorum.Lock), 0)
		}
		w.logEvent("OUTAGE of node %d is over; it forgets everything: %v", n.i, kind == Wipe)
		wait := max(n.votes-w.now, 0)
		w.scheduleAfter(wait+ms, func() { wk.surviveOutages(order, n, w.now) })
	})
}

// endRun ends a run.
func (wk *worker) endRun() {
	w := wk.c.w
	w.calm, w.hopeless = w.now, w.now+w.maxRecoveryTime()
	wk.releaseLock()
}

// noteLostLease records the end of a lease that had to survive.
func (wk *worker) noteLostLease() {
	w := wk.c.w
	w.noteFailure(P9, "%s has lost %s, that a majority of the nodes answered for", wk.claim.owner, wk.claim.key.name)
	w.calm, w.hopeless = w.now, w.now+w.maxRecoveryTime()
}
