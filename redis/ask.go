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

// introduceToAll sends the description of this client's process to all nodes.
func (d *core) introduceToAll() {
	for _, n := range d.set.members() {
		if l := n.link.Load(); l != nil {
			n.introduceClient(l)
		}
	}
}

// describeHolder returns the holder with the id owner, and its note.
func (d *core) describeHolder(ctx context.Context, owner string) driver.Holder {
	client := quorum.ClientOf(owner)
	if client == "" {
		return format.DescribeForeign(owner)
	}
	h := d.holderOf(ctx, client)
	h.Note = quorum.NoteOf(owner)
	return h
}

// holderOf returns the process of a client, if a node knows it.
func (d *core) holderOf(ctx context.Context, client string) driver.Holder {
	if client == d.engine.Client() {
		return d.holder.self()
	}
	if known, ok := d.holder.findClient(client); ok {
		return known
	}
	found, answered := d.lookUpClient(ctx, client)
	if answered {
		d.holder.keepClient(client, found)
	}
	return found
}

// lookUpClient asks all nodes for the process of a client, and takes the first answer that has it. It reports
// whether any node answered.
func (d *core) lookUpClient(ctx context.Context, client string) (found driver.Holder, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, pace.AskHolderTime())
	defer cancel()
	var mu sync.Mutex // guards the results
	eachNode(ctx, d.set.members(), func(ctx context.Context, n *node) {
		replies, err := n.runCommands(ctx, []string{"GET", wire.Client + client})
		if err != nil {
			return
		}
		if _, refused := replies[0].(error); refused { // in a cluster, another shard may know
			return
		}
		text, _ := replies[0].(string) // anything else comes from a node that does not know it
		var holder driver.Holder
		known := json.Unmarshal([]byte(text), &holder) == nil
		mu.Lock()
		defer mu.Unlock()
		answered = true
		if known {
			found = holder
			cancel() // the other answers are not needed
		}
	})
	return found, answered
}

// evalshaCall returns the command that runs a script on the keys of a lock.
func evalshaCall(s *wire.Script, lock engine.Lock, args ...string) []string {
	return append([]string{"EVALSHA", s.SHA, "3", lock.Key, lock.Fence, lock.Queue}, args...)
}

// evalScript runs a script on one node, for an inspection.
func (n *node) evalScript(ctx context.Context, cmd []string) (any, error) {
	replies, err := n.runCommands(ctx, cmd)
	if err == nil && resp.IsErrorCode(replies[0], "NOSCRIPT") {
		replies, err = n.runCommands(ctx, append(slices.Clone(n.d.opts.format().LoadCommands()), cmd)...)
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

// containPanic calls fn, which reads answers of n. A panic in fn ends the connection to n, but not the
// program.
func (n *node) containPanic(fn func()) {
	err := resp.CatchPanic(func() error {
		fn()
		return nil
	})
	if l := n.link.Load(); err != nil && l != nil {
		l.HangUp(err)
	}
}

// eachNode calls fn for some nodes concurrently and waits.
func eachNode(ctx context.Context, nodes []*node, fn func(ctx context.Context, n *node)) {
	ctx, cancel := context.WithTimeout(ctx, pace.AskTime())
	defer cancel()
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() { n.containPanic(func() { fn(ctx, n) }) })
	}
	all.Wait()
}

// fetchViews asks each node for the state of a lock.
func (d *core) fetchViews(ctx context.Context, lock engine.Lock) []engine.View {
	return d.set.fetchViews(ctx, []engine.Lock{lock})[0]
}

func (n *node) fetchViews(ctx context.Context, locks []engine.Lock) []engine.View {
	cmds := make([][]string, len(locks))
	for i, lock := range locks {
		cmds[i] = evalshaCall(n.d.opts.format().Inspect, lock)
	}
	replies, err := n.runCommands(ctx, cmds...)
	if err == nil && slices.ContainsFunc(replies, func(r any) bool { return resp.IsErrorCode(r, "NOSCRIPT") }) {
		if replies, err = n.runCommands(ctx, append(slices.Clone(n.d.opts.format().LoadCommands()), cmds...)...); err == nil {
			replies = replies[len(n.d.opts.format().LoadCommands()):]
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
