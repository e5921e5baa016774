package format

import (
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/link"
)

// Channels subscribes to the channels on which a node publishes that a Redisson lock is free, for the locks
// that this client waits for. It subscribes to a channel when the node has denied the lock, and unsubscribes
// some time after the last caller has left. Other formats have no such channels.
type Channels struct {
	mu    sync.Mutex              // guards the fields below; while it is held, requests are only handed to the writing goroutine
	named map[string]*waitChannel // by Redisson's names
}

// Channels returns the channels of a client's locks.
func (f *Format) Channels() *Channels {
	if !f.java {
		return nil
	}
	return &Channels{named: make(map[string]*waitChannel)}
}

// Subscriber is the connection to a node, with callbacks.
type Subscriber struct {
	Link    *link.Link
	Refused func(error)        // called if the permission to subscribe is missing
	Wake    func(owner string) // called with the owner id that has to ask again
}

type waitChannel struct {
	callers int             // number of callers that wait for the lock
	owners  map[string]bool // their ids that were denied since the last message
	link    *link.Link      // connection of the subscription; nil: none yet
	fair    bool            // also subscribed to the channels for waiters of RFairLock
}

// Await keeps the channel of the lock on key for a waiting caller, until done is called.
func (s *Channels) Await(key string) (done func()) {
	if s == nil {
		return func() {}
	}
	name := wire.RedissonChannel(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.named[name]
	if c == nil {
		c = &waitChannel{owners: make(map[string]bool)}
		s.named[name] = c
	}
	c.callers++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.callers--; c.callers == 0 {
			clear(c.owners)
		}
	}
}

// takeOwners removes and returns the ids that wait for a message on the channel. An id that is denied again is
// added again.
func (s *Channels) takeOwners(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for end := len(name); end >= 0; end = strings.LastIndexByte(name[:end], ':') { // RFairLock appends a colon and a thread
		if c := s.named[name[:end]]; c != nil {
			owners := make([]string, 0, len(c.owners))
			for owner := range c.owners {
				owners = append(owners, owner)
			}
			clear(c.owners)
			return owners
		}
	}
	return nil
}

// SubscribeAfterDenial subscribes to the channel of the lock that v denies, so that r is notified when a Java
// thread frees it. Clients of this format that free a lock without a hand-over leave it to Java, and ask later.
func (s *Channels) SubscribeAfterDenial(r *engine.Request, v resp.Value, sub Subscriber) {
	if s == nil || r.Kind != quorum.AskAcquire || r.Stamp == 0 || len(v.Elems) != 4 {
		return
	}
	fair, _ := v.Elems[3].Int()
	name := wire.RedissonChannel(r.Lock.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.named[name]
	if c == nil || c.callers == 0 {
		return // the caller has left
	}
	if quorum.ClientOf(string(v.Elems[1].Text)) == "" {
		c.owners[r.Owner] = true
	} else {
		delete(c.owners, r.Owner)
	}
	if c.link != sub.Link {
		c.link, c.fair = sub.Link, false
		s.subscribe("SUBSCRIBE", name, name, sub)
	}
	if fair == 1 && !c.fair {
		c.fair = true
		s.subscribe("PSUBSCRIBE", EscapeGlob(name)+":*", name, sub) // users without the permission for all channels poll
	}
}

// subscribe subscribes to a channel of name. Then it wakes the waiting ids, because their locks may have
// become free before.
func (s *Channels) subscribe(cmd, channel, name string, sub Subscriber) {
	sub.Link.Call(link.NewCall([][]string{{cmd, channel}}, func(c *link.Call) {
		if c.Err != nil {
			return // the connection broke, and SubscribeAfterDenial may hold mu
		}
		if err, refused := c.Replies[0].(error); refused && cmd == "SUBSCRIBE" {
			sub.Refused(err)
		}
		s.wakeOwners(name, sub.Wake)
	}))
}

// HandlePush wakes the ids that wait for a message on the channel of push. It reports whether push is such a
// message.
func (s *Channels) HandlePush(push resp.Value, wake func(owner string)) bool {
	if s == nil || len(push.Elems) == 0 {
		return false
	}
	switch kind := string(push.Elems[0].Text); {
	case kind == "pmessage" && len(push.Elems) == 4:
		s.wakeOwners(string(push.Elems[2].Text), wake)
	case kind == "message" && len(push.Elems) == 3 && strings.HasPrefix(string(push.Elems[1].Text), wire.RedissonChannels):
		s.wakeOwners(string(push.Elems[1].Text), wake)
	default:
		return false
	}
	return true
}

func (s *Channels) wakeOwners(channel string, wake func(owner string)) {
	for _, owner := range s.takeOwners(channel) {
		wake(owner)
	}
}

// Unsubscribe ends the subscriptions over l that have no waiting caller.
func (s *Channels) Unsubscribe(l *link.Link) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, c := range s.named {
		if c.callers > 0 {
			continue
		}
		delete(s.named, name)
		if c.link != l {
			continue // its connection has ended
		}
		l.SendCommand("UNSUBSCRIBE", name)
		if c.fair {
			l.SendCommand("PUNSUBSCRIBE", EscapeGlob(name)+":*")
		}
	}
}

// EscapeGlob escapes the characters that are special in patterns of Redis.
func EscapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
