package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/engine"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
)

const (
	greetEvery = 2 * time.Minute
	greetKeep  = 5 * time.Minute // how long nodes remember who a client is
	askTime    = time.Second     // for one request that people wait for
	holderTime = 200 * time.Millisecond
	holderMost = 1024
	holderKeep = 30 * time.Second
	scanCount  = 1000
)

// holderCache knows who the clients are, so that a try on a held lock costs no
// second request.
type holderCache struct {
	mu    sync.Mutex // guards what follows
	mine  driver.Holder
	known map[string]knownHolder
}

type knownHolder struct {
	holder driver.Holder
	until  time.Time
}

// introduce tells the nodes, once, who this client is.
func (h *holderCache) introduce(d *Driver, me driver.Holder) {
	h.mu.Lock()
	changed := h.mine != me
	h.mine = me
	h.mu.Unlock()
	if !changed {
		return
	}
	for _, n := range d.nodes {
		if n.usable.Load() {
			d.work.Go(func() { n.greet(d.ctx) })
		}
	}
}

// greet tells the node who this client is.
func (n *node) greet(ctx context.Context) {
	h := &n.d.holder
	h.mu.Lock()
	me := h.mine
	h.mu.Unlock()
	if me == (driver.Holder{}) {
		return
	}
	text, err := json.Marshal(me)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	n.client.Do(ctx, n.client.B().Set().Key(wire.Client+n.engine.Client()).Value(string(text)).Px(greetKeep).Build())
}

// describe is who an owner is, as far as the nodes know.
func (d *Driver) describe(ctx context.Context, owner string) driver.Holder {
	client := engine.ClientOf(owner)
	h := &d.holder
	h.mu.Lock()
	known, ok := h.known[client]
	mine := h.mine
	h.mu.Unlock()
	switch {
	case client == "":
		return driver.Holder{}
	case client == d.engine.Client():
		return mine
	case ok && time.Now().Before(known.until):
		return known.holder
	}
	ctx, cancel := context.WithTimeout(ctx, holderTime)
	defer cancel()
	found := d.lookUp(ctx, client)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || len(h.known) >= holderMost {
		h.known = make(map[string]knownHolder)
	}
	h.known[client] = knownHolder{holder: found, until: time.Now().Add(holderKeep)}
	return found
}

// lookUp asks all nodes who a client is and takes the first that knows.
func (d *Driver) lookUp(ctx context.Context, client string) driver.Holder {
	answers := make(chan string, len(d.nodes))
	for _, n := range d.nodes {
		d.work.Go(func() {
			text := ""
			if n.usable.Load() {
				text, _ = n.client.Do(ctx, n.client.B().Get().Key(wire.Client+client).Build()).ToString()
			}
			answers <- text
		})
	}
	for range d.nodes {
		var found driver.Holder
		if json.Unmarshal([]byte(<-answers), &found) == nil {
			return found
		}
	}
	return driver.Holder{}
}

// eval runs a script on one node, for people: outside the senders.
func (n *node) eval(ctx context.Context, s *wire.Script, lock engine.Lock, args ...string) (rueidis.RedisMessage, error) {
	if !n.usable.Load() {
		return rueidis.RedisMessage{}, n.event().Err
	}
	res := n.client.Do(ctx, n.call(s, lock, args...))
	if noScript(res) {
		all := n.client.DoMulti(ctx, append(n.loads(nil), n.call(s, lock, args...))...)
		res = all[len(all)-1]
	}
	return res.ToMessage()
}

// each calls fn for all nodes at once and waits.
func (d *Driver) each(ctx context.Context, fn func(ctx context.Context, n *node)) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var all sync.WaitGroup
	for _, n := range d.nodes {
		all.Go(func() { fn(ctx, n) })
	}
	all.Wait()
}

// views asks every node what it knows of a lock.
func (d *Driver) views(ctx context.Context, lock engine.Lock) []engine.View {
	views := make([]engine.View, len(d.nodes))
	d.each(ctx, func(ctx context.Context, n *node) { views[n.index] = n.view(ctx, lock) })
	return views
}

