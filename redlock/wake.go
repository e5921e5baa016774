package redlock

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wire"
)

const (
	listenPause = 20 * time.Millisecond // between attempts to subscribe
	mutePause   = time.Minute           // where the right to subscribe is missing
)

// Subscribe implements engine.Node: from now on the client's channel on the node
// is listened to, over the connection that also carries the requests, so that
// whatever cuts the one cuts the other.
func (n *node) Subscribe() { n.d.work.Go(n.listen) }

// listen keeps up the subscription. Between a break and the next confirmation
// messages are lost; the engine asks the node again after each confirmation.
func (n *node) listen() {
	channel := wire.Wake + n.engine.Client()
	ctx := rueidis.WithOnSubscriptionHook(n.d.ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" {
			n.engine.Hears(n.index, true) // only queues requests: the connection calls this
		}
	})
	for n.d.ctx.Err() == nil {
		pause := listenPause
		if n.usable.Load() && !n.silent() {
			err := n.client.Receive(ctx, n.client.B().Subscribe().Channel(channel).Build(), n.woken)
			n.engine.Hears(n.index, false)
			if re, ok := rueidis.IsRedisErr(err); ok {
				n.set(driver.NodePolling, re)
				pause = mutePause
			}
		}
		wait(n.d.ctx, pause)
	}
}

// silent says whether the node cannot be told to wake anybody, so that a place in
// its queue would only be passed over.
func (n *node) silent() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mute != nil
}

// woken takes a wake-up to the claim that it is for.
func (n *node) woken(m rueidis.PubSubMessage) { n.engine.Wake(n.index, m.Message) }

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
