package redis

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/link"
)

// deafPause is the time between attempts to subscribe without the permission to do so.
const deafPause = time.Minute

// Subscribe implements engine.Node: from now on the client's channel on the node
// is listened to, over the connection that also carries the requests, so that a
// break affects both. Between a break and the next confirmation messages are
// lost; the engine asks the node again after each confirmation.
func (n *node) Subscribe() {
	n.listening.Store(true)
	if l := n.link.Load(); l != nil {
		n.listen(l)
	}
}

// listen subscribes, unless the node cannot wake waiters, or does not vote yet: it would
// pass over a place in its queue.
func (n *node) listen(l *connection) {
	if n.muted() != nil || l.stay != nil {
		return
	}
	l.Call(link.NewCall([][]string{{"SUBSCRIBE", wire.Wake + n.engine.Client()}}, func(c *link.Call) { n.heard(l, c) }))
}

// heard takes the answer to SUBSCRIBE, as it is read and so before any wake-up.
func (n *node) heard(l *connection, c *link.Call) {
	if c.Err != nil {
		return // the connection broke
	}
	refused, _ := c.Replies[0].(error)
	n.deafen(refused)
	n.d.set.heard(l, refused)
}

// woken delivers a wake-up that came over l to its claim, and the news of a Force to the client.
func (n *node) woken(push resp.Value, l *connection) {
	if n.d.channels.Freed(push, n.ask) || len(push.Elems) != 3 || string(push.Elems[0].Text) != "message" {
		return
	}
	text := string(push.Elems[2].Text)
	if !n.d.set.wakes(n, quorum.ParseWake(text).Owner) {
		return
	}
	if owner, why, ok := quorum.ParseForced(text); ok {
		if alert := n.d.alert.Load(); alert != nil {
			(*alert)(owner, why)
		}
		return
	}
	w := l.gate(nil).Wake(quorum.ParseWake(text))
	if !n.inOrder() {
		w.Base, w.Left = 0, 0 // it may be older than the replies that came before it (trace C7): the waiter asks
	}
	n.engine.Wake(n.index, w)
}

// ask has the claim of owner ask again.
func (n *node) ask(owner string) { n.engine.Wake(n.index, quorum.Wake{Owner: owner}) }

// muted returns the reason for which the node cannot wake waiters; nil: it can.
func (n *node) muted() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mute
}

// deafen notes the reason for which this client cannot subscribe; nil: it can.
func (n *node) deafen(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deaf = why
}

func (n *node) inOrder() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ordered
}
