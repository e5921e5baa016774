package redlock

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/redlock/internal/link"
)

// bareMost is of how many names the log has a warning.
const bareMost = 1000

// bareLooks finds programs that lock the same names by other keys: redsync and its kin take the bare name for their key, and do
// not exclude a client with a prefix. Both have the lock then, as in the middle of a change from one to the other. Once a second
// each node is asked at most whether the key of a name that was taken since is there.
type bareLooks struct {
	name atomic.Pointer[string] // the first that was asked for since the last look; nil: none

	mu   sync.Mutex // guards told
	told map[string]bool
}

// note keeps name for the next look.
func (b *bareLooks) note(name string) {
	if b.name.Load() == nil {
		taken := name // or each call would allocate
		b.name.Store(&taken)
	}
}

// first says whether the log has no warning of name yet.
func (b *bareLooks) first(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told[name] || len(b.told) == bareMost {
		return false
	}
	if b.told == nil {
		b.told = make(map[string]bool)
	}
	b.told[name] = true
	return true
}

// lookForBare looks for a key that is a bare name.
func (n *node) lookForBare(l *session) {
	d := n.d
	if !d.opts.format().BareBeside(d.opts.Prefix) || !d.set.beside() {
		return // the name is the key; or it may be in another shard
	}
	// A user of its own may not have the right, and each try would be in the server's log.
	if d.opts.Credentials != nil {
		return // it is asked at new connections alone
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
			return // nobody may be waiting for the Logger any more
		}
		if left, _ := c.Replies[0].(int64); left > 0 && d.bare.first(name) {
			d.logs.Go(func() { // a Logger may block
				d.opts.Logger.Warn(fmt.Sprintf("there is a key %q, which expires, beside %q: if another library locks that name by its bare key, "+
					"it and this client do not exclude one another; give both the same key (bare=true)", name, d.opts.keys(name).Key), "node", n.addr)
			})
		}
	}))
}
