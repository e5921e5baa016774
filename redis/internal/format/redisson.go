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

// Channels are those on which a node says that a lock of Redisson is free, as far
// as this client waits for such locks. Each is subscribed to when the node has denied the
// lock, and left some time after the last caller. Of another format there are none.
type Channels struct {
	mu    sync.Mutex          // guards what follows; no request is sent under it, but handed to the goroutine that writes
	named map[string]*channel // by what Redisson calls them
}

// Channels are those of a client's locks.
func (f *Format) Channels() *Channels {
	if !f.java {
		return nil
	}
	return &Channels{named: make(map[string]*channel)}
}

// Ears are how a node hears of what is subscribed to.
type Ears struct {
	Link    *link.Link
	Refused func(error)        // the right to subscribe is missing
	Wake    func(owner string) // who asks again
}

type channel struct {
	callers int             // that wait for the lock
	owners  map[string]bool // their ids that were denied since the last message
	link    *link.Link      // over which it was subscribed to; nil: not yet
	fair    bool            // also to the channels of those who wait by RFairLock
}

// Await keeps the channel of the lock on key for a caller that waits, until done is called.
func (s *Channels) Await(key string) (done func()) {
	if s == nil {
		return func() {}
	}
	name := wire.RedissonChannel(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.named[name]
	if c == nil {
		c = &channel{owners: make(map[string]bool)}
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

// take returns the ids that wait for a message on channel, and forgets them: who is denied
// again comes again.
func (s *Channels) take(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for end := len(name); end >= 0; end = strings.LastIndexByte(name[:end], ':') { // RFairLock: a colon and a thread follow
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

// Denied sees to it that r hears when a thread in Java frees the lock that v denies it. What clients of this
// format free, and do not hand over, is for Java: they ask later.
func (s *Channels) Denied(r *engine.Request, v resp.Value, ears Ears) {
	if s == nil || r.Kind != quorum.AskAcquire || r.Stamp == 0 || len(v.Elems) != 4 {
		return
	}
	fair, _ := v.Elems[3].Int()
	name := wire.RedissonChannel(r.Lock.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.named[name]
	if c == nil || c.callers == 0 {
		return // its caller has gone
	}
	if quorum.ClientOf(string(v.Elems[1].Text)) == "" {
		c.owners[r.Owner] = true
	} else {
		delete(c.owners, r.Owner)
	}
	if c.link != ears.Link {
		c.link, c.fair = ears.Link, false
		s.listen("SUBSCRIBE", name, name, ears)
	}
	if fair == 1 && !c.fair {
		c.fair = true
		s.listen("PSUBSCRIBE", Glob(name)+":*", name, ears) // refused to users who may not listen to all channels: they poll
	}
}

// listen subscribes to a channel of name. Once that is so, it asks again for the locks: they
// may have become free before.
func (s *Channels) listen(cmd, channel, name string, ears Ears) {
	ears.Link.Call(link.NewCall([][]string{{cmd, channel}}, func(c *link.Call) {
		if c.Err != nil {
			return // the connection broke, and Denied may be calling
		}
		if err, refused := c.Replies[0].(error); refused && cmd == "SUBSCRIBE" {
			ears.Refused(err)
		}
		s.wake(name, ears.Wake)
	}))
}

// Freed has those ask who wait for a message on the channel of push, and says whether it is such a message.
func (s *Channels) Freed(push resp.Value, wake func(owner string)) bool {
	if s == nil || len(push.Elems) == 0 {
		return false
	}
	switch kind := string(push.Elems[0].Text); {
	case kind == "pmessage" && len(push.Elems) == 4:
		s.wake(string(push.Elems[2].Text), wake)
	case kind == "message" && len(push.Elems) == 3 && strings.HasPrefix(string(push.Elems[1].Text), wire.RedissonChannels):
		s.wake(string(push.Elems[1].Text), wake)
	default:
		return false
	}
	return true
}

func (s *Channels) wake(channel string, wake func(owner string)) {
	for _, owner := range s.take(channel) {
		wake(owner)
	}
}

// Leave ends the subscriptions over l for which no caller waits.
func (s *Channels) Leave(l *link.Link) {
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
			continue // that of a connection that is gone
		}
		l.Tell("UNSUBSCRIBE", name)
		if c.fair {
			l.Tell("PUNSUBSCRIBE", Glob(name)+":*")
		}
	}
}

// Glob quotes the characters that Redis would take for a pattern.
func Glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
