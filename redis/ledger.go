package redis

import (
	"context"
	"slices"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/session"
	"github.com/holdfast-go/holdfast/redis/internal/format"
)

// debtBatch bounds the releases in one request.
const debtBatch = 256

// debt is a release that a node may not have executed.
type debt = session.Debt[engine.Lock]

// oweRelease keeps a release for the next connection.
func (n *node) oweRelease(r *engine.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ledger.Owe(*r.Lock, &r.Ask, n.engine.Now())
}

// expireDebts drops the releases of locks that have expired.
func (n *node) expireDebts() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ledger.Expire(n.engine.Now())
}

// takeDebts removes and returns the releases that the node has not executed.
func (n *node) takeDebts() []debt {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ledger.Take(n.engine.Now())
}

// returnDebts puts back releases that were sent and not answered.
func (n *node) returnDebts(debts []debt) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range debts {
		n.ledger.Return(d)
	}
}

// sendDebts sends the owed releases over l, and keeps those without an answer. Their owner ids are never used
// again, so a release may be repeated.
func (n *node) sendDebts(l *connection) {
	due := n.takeDebts()
	ctx, cancel := context.WithTimeout(n.d.ctx, pace.AskTime())
	defer cancel()
	f := n.d.opts.format()
	var left []debt
	for len(due) > 0 {
		chunk := due[:min(len(due), debtBatch)]
		cmds := slices.Clone(f.LoadCommands())
		for _, d := range chunk {
			ask := d.Ask
			l.gateFor(nil).Prepare(&ask) // releases are always sent
			cmds = append(cmds, l.proof.Call(f.Release, d.Lock, format.ReleaseArgs(&ask)...))
		}
		replies, err := l.Do(ctx, cmds...)
		if err != nil {
			break
		}
		for i, d := range chunk {
			if !isExecuted(replies[len(f.LoadCommands())+i]) {
				left = append(left, d)
			}
		}
		due = due[len(chunk):]
	}
	n.d.set.takeOverDebts(n, append(left, due...))
}

// isExecuted reports whether a server with this reply has executed a release. A server has not if it lacks the
// scripts or the marker, or if another shard has the key.
func isExecuted(reply any) bool {
	err, failed := reply.(resp.Error)
	return !failed || !resp.IsErrorCode(reply, "NOSCRIPT") && !resp.IsErrorCode(reply, "UNADMITTED") && !isRedirection(err)
}
