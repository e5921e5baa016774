package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/link"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// independent is a set of nodes that do not communicate with each other.
type independent struct{ d *core }

func (i *independent) connect(ctx context.Context) error {
	d := i.d
	errs := make([]error, len(d.nodes))
	var all sync.WaitGroup
	for i, n := range d.nodes {
		all.Go(func() { errs[i] = n.connectFirst(ctx) })
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
		if server.IsPermanent(err) || !d.opts.AllowDown && errors.Is(err, server.ErrReplica) {
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

// unfitError holds the errors that keep nodes from voting. It does not match driver.ErrUnavailable, because
// waiting does not help.
type unfitError []driver.NodeError

// Error names each node, and prints a cause that several nodes share once.
func (e unfitError) Error() string { return (&driver.UnavailableError{Nodes: e}).Error() }

// Unwrap returns the causes.
func (e unfitError) Unwrap() []error { return (&driver.UnavailableError{Nodes: e}).Unwrap() }

func (i *independent) nodesToExamine(context.Context) ([]*node, nodeExam) {
	var e nodeExam
	if n := len(i.d.nodes); n%2 == 0 {
		e.addFault("nodes", driver.VerdictWarning, evenCountWarning(n))
	}
	return i.d.nodes, e
}

func (i *independent) members() []*node                         { return i.d.nodes }
func (i *independent) neededAnswers(members int) int            { return quorum.Majority(members) }
func (i *independent) votersOf(engine.Lock) []*node             { return i.d.nodes }
func (i *independent) leastToken(s *connection) (int64, error)  { return s.floor, nil }
func (i *independent) hasEveryName() bool                       { return true }
func (i *independent) prepareConnection(*connection)            {}
func (i *independent) acceptsWakeUp(*node, string) bool         { return true }
func (i *independent) noteAnswered(link.Entry, *engine.Request) {}
func (i *independent) blameNode(_ *node, err error) error       { return err }

func (i *independent) takeRedirection(*node, link.Entry, resp.Value) bool { return false }
func (i *independent) nodeForRelease(_ *engine.Lock, n *node) *node       { return n }

func (i *independent) fetchViews(ctx context.Context, locks []engine.Lock) [][]engine.View {
	views := make([][]engine.View, len(locks))
	for l := range views {
		views[l] = slices.Repeat([]engine.View{{Err: errUnreadableAnswer}}, len(i.d.nodes)) // until the node is read
	}
	eachNode(ctx, i.d.nodes, func(ctx context.Context, n *node) {
		for l, v := range n.fetchViews(ctx, locks) {
			views[l][n.index] = v
		}
	})
	return views
}

func (i *independent) canSpare(n *node) bool {
	well := 0
	for _, other := range i.d.nodes {
		if other != n && other.link.Load() != nil && !other.stalled.Load() {
			well++
		}
	}
	return well >= quorum.Majority(len(i.d.nodes))
}

func (i *independent) noteSubscription(s *connection, refused error) {
	s.n.engine.SetSubscribed(s.n.index, refused == nil)
}

func (i *independent) noteLoss(n *node)                    { n.engine.SetSubscribed(n.index, false) }
func (i *independent) takeOverDebts(n *node, debts []debt) { n.returnDebts(debts) }
