package redis

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
)

// greet tells the nodes which process this client is.
func (d *core) greet() {
	for _, n := range d.set.members() {
		if l := n.link.Load(); l != nil {
			n.greet(l)
		}
	}
}

// describe returns the holder that owner stands for, with its note.
func (d *core) describe(ctx context.Context, owner string) driver.Holder {
	client := quorum.ClientOf(owner)
	if client == "" {
		return format.Stranger(owner)
	}
	h := d.holderOf(ctx, client)
	h.Note = quorum.NoteOf(owner)
	return h
}

// holderOf returns the process of a client, as far as the nodes know it.
func (d *core) holderOf(ctx context.Context, client string) driver.Holder {
	if client == d.engine.Client() {
		return d.holder.me()
	}
	if known, ok := d.holder.find(client); ok {
		return known
	}
	found, answered := d.lookUp(ctx, client)
	if answered {
		d.holder.keep(client, found)
	}
	return found
}

// lookUp asks all nodes for the process of a client, and takes the first answer that has it. It reports whether any node
// answered.
func (d *core) lookUp(ctx context.Context, client string) (found driver.Holder, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, pace.AskHolderTime())
	defer cancel()
	var mu sync.Mutex // guards the results
	each(ctx, d.set.members(), func(ctx context.Context, n *node) {
		replies, err := n.do(ctx, []string{"GET", wire.Client + client})
		if err != nil {
			return
		}
		if _, refused := replies[0].(error); refused { // another shard of a cluster would know
			return
		}
		text, _ := replies[0].(string) // anything else is a node that does not know
		var holder driver.Holder
		known := json.Unmarshal([]byte(text), &holder) == nil
		mu.Lock()
		defer mu.Unlock()
		answered = true
		if known {
			found = holder
			cancel() // the others need not answer
		}
	})
	return found, answered
}

// evalsha returns the call of a script on the keys of a lock.
func evalsha(s *wire.Script, lock engine.Lock, args ...string) []string {
	return append([]string{"EVALSHA", s.SHA, "3", lock.Key, lock.Fence, lock.Queue}, args...)
}

// eval runs a script on one node, for people.
func (n *node) eval(ctx context.Context, cmd []string) (any, error) {
	replies, err := n.do(ctx, cmd)
	if err == nil && resp.Says(replies[0], "NOSCRIPT") {
		replies, err = n.do(ctx, append(slices.Clone(n.d.opts.format().Loads()), cmd)...)
	}
	if err != nil {
		return nil, err
	}
	last := replies[len(replies)-1]
	if err, ok := last.(error); ok {
		return nil, err
	}
	return last, nil
}

// contain calls fn, which reads answers of n. A panic in it ends the connection to n, and not the program.
func (n *node) contain(fn func()) {
	err := resp.Contain(func() error {
		fn()
		return nil
	})
	if l := n.link.Load(); err != nil && l != nil {
		l.HangUp(err)
	}
}

// each calls fn for some nodes at once and waits.
func each(ctx context.Context, nodes []*node, fn func(ctx context.Context, n *node)) {
	ctx, cancel := context.WithTimeout(ctx, pace.AskTime())
	defer cancel()
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() { n.contain(func() { fn(ctx, n) }) })
	}
	all.Wait()
}

// views asks every node for the state of a lock.
func (d *core) views(ctx context.Context, lock engine.Lock) []engine.View {
	return d.set.views(ctx, []engine.Lock{lock})[0]
}

func (n *node) views(ctx context.Context, locks []engine.Lock) []engine.View {
	cmds := make([][]string, len(locks))
	for i, lock := range locks {
		cmds[i] = evalsha(n.d.opts.format().Inspect, lock)
	}
	replies, err := n.do(ctx, cmds...)
	if err == nil && slices.ContainsFunc(replies, func(r any) bool { return resp.Says(r, "NOSCRIPT") }) {
		if replies, err = n.do(ctx, append(slices.Clone(n.d.opts.format().Loads()), cmds...)...); err == nil {
			replies = replies[len(n.d.opts.format().Loads()):]
		}
	}
	views := make([]engine.View, len(locks))
	for i := range views {
		if err != nil {
			views[i] = engine.View{Err: err}
		} else {
			views[i] = format.View(&locks[i], replies[i])
		}
	}
	return views
}
