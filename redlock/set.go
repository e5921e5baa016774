package redlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redlock/internal/link"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// set is what the nodes are together: independent ones, each with a vote on every lock, or a Redis Cluster, of which
// one shard has each name.
type set interface {
	// connect makes the first connections, and returns once it is known how many nodes vote.
	connect(ctx context.Context) error
	// members are the servers that the driver is connected to, and need is how many of them have to answer a listing.
	members() []*node
	need(members int) int
	// voters are the nodes that have a vote on a lock, each at its index.
	voters(lock engine.Lock) []*node
	// examined are the nodes for a doctor, and what is wrong with the set as a whole.
	examined(ctx context.Context) ([]*node, look)
	// views asks the voters of each lock what they know of it.
	views(ctx context.Context, locks []engine.Lock) [][]engine.View
	// least is the first token that a grant over s may have.
	least(s *session) (int64, error)
	// spare says whether the others are a quorum without n.
	spare(n *node) bool
	// beside says whether the key of another name may be asked for on the same node.
	beside() bool

	// Of a connection: greeted is told before it carries requests, heard when it is known whether it has the
	// wake-ups, and lost when it has ended or could not be made.
	greeted(s *session)
	heard(s *session, refused error)
	lost(n *node)
	// wakes says whether a wake-up of owner that has come from n counts.
	wakes(n *node, owner string) bool

	// redirected says whether an answer is that n does not carry e out; e then goes where it belongs. over notes that e
	// has its answer otherwise, or never will; done is its request, if n has carried it out.
	redirected(n *node, e link.Entry, v resp.Value) bool
	over(e link.Entry, done *engine.Request)
	// blame adds to why n has failed what people need to know it by.
	blame(n *node, err error) error
	// keeper is the node that gets a release which n owes; inherit is told of those that n could not send.
	keeper(lock *engine.Lock, n *node) *node
	inherit(n *node, due map[string]owed)
}

// independent are nodes that know nothing of one another.
type independent struct{ d *Driver }

func (i *independent) connect(ctx context.Context) error {
	d := i.d
	errs := make([]error, len(d.nodes))
	var all sync.WaitGroup
	for i, n := range d.nodes {
		all.Go(func() { errs[i] = n.open(ctx) })
	}
	all.Wait()
	u := &driver.UnavailableError{Need: quorum.Majority(len(d.nodes))}
	var unfit unfitError
	_, waits := errors.AsType[*member.QuarantineError](errs[0])
	for i, err := range errs {
		if err == nil {
			continue
		}
		u.Nodes = append(u.Nodes, driver.NodeError{Node: d.nodes[i].addr, Err: err})
		if server.Lasting(err) || !d.opts.AllowDown && errors.Is(err, server.ErrReplica) {
			unfit = append(unfit, driver.NodeError{Node: d.nodes[i].addr, Err: err})
		}
	}
	switch {
	case len(d.nodes)-len(unfit) < u.Need:
		return unfit
	case d.opts.AllowDown, len(d.nodes)-len(u.Nodes) >= u.Need:
		switch {
		case len(u.Nodes) == 0:
		case len(d.nodes) == 1 && !waits:
			d.opts.Logger.Warn("the server is down", "cause", unfitError(u.Nodes))
		case len(u.Nodes) == 1:
			d.opts.Logger.Warn("a node does not vote", "cause", unfitError(u.Nodes))
		default:
			d.opts.Logger.Warn("some nodes do not vote", "cause", unfitError(u.Nodes))
		}
		return nil
	case d.opts.ReadOnly && (len(u.Nodes) < len(d.nodes) || slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, member.ErrNoVote) })):
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", err, u)
	}
	return u
}

// unfitError is why nodes do not vote. It does not match driver.ErrUnavailable, so that nobody
// waits for what no wait mends.
type unfitError []driver.NodeError

// Error names each node, and a cause that several have once.
func (e unfitError) Error() string { return (&driver.UnavailableError{Nodes: e}).Error() }

// Unwrap gives the causes.
func (e unfitError) Unwrap() []error { return (&driver.UnavailableError{Nodes: e}).Unwrap() }

func (i *independent) examined(context.Context) ([]*node, look) {
	var e look
	if n := len(i.d.nodes); n%2 == 0 {
		e.bad("nodes", driver.VerdictWarning, even(n))
	}
	return i.d.nodes, e
}

func (i *independent) members() []*node                 { return i.d.nodes }
func (i *independent) need(members int) int             { return quorum.Majority(members) }
func (i *independent) voters(engine.Lock) []*node       { return i.d.nodes }
func (i *independent) least(s *session) (int64, error)  { return s.floor, nil }
func (i *independent) beside() bool                     { return true }
func (i *independent) greeted(*session)                 {}
func (i *independent) wakes(*node, string) bool         { return true }
func (i *independent) over(link.Entry, *engine.Request) {}
func (i *independent) blame(_ *node, err error) error   { return err }

func (i *independent) redirected(*node, link.Entry, resp.Value) bool { return false }
func (i *independent) keeper(_ *engine.Lock, n *node) *node          { return n }

func (i *independent) views(ctx context.Context, locks []engine.Lock) [][]engine.View {
	views := make([][]engine.View, len(locks))
	for l := range views {
		views[l] = make([]engine.View, len(i.d.nodes))
	}
	each(ctx, i.d.nodes, func(ctx context.Context, n *node) {
		for l, v := range n.views(ctx, locks) {
			views[l][n.index] = v
		}
	})
	return views
}

func (i *independent) spare(n *node) bool {
	well := 0
	for _, other := range i.d.nodes {
		if other != n && other.link.Load() != nil && !other.stalled.Load() {
			well++
		}
	}
	return well >= quorum.Majority(len(i.d.nodes))
}

func (i *independent) heard(s *session, refused error) { s.n.engine.Hears(s.n.index, refused == nil) }
func (i *independent) lost(n *node)                    { n.engine.Hears(n.index, false) }
func (i *independent) inherit(n *node, due map[string]owed) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.Copy(n.owed, due)
}
