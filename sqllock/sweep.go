package sqllock

import (
	"context"
	"database/sql"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// sweepTickets deletes tickets that have expired. On a server a suspended transaction may have locked a ticket.
// There the sweep runs in the background, now and then and row by row, so that it holds no row lock while it
// waits for another.
func (d *Driver) sweepTickets(ctx context.Context) error {
	if d.dialect == SQLite {
		_, err := d.execRepeated(ctx, d.sweep)
		return err
	}
	d.mu.Lock()
	due := time.Since(d.swept) >= place
	if due {
		d.swept = time.Now()
	}
	d.mu.Unlock()
	if due {
		d.calls.Go(d.sweepRows)
	}
	return nil
}

// sweepRows deletes expired tickets until it finds a locked one.
func (d *Driver) sweepRows() {
	type ticketKey struct{ name, owner string }
	var lapsed []ticketKey
	quickly := func(fn func(context.Context) error) error {
		ctx, cancel := context.WithCancel(d.calls.Alive) // no deadline: a time-out here would tell nothing about the database
		defer cancel()
		defer time.AfterFunc(pace.FinishTime(), cancel).Stop()
		return fn(ctx)
	}
	err := quickly(func(ctx context.Context) error {
		return d.run(ctx, func(q querier) error {
			lapsed = nil
			return queryRows(ctx, q, d.lapsed, nil, func(rows *sql.Rows) error {
				var t ticketKey
				err := rows.Scan(&t.name, &t.owner)
				lapsed = append(lapsed, t)
				return err
			})
		})
	})
	for _, t := range lapsed {
		if err != nil {
			return
		}
		err = quickly(func(ctx context.Context) error {
			_, err := d.execRepeated(ctx, d.drop, t.name, t.owner)
			return err
		})
	}
}
