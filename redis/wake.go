package redis

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/link"
)

// resubscribePause is the time between attempts to subscribe without the permission for it.
const resubscribePause = time.Minute

// Subscribe implements engine.Node. It subscribes to the client's channel on the node, over the connection
// that also carries the requests, so that a break affects both. Messages between a break and the next
// confirmation are lost; the engine asks the node again after each confirmation.
func (n *node) Subscribe() {
	n.listening.Store(true)
	if l := n.link.Load(); l != nil {
		n.subscribeOver(l)
	}
}

// subscribeOver subscribes over l, unless the node cannot wake waiters or does not vote yet: a release there
// would pass the lock to this client.
func (n *node) subscribeOver(l *connection) {
	if n.noWakeUpCause() != nil || l.stay != nil {
		return
	}
	l.Call(link.NewCall([][]string{{"SUBSCRIBE", wire.Wake + n.engine.Client()}}, func(c *link.Call) { n.confirmSubscription(l, c) }))
}

// confirmSubscription handles the answer to SUBSCRIBE when it is read, which is before any wake-up.
func (n *node) confirmSubscription(l *connection, c *link.Call) {
	if c.Err != nil {
		return // the connection broke
	}
	refused, _ := c.Replies[0].(error)
	n.setSubscribeError(refused)
	n.d.set.noteSubscription(l, refused)
}

// deliverPush passes a wake-up that arrived over l to its claim, and a notification about a Force to the
// client.
func (n *node) deliverPush(push resp.Value, l *connection) {
	if n.d.channels.HandlePush(push, n.askClaimAgain) || len(push.Elems) != 3 || string(push.Elems[0].Text) != "message" {
		return
	}
	text := string(push.Elems[2].Text)
	if !n.d.set.acceptsWakeUp(n, quorum.ParseWake(text).Owner) {
		return
	}
	if owner, why, ok := quorum.ParseForced(text); ok {
		if alert := n.d.alert.Load(); alert != nil {
			(*alert)(owner, why)
		}
		return
	}
	w := l.gateFor(nil).Wake(quorum.ParseWake(text))
	if !n.isOrdered() {
		w.Base, w.Left = 0, 0 // it may be older than the replies before it (trace C7), so the waiter asks
	}
	n.engine.Wake(n.index, w)
}

// askClaimAgain makes the claim of owner ask again.
func (n *node) askClaimAgain(owner string) { n.engine.Wake(n.index, quorum.Wake{Owner: owner}) }

// noWakeUpCause returns the reason why the node cannot wake waiters; nil: it can.
func (n *node) noWakeUpCause() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mute
}

// setSubscribeError records the reason why this client cannot subscribe; nil: it can.
func (n *node) setSubscribeError(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deaf = why
}

func (n *node) isOrdered() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ordered
}
