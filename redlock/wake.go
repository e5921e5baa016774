package redlock

import (
	"bytes"
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// deafPause is between attempts to subscribe where the right to do so is missing.
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
func (n *node) listen(l *link) {
	n.mu.Lock()
	mute := n.mute
	n.mu.Unlock()
	if mute != nil || l.stay != nil {
		return
	}
	c := newCall([][]string{{"SUBSCRIBE", wire.Wake + n.engine.Client()}})
	c.then = func() { n.heard(l, c) }
	l.send(entry{call: c, at: n.engine.Now()})
}

// heard takes the answer to SUBSCRIBE, as it is read and so before any wake-up.
func (n *node) heard(l *link, c *call) {
	if c.err != nil {
		return // the connection broke
	}
	refused, _ := c.replies[0].(error)
	n.mu.Lock()
	n.deaf = refused
	n.mu.Unlock()
	if n.d.cluster != nil {
		l.hears.Store(refused == nil)
		n.d.cluster.heard()
		return
	}
	n.engine.Hears(n.index, refused == nil)
}

// woken delivers a wake-up that came over l to its claim, and the news of a Force to the client.
func (n *node) woken(push resp.Value, l *link) {
	switch kind := string(push.Elems[0].Text); {
	case kind == "pmessage" && len(push.Elems) == 4:
		n.freed(string(push.Elems[2].Text))
	case kind != "message" || len(push.Elems) != 3:
	case bytes.HasPrefix(push.Elems[1].Text, []byte(wire.RedissonChannels)):
		n.freed(string(push.Elems[1].Text))
	default:
		text := string(push.Elems[2].Text)
		if c := n.d.cluster; c != nil && !c.wakes(n, quorum.ParseWake(text).Owner) {
			return
		}
		if owner, why, ok := quorum.ParseForced(text); ok {
			if alert := n.d.alert.Load(); alert != nil {
				(*alert)(owner, why)
			}
			return
		}
		w := quorum.ParseWake(text)
		floor, err := l.least()
		if err != nil || !n.inOrder() {
			w.Base, w.Left = 0, 0 // it may be older than the replies that we have had (trace C7): ask
		}
		n.engine.Wake(n.index, w, floor)
	}
}

func (n *node) inOrder() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ordered
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
