package sim

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// client is one process.
type client struct {
	w     *world
	name  string
	rate  float64 // rate of its clocks
	off   int64   // offset of its wall clock, in µs
	links []*link

	workers    []*worker
	claims     []*claim
	seq        int
	heard      quorum.Set
	subscribed bool
	asleep     int64 // time until which it is suspended
	dead       bool
}

func (w *world) newClient(workers int) *client {
	c := &client{
		w: w, name: fmt.Sprintf("c%d", len(w.clients)+1), rate: w.randomRate(), off: w.rng.Int64N(600_000) - 300_000,
	}
	w.clients = append(w.clients, c)
	for _, n := range w.nodes {
		c.links = append(c.links, w.newLink(c, n))
	}
	for i := range c.links {
		if l := c.links[i]; !l.up {
			l.reconnect()
		}
	}
	for range workers {
		wk := &worker{c: c}
		c.workers = append(c.workers, wk)
		wk.pauseBetweenCycles()
	}
	return c
}

// monotonicClock returns the client's monotonic clock; 0 would mean never.
func (c *client) monotonicClock() int64 { return 1 + int64(float64(c.w.now)*c.rate) }

// wallClock returns the client's wall clock in µs.
func (c *client) wallClock() int64 { return epoch + c.off + c.monotonicClock()/1000 }

// worldTime returns the simulation's time at which the client's clock shows t.
func (c *client) worldTime(t int64) int64 { return int64(float64(t-1) / c.rate) }

// scheduleAfter schedules do after d by the client's clock.
func (c *client) scheduleAfter(d int64, do func()) { c.w.schedule(c, int64(float64(d)/c.rate)+1, do) }

func (c *client) nextOwner() string {
	c.seq++
	return fmt.Sprintf("%s.%d", c.name, c.seq)
}

func clientOf(owner string) string {
	name, _, _ := strings.Cut(owner, ".")
	return name
}

// wakeClaim delivers a wake-up to its claim.
func (c *client) wakeClaim(node int, wake quorum.Wake, issued int64, step int) {
	for _, cl := range c.claims {
		if cl.owner == wake.Owner {
			wake = c.links[node].sessionGate().Wake(wake) // an earlier client may have freed the lock (trace C11)
			if wake.Base != 0 {
				cl.issued[node] = issued
			}
			cl.rec.woken = step
			cl.postEvent(quorum.Event{Kind: quorum.Woken, Node: node, Token: wake.Base, TTL: wake.Left * ms})
			return
		}
	}
}

// noteWakeUps records whether wake-ups from a node arrive.
func (c *client) noteWakeUps(node int, yes bool) {
	before := c.heard
	if yes {
		c.heard |= quorum.Only(node)
	} else {
		c.heard &^= quorum.Only(node)
	}
	if c.heard == before {
		return
	}
	for _, cl := range append([]*claim(nil), c.claims...) {
		cl.postEvent(quorum.Event{Kind: quorum.SubscriptionChange})
	}
}

func (c *client) subscribeAll() {
	if c.subscribed {
		return
	}
	c.subscribed = true
	for _, l := range c.links {
		l.subscribeOver()
	}
}

// claim executes one quorum.Claim, as package engine does.
type claim struct {
	c      *client
	key    *key
	st     quorum.Claim
	owner  string
	from   string // owner whose lock it adopts
	alarm  int64  // time of the alarm, by the client's clock
	issued [quorum.MaxNodes]int64
	told   func(quorum.Outcome)
	rec    recordedClaim
}

func (c *client) newClaim(k *key, ttl int64, wait bool) *claim {
	cl := &claim{c: c, key: k, owner: c.nextOwner()}
	cl.st.N, cl.st.TTL = int8(len(c.w.nodes)), ttl
	if c.w.cfg.Rules.Minority {
		cl.st.N = 1
	}
	if wait {
		cl.st.Stamp, cl.st.Renews = c.wallClock(), c.w.rollChance(0.9)
	}
	c.claims = append(c.claims, cl)
	return cl
}

func (cl *claim) forgetClaim() {
	c := cl.c
	for i, other := range c.claims {
		if other == cl {
			c.claims = append(c.claims[:i:i], c.claims[i+1:]...)
			return
		}
	}
}

// postAwaited posts e and calls told with the next outcome.
func (cl *claim) postAwaited(e quorum.Event, told func(quorum.Outcome)) {
	cl.told = told
	cl.postEvent(e)
}

// postEvent passes an event to the claim and sends the resulting requests.
func (cl *claim) postEvent(e quorum.Event) { cl.postAnswer(e, nil) }

// postAnswer posts an event that answers r; r is nil for other events.
func (cl *claim) postAnswer(e quorum.Event, r *request) {
	w, c := cl.c.w, cl.c
	now := c.monotonicClock()
	e.At, e.Rand = now, w.rng.Uint32()
	if e.Kind == quorum.Start || e.Kind == quorum.SubscriptionChange {
		e.Nodes = c.heard
	}
	if w.cfg.Rules.TrustFromReply && e.Kind == quorum.Granted {
		e.Sent = now + quorum.Drift(e.TTL)
	}
	if w.cfg.Rules.NoDrift && (e.Kind == quorum.Granted || e.Kind == quorum.Kept) {
		e.Sent += quorum.Drift(e.TTL)
	}
	if w.cfg.Rules.TrustFromWake && e.Kind == quorum.Woken {
		cl.st.Answered[e.Node] = now
	}
	before, owner, st := cl.st, cl.owner, cl.st
	do := st.Step(e)
	if w.cfg.Rules.NeverAnew {
		do.Renew &^= do.Restore
	}
	cl.st = st
	fresh := do.FreshID
	if fresh {
		if w.cfg.Rules.ReuseID {
			do.Release, fresh = 0, false
		} else {
			cl.owner = c.nextOwner()
		}
		cl.issued = [quorum.MaxNodes]int64{}
		w.logEvent("%s goes on as %s", owner, cl.owner)
	}
	cl.recordEvent(&before, owner, fresh, &e, &do, r)
	for ask := range do.Asks(before.ID, &cl.st, now, quorum.Owners{Before: owner, Now: cl.owner, From: cl.from}) {
		c.links[ask.Node].sendRequest(&request{Ask: ask, key: cl.key, claim: cl})
	}
	cl.setAlarm(now)
	if do.Subscribe {
		c.subscribeAll()
	}
	if do.Outcome != quorum.None && cl.told != nil {
		w.logEvent("%s on %s: %s", cl.owner, cl.key.name, outcomeNames[do.Outcome])
		told := cl.told
		cl.told = nil
		told(do.Outcome)
	}
}

var outcomeNames = [...]string{
	quorum.Won: "won", quorum.Busy: "busy", quorum.Unavailable: "unavailable", quorum.Renewed: "renewed", quorum.NotRenewed: "not renewed",
	quorum.Lost: "lost", quorum.Released: "released", quorum.NotReleased: "not released",
}

// setAlarm schedules a Tick at the claim's next Alarm. The holder times the rounds of a held lock.
func (cl *claim) setAlarm(now int64) {
	alarm := cl.st.Alarm()
	if cl.st.Phase == quorum.Held {
		alarm = 0
	}
	if alarm == 0 || cl.alarm > now && cl.alarm <= alarm {
		return
	}
	cl.alarm = alarm
	cl.c.scheduleAfter(alarm-now, func() {
		if cl.alarm == alarm {
			cl.alarm = 0
			cl.postEvent(quorum.Event{Kind: quorum.Tick})
		}
	})
}
