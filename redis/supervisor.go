package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/session"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/link"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

const (
	minRedial  = 20 * time.Millisecond // first pause between attempts to reach a node
	maxRedial  = time.Second
	watchEvery = 250 * time.Millisecond
	pingEvery  = 5 * time.Second
	// lookEvery is the interval between checks of properties that may change while a connection is open. A
	// change that allows a second holder, such as an eviction policy, is noticed within this time. INFO takes a
	// server 13 µs.
	lookEvery  = time.Second
	greetEvery = 2 * time.Minute
	greetKeep  = 5 * time.Minute // how long nodes remember a client's process
)

// connectFirst connects for the first time. Even if that fails, supervise continues with the node.
func (n *node) connectFirst(ctx context.Context) error {
	l, err := n.dialChecked(ctx)
	n.logDefects()
	n.d.work.Go(func() { n.supervise(l) })
	return err
}

// supervise watches the connection l and, when it ends, opens the next one, until the driver is closed. Only
// supervise reports the node's states.
func (n *node) supervise(l *connection) {
	told := n.currentEvent()
	report := func() {
		if e := n.currentEvent(); (e.State != told.State || stableCause(e.Err) != stableCause(told.Err)) && n.ctx.Err() == nil {
			told = e
			n.d.notifyNode(e)
		}
	}
	redial := &session.Redial{Min: int64(minRedial), Max: int64(maxRedial)}
	for n.ctx.Err() == nil {
		var next <-chan dialed
		if l != nil {
			next = n.watchConnection(l, redial, report)
		}
		if next == nil {
			next = n.dialAfterPause(redial)
		}
		found := <-next
		if n.ctx.Err() != nil { // a Dial of the user may ignore ctx
			found.close()
			return
		}
		if l, _ = n.admitDialed(found); l == nil {
			report()
			n.expireDebts()
		}
		n.d.logs.Go(n.logDefects) // a Logger may block
	}
	if l != nil { // the driver was closed while the connection was being admitted
		l.HangUp(errHungUp)
	}
}

// dialed is the result of an attempt to open a connection: a checked line, or an error.
type dialed struct {
	line *resp.Conn
	rep  report
	err  error
}

// close closes an unused connection.
func (f *dialed) close() {
	if f.line != nil {
		f.line.Close()
	}
}

// dialAfterPause opens a connection that the gate has checked, after the pause between attempts. The channel
// receives one result, which the receiver admits or closes.
func (n *node) dialAfterPause(redial *session.Redial) <-chan dialed {
	pause, result := time.Duration(redial.Next(rand.Uint32())), make(chan dialed, 1)
	n.d.work.Go(func() {
		pauseFor(n.ctx, pause)
		found := dialed{err: n.ctx.Err()}
		if found.err == nil {
			found.line, found.rep, found.err = n.d.gate.dialNode(n.ctx, n)
		}
		result <- found
	})
	return result
}

// dialChecked opens a connection that the gate has checked, and lets the node vote over it. With an error
// there is no connection, or one over which the node does not vote yet.
func (n *node) dialChecked(ctx context.Context) (*connection, error) {
	line, rep, err := n.d.gate.dialNode(ctx, n)
	return n.admitDialed(dialed{line, rep, err})
}

// admitDialed lets the node vote over a new connection. No other connection of the node is open. The results
// are those of dialChecked.
func (n *node) admitDialed(found dialed) (*connection, error) {
	n.noteSkipped(found.rep)
	err := found.err
	if err == nil && n.place.Shard() == "" {
		err = n.d.gate.noteArrival(n.addr, found.rep.process) // again, as the end of a connection before it counts as the node's
	}
	if err != nil {
		found.close()
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
		n.d.set.noteLoss(n)
		return nil, err
	}
	n.noteReport(found.rep)
	l := newConnection(n, found.line, found.rep)
	l.Start(n.d.work.Go)
	n.sendDebts(l)
	n.introduceClient(l)
	n.giveVote(l)
	if l.stay != nil {
		return l, l.stay
	}
	return l, nil
}

// giveVote lets the node vote over l, unless l has already broken.
func (n *node) giveVote(l *connection) {
	n.d.set.prepareConnection(l)
	n.mu.Lock()
	if !l.Ended() {
		n.link.Store(l)
		n.d.admitted.Store(true)
		n.ill.Store(nil)
		n.deaf = nil
		n.trip.Store(0)
		n.stalled.Store(false)
		if l.stay != nil {
			n.err = l.stay
		}
	}
	n.mu.Unlock()
	if n.listening.Load() {
		n.subscribeOver(l)
	}
}

