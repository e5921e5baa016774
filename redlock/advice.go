package redlock

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// even is why a number of nodes costs more than it gives.
func even(n int) error {
	return server.Advise(fmt.Errorf("with %d nodes as with %d, locks survive the loss of %d", n, n-1, n-quorum.Majority(n)), "use an odd number")
}

func siblings(who string) string {
	return who + " use this server too: their locks and the locks of this client do not exclude one another"
}

// warnOfSet warns of a number of nodes that costs more than it gives, and of clients
// on the same server that use other keys for the same names.
func (d *Driver) warnOfSet(ctx context.Context) {
	if n := len(d.nodes); n%2 == 0 && n > 0 {
		d.opts.Logger.Warn(even(n).Error(), "nodes", n)
	}
	level := slog.LevelInfo // it may be meant so
	if d.opts.ReadOnly {
		level = slog.LevelWarn // the lock that is looked for may be one of the others
	}
	marker, who := d.opts.format().Sibling(d.opts.Prefix)
	for _, n := range d.nodes {
		if marker == "" {
			return
		}
		replies, err := n.do(ctx, []string{"GET", marker})
		if err != nil {
			continue
		}
		if text, _ := replies[0].(string); text != "" {
			d.opts.Logger.Log(ctx, level, siblings(who), "node", n.addr, "marker", marker)
		}
		return
	}
}