func (n *node) view(ctx context.Context, lock engine.Lock) engine.View {
	msg, err := n.eval(ctx, wire.Inspect, lock)
	if err != nil {
		return engine.View{Err: err}
	}
	list, err := msg.ToArray()
	if err != nil || len(list) != 4 {
		return engine.View{Err: fmt.Errorf("unexpected reply: %w", errors.Join(err, errShape))}
	}
	owner, err1 := list[0].ToString()
	left, err2 := list[1].AsInt64()
	fence, err3 := list[2].AsInt64()
	waiters, err4 := list[3].AsInt64()
	return engine.View{
		Owner: owner, Left: time.Duration(left) * time.Millisecond, Fence: fence, Waiters: int(waiters),
		Err: errors.Join(err1, err2, err3, err4),
	}
}

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Status, error) {
	st, err := d.engine.Status(key, d.views(ctx, d.opts.keys(key)))
	if err == nil && st.Owner != "" {
		st.Holder = d.describe(ctx, st.Owner)
	}
	return st, err
}

// List implements driver.Lister. It reads the key space of every node step by
// step (SCAN), which takes long on a server that is full of other data.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	seen := make(map[string]bool)
	reached := 0
	u := &driver.UnavailableError{Need: quorum.Majority(len(d.nodes))}
	for _, n := range d.nodes {
		names, err := n.names(ctx, prefix)
		if err != nil {
			u.Nodes = append(u.Nodes, driver.NodeError{Node: n.addr, Err: err})
			continue
		}
		reached++
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			st, err := d.Inspect(ctx, name)
			if err != nil {
				return err
			}
			if (st.Held || st.Waiters > 0) && !yield(st) {
				return nil
			}
		}
	}
	if reached < u.Need {
		return u
	}
	return nil
}

// names are the locks that a node may know about. Bare keys cannot be told from
// other data, but their counters can.
func (n *node) names(ctx context.Context, prefix string) ([]string, error) {
	if !n.usable.Load() {
		return nil, n.event().Err
	}
	o := &n.d.opts
	pattern := glob(o.Prefix+prefix) + "*"
	if o.BareKeys {
		pattern = wire.Fence + "*"
	}
	var names []string
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		page, err := n.client.Do(ctx, n.client.B().Scan().Cursor(cursor).Match(pattern).Count(scanCount).Build()).AsScanEntry()
		if err != nil {
			return nil, err
		}
		cursor = page.Cursor
		for _, key := range page.Elements {
			if o.BareKeys {
				key = wire.LockOf(key)
			}
			if name, ok := o.name(key); ok && strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// glob quotes what Redis would take for a pattern.
func glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// Force implements driver.Forcer.
func (d *Driver) Force(ctx context.Context, key string, token int64) (bool, error) {
	lock := d.opts.keys(key)
	views := d.views(ctx, lock)
	st, err := d.engine.Status(key, views)
	if err != nil {
		return false, err
	}
	var mu sync.Mutex // guards done
	var done quorum.Set
	errs := make([]error, len(d.nodes))
	d.each(ctx, func(ctx context.Context, n *node) {
		var msg rueidis.RedisMessage
		owner := views[n.index].Owner
		foreign := owner != "" && engine.ClientOf(owner) == ""
		switch {
		case token != 0 && !foreign: // the counter under a foreign lock is that of an older grant
			msg, errs[n.index] = n.eval(ctx, wire.Force, lock,
				fmt.Sprint(token), millis(quorum.HandOver(int64(d.opts.MaxTTL))), keep(int64(d.opts.MaxTTL)))
		case token == 0 && foreign && st.Held && owner == st.Owner:
			msg, errs[n.index] = n.eval(ctx, wire.Drop, lock, st.Owner)
		default:
			return
		}
		if errs[n.index] == nil {
			var number int64
			number, errs[n.index] = msg.AsInt64()
			if number == 1 {
				mu.Lock()
				defer mu.Unlock()
				done |= quorum.Only(n.index)
			}
		}
	})
	return d.engine.Forced(done, errs)
}