// takeVote removes the node's vote after l has broken.
func (n *node) takeVote(l *connection, err error) {
	n.mu.Lock()
	if n.link.CompareAndSwap(l, nil) {
		n.err = err
	}
	n.mu.Unlock()
	n.d.gate.noteLeave(n.addr)
	n.d.set.noteLoss(n)
}

// watchConnection checks l at intervals until it ends. It leaves a node that does not answer, sends the
// description of this client to the node again, and sends owed releases. If a renewal over l is late, it opens
// another connection, and then ends l: the server may be busy, and reject logins during a rotation of
// passwords, so an open connection is not given up for none. All requests go over l until then, and over the
// next connection once those over l have been answered or have failed. If the address leads to another process
// by then, l ends even if it works again: other clients get their locks from the other process.
//
// It returns the next connection if that is open or being opened, and nil otherwise.
func (n *node) watchConnection(l *connection, redial *session.Redial, report func()) (next <-chan dialed) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	begin, doubted, tended := time.Now(), false, time.Duration(0)
	w := session.Watch{Votes: l.votes, Replaced: n.place.Replaced(), Looked: l.looked.Load()}
	for i := 0; ; {
		report()
		var found *dialed
		select {
		case <-tick.C:
			i++
		case result := <-next:
			found, next = &result, nil
		case <-l.Gone():
			if report(); !doubted {
				redial.Ended(int64(time.Since(begin)))
			}
			return next
		case <-n.ctx.Done():
			l.HangUp(errHungUp)
			return next
		}
		err := w.Check(l.takeSnapshot())
		n.stalled.Store(w.Stalled)
		l.looked.Store(w.Looked)
		switch {
		case found != nil && l.isReplacedBy(found.rep):
			l.HangUp(errReplaced)
			return awaitGone(l, *found)
		case found != nil && found.err == nil && w.Doubted:
			l.HangUp(session.ErrSilent)
			return awaitGone(l, *found)
		case found != nil:
			n.noteSkipped(found.rep)
			found.close() // an error, or l works again
		case err != nil:
			l.HangUp(err)
		case w.Doubted && next == nil:
			if !doubted {
				redial.Ended(int64(time.Since(begin)))
			}
			next = n.dialAfterPause(redial)
		case !w.Stalled:
			age := time.Duration(i) * watchEvery
			n.tendConnection(l, tended, age)
			tended = age
		}
		doubted = w.Doubted
	}
}

// awaitGone returns found for the next connection once all requests over l, which was closed, have failed: that
// connection first sends the owed releases.
func awaitGone(l *connection, found dialed) <-chan dialed {
	<-l.Gone()
	next := make(chan dialed, 1)
	next <- found
	return next
}

// tendConnection does the regular work of a connection that answers. It also does the work that fell due while
// the connection did not answer: before is the age of the connection at the last call, age its present age.
func (n *node) tendConnection(l *connection, before, age time.Duration) {
	due := func(every time.Duration) bool { return age/every > before/every }
	n.sendDebts(l) // requests that came while the node was coming up, or was cut off again
	if due(greetEvery) {
		n.introduceClient(l)
	}
	if due(resubscribePause) && n.currentEvent().State == driver.NodePolling {
		n.subscribeOver(l) // the permission may have been granted meanwhile
	}
	if due(lookEvery) {
		n.d.channels.Unsubscribe(l.Link)
		n.searchBareKey(l)
		n.recheckConnection(l)
	}
	if due(pingEvery) {
		n.measureTrip(l) // otherwise this client would not notice that the other end is gone
	}
	if n.place.Replaced() && due(pingEvery) {
		n.d.work.Go(func() { // an isolated master cannot know that another was promoted
			if n.place.Moved(n.d.ctx, l.server) {
				l.HangUp(errMoved)
			}
		})
	}
}

