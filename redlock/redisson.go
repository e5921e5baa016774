package redlock

import (
	"fmt"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Format is how locks are kept on a node.
type Format string

const (
	// FormatPlain is Holdfast's own, and with BareKeys that of many other libraries.
	FormatPlain Format = ""
	// FormatRedisson is that of Redisson's RLock, RFencedLock and RFairLock: threads in
	// Java and clients in this format exclude, wake and see one another, and their tokens
	// are in one order. It is for one server. Prefix is then what Redisson's NameMapper
	// puts before the names, by default nothing. A holder in Java may have the lock
	// several times, and has it until it has freed it as often.
	//
	// A lock that was freed by RLock.forceUnlock, or that the server has forgotten, is
	// lost, as a thread without a token may have had it since. Waiters are in order
	// among clients of this format; between them and Java chance decides, and
	// RFairLock's order is kept among its own threads. RReadWriteLock must not have the
	// same names: it gets in beside any other lock of Redisson. Counters of tokens never
	// expire: Redisson's begin at 1 again where they are missing.
	FormatRedisson Format = "redisson"
)

// format is what the scripts of a Format need.
type format struct {
	*wire.Format
	scripts []*wire.Script
	heads   *heads
}

func formatOf(f *wire.Format) *format {
	return &format{Format: f, scripts: f.Scripts(), heads: headsOf(f)}
}

var formats = map[Format]*format{FormatPlain: formatOf(wire.Plain), FormatRedisson: formatOf(wire.Redisson)}

func (o *Options) format() *format { return formats[o.Format] }

// formatFits refuses what a format is not for.
func (o *Options) formatFits(nodes []Node) error {
	switch {
	case formats[o.Format] == nil:
		return fmt.Errorf("%w: Format %q is not known; give redisson, or none for Holdfast's own", driver.ErrInvalid, o.Format)
	case o.Format == FormatPlain:
		return nil
	case len(nodes) > 1:
		return fmt.Errorf("%w: format redisson is for one server, and these are %d, of which Redisson would lock on one alone; "+
			"give the server that the programs in Java use", driver.ErrInvalid, len(nodes))
	case o.Cluster:
		return fmt.Errorf("%w: format redisson is for one server, not for a Redis Cluster, where a replica takes over and a thread in Java "+
			"takes a lock at once that it forgot; give the address of one server", driver.ErrInvalid)
	case !alone(nodes):
		return fmt.Errorf("%w: format redisson is for one server that no other replaces: a thread in Java takes a lock at once that the new server forgot; "+
			"give the address of the server", driver.ErrInvalid)
	case o.CounterLife != 0:
		return fmt.Errorf("%w: CounterLife %v: counters of tokens never expire in the format of Redisson; leave it out", driver.ErrInvalid, o.CounterLife)
	}
	o.BareKeys = o.BareKeys && o.Prefix != "" // the one says what the lack of the other says; both are refused
	return nil
}

// channels are those on which a node of format redisson says that a lock is free, as far
// as this client waits for such locks. Each is subscribed to when the node has denied the
// lock, and left some time after the last caller.
type channels struct {
	mu    sync.Mutex          // guards what follows; no request is sent under it, but handed to the goroutine that writes
	named map[string]*channel // by what Redisson calls them
}

type channel struct {
	callers int             // that wait for the lock
	owners  map[string]bool // their ids that were denied since the last message
	link    *link           // over which it was subscribed to; nil: not yet
	fair    bool            // also to the channels of those who wait by RFairLock
}

// await keeps the channel of a lock for a caller that waits, until done is called.
func (s *channels) await(name string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.named == nil {
		s.named = make(map[string]*channel)
	}
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
func (s *channels) take(name string) []string {
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

// follow sees to it that r hears when a thread in Java frees the lock that v denies it. What clients of this
// format free, and do not hand over, is for Java: they ask later.
func (l *link) follow(r *engine.Request, v resp.Value) {
	n := l.n
	if n.d.opts.Format != FormatRedisson || r.Kind != quorum.AskAcquire || r.Stamp == 0 || len(v.Elems) != 4 {
		return
	}
	n.mu.Lock()
	mute := n.mute
	n.mu.Unlock()
	if mute != nil {
		return // it polls
	}
	fair, _ := v.Elems[3].Int()
	name := wire.RedissonChannel(r.Lock.Key)
	s := &n.d.channels
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
	if c.link != l {
		c.link, c.fair = l, false
		l.listen("SUBSCRIBE", name, name)
	}
	if fair == 1 && !c.fair {
		c.fair = true
		l.listen("PSUBSCRIBE", glob(name)+":*", name) // refused to users who may not listen to all channels: they poll
	}
}

// listen subscribes to a channel of name. Once that is so, it asks again for the locks: they
// may have become free before.
func (l *link) listen(cmd, channel, name string) {
	c := newCall([][]string{{cmd, channel}})
	c.then = func() {
		if c.err != nil {
			return // the connection broke, and follow may be calling
		}
		if err, refused := c.replies[0].(error); refused && cmd == "SUBSCRIBE" {
			l.n.mu.Lock()
			l.n.deaf = err
			l.n.mu.Unlock()
		}
		l.n.freed(name)
	}
	l.send(entry{call: c, at: l.n.engine.Now()})
}

// freed has those ask who wait for a message on channel.
func (n *node) freed(channel string) {
	for _, owner := range n.d.channels.take(channel) {
		n.engine.Wake(n.index, quorum.Wake{Owner: owner}, 0)
	}
}

// leave ends the subscriptions for which no caller waits.
func (l *link) leave() {
	s := &l.n.d.channels
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
		l.tell("UNSUBSCRIBE", name)
		if c.fair {
			l.tell("PUNSUBSCRIBE", glob(name)+":*")
		}
	}
}
