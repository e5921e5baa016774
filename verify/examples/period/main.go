// Period writes a report once a day. It runs on several machines: one of them writes the report, and another
// takes over if that one fails. A machine that starts writes the report of the day before if it is missing.
//
//	HOLDFAST_BACKEND=redis://localhost:6379 DATABASE_URL=postgres://localhost/shop go run .
package main

import (
	"context"
	"database/sql"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	_ "github.com/holdfast-go/holdfast/redis" // redis:// and related URLs
)

const day = 24 * time.Hour

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Getenv("HOLDFAST_BACKEND"), os.Getenv("DATABASE_URL"), day); err != nil {
		log.Fatal(err)
	}
}

// job writes the reports.
type job struct {
	locks  *holdfast.Client
	db     *sql.DB
	tokens *sqlfence.Fence // rejects a late holder
}

// run writes a report at the end of each period, until ctx ends.
func run(ctx context.Context, backend, database string, period time.Duration) error {
	db, err := sql.Open("pgx", database)
	if err != nil {
		return err
	}
	defer db.Close()
	locks, err := holdfast.Open(ctx, backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()
	tokens, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		return err
	}
	if err := tokens.Create(ctx, db); err != nil {
		return err
	}
	j := &job{locks, db, tokens}
	for ctx.Err() == nil {
		now := time.Now().UTC()
		start := now.Truncate(period) // start of the current period
		next := start.Add(period)
		if err := j.writeReport(ctx, start.Add(-period), start); err != nil && ctx.Err() == nil {
			log.Print(err)
			next = now.Add(min(period, time.Minute)) // retry
		}
		sleepUntil(ctx, next)
	}
	return nil
}

// writeReport writes the report of a period unless it exists. Every machine calls it: the database records
// what is done, so the lock need not outlast the work, and the clocks of the machines may differ.
func (j *job) writeReport(ctx context.Context, from, to time.Time) error {
	return j.locks.Do(ctx, "shop/report", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		// The claim comes before the read: from now on the database rejects earlier holders.
		if err := j.tokens.Claim(ctx, j.db, lease.Key(), lease.Token(), lease.Owner()); err != nil {
			return err
		}
		var done bool
		if err := j.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM report WHERE day = $1)`, from).Scan(&done); err != nil || done {
			return err
		}
		var sales, cents int64 // long work stops when ctx ends, because the lease is lost then
		err := j.db.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(cents), 0) FROM sale WHERE at >= $1 AND at < $2`, from, to).Scan(&sales, &cents)
		if err != nil {
			return err
		}
		return j.tokens.Do(ctx, j.db, lease.Key(), lease.Token(), lease.Owner(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO report (day, sales, cents) VALUES ($1, $2, $3)`, from, sales, cents)
			return err
		})
	})
}

// sleepUntil blocks until the machine's clock shows t, or ctx ends. It checks once a minute, because a timer
// stops while the machine sleeps.
func sleepUntil(ctx context.Context, t time.Time) {
	for ctx.Err() == nil && time.Now().Before(t) {
		select {
		case <-time.After(min(time.Until(t), time.Minute)):
		case <-ctx.Done():
		}
	}
}