// recheckConnection lets the gate check the server again by what INFO reports, and ends the connection if the
// server may not vote any more: after a demotion, or with a policy that evicts locks. A client that sends no
// requests has no other way to notice that.
func (n *node) recheckConnection(l *connection) {
	l.Call(link.NewCall([][]string{{"INFO"}}, func(c *link.Call) {
		if c.Err != nil {
			return
		}
		defects, err := n.d.gate.recheckServer(l, c.Replies[0])
		if err != nil {
			l.HangUp(err)
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if defects != nil && n.link.Load() == l {
			l.defects = defects
			n.noteDefectsLocked(l.report)
			if len(n.news) > 0 {
				n.d.logs.Go(n.logDefects) // a Logger may block
			}
		}
	}))
}

// introduceClient sends the description of this client's process to the node.
func (n *node) introduceClient(l *connection) {
	me := n.d.holder.self()
	if me == (driver.Holder{}) {
		return
	}
	if text, err := json.Marshal(me); err == nil {
		l.SendCommand("SET", wire.Client+n.engine.Client(), string(text), "PX", format.Millis(int64(greetKeep)))
	}
}

// searchBareKey searches for a lock on a bare name.
func (n *node) searchBareKey(l *connection) {
	d := n.d
	if !d.opts.format().BareBeside(d.opts.Prefix) || !d.set.hasEveryName() {
		return // the name is the key; or it may be at another shard
	}
	// The server logs each command for which a user has no permission.
	if d.opts.Credentials != nil {
		return // Credentials is called for new connections only
	}
	if user, _, _ := n.net.Credentials(n.ctx, l.server); user != "" {
		return
	}
	taken := d.bare.name.Swap(nil)
	if taken == nil {
		return
	}
	name := *taken
	l.Call(link.NewCall([][]string{{"PTTL", name}}, func(c *link.Call) {
		if c.Err != nil {
			return // Close may not wait for the Logger any more
		}
		if left, _ := c.Replies[0].(int64); left > 0 && d.bare.isNew(name) {
			d.logs.Go(func() { // a Logger may block
				d.opts.Logger.Warn(fmt.Sprintf("there is a key %q, which expires, beside %q: if another library locks that name by its bare key, "+
					"it and this client do not exclude one another; give both the same key (bare=true)", name, d.opts.lockKeys(name).Key), "node", n.addr)
			})
		}
	}))
}

// measureTrip measures the round trip with a PING, which queues like every request.
func (n *node) measureTrip(l *connection) {
	sent := n.engine.Now()
	l.Call(link.NewCall([][]string{{"PING"}}, func(c *link.Call) {
		if took := max(n.engine.Now()-sent, 1); c.Err == nil {
			last := cmp.Or(n.trip.Load(), took)
			n.trip.Store(last + (took-last)/4)
		}
	}))
}

// adviseError returns err with the advice of server.AddAdvice. If a server at addr has answered before, it
// speaks the protocol of this client, so a reset connection has another reason.
func (n *node) adviseError(addr string, err error, secure bool) error {
	n.mu.Lock()
	known := n.server == addr
	n.mu.Unlock()
	if known && !secure && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)) {
		return err
	}
	return server.AddAdvice(err, secure)
}

// noteSkipped stores for the log that a check has skipped a quarantine.
func (n *node) noteSkipped(rep report) {
	if !rep.skipped {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.news = append(n.news, errSkipped)
}

// noteReport stores the results of the check of a new connection.
func (n *node) noteReport(rep report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mute, n.ordered = rep.Mute, rep.ordered
	n.moved = n.server != "" && n.server != rep.server
	n.server = rep.server
	n.noteDefectsLocked(rep)
}

// noteDefectsLocked stores the defects of the node, and keeps new ones for the log. The caller holds mu.
func (n *node) noteDefectsLocked(rep report) {
	n.defect = nil
	all := make(map[string]error)
	maps.Copy(all, rep.warns)
	maps.Copy(all, rep.defects)
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		err := all[kind]
		if n.defect == nil {
			n.defect = err
		} else {
			n.defect = fmt.Errorf("%w; %w", n.defect, err)
		}
		if !n.warned[kind] {
			n.warned[kind] = true
			n.news = append(n.news, err)
		}
	}
}

// logDefects logs each defect once.
func (n *node) logDefects() {
	n.mu.Lock()
	news, moved, server := n.news, n.moved, n.server
	n.news, n.moved = nil, false
	n.mu.Unlock()
	if moved {
		n.d.opts.Logger.Info("node has moved to another server", "node", n.addr, "server", server)
	}
	for _, err := range news {
		n.d.opts.Logger.Warn("node has a defect", "node", n.addr, "defect", err.Error())
	}
}
