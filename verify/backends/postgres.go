package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/postgres"
)

func startPostgres(ctx context.Context, name string, settings ...string) (*service, error) {
	server, err := pgproc.Start(ctx, append([]string{"max_connections=200"}, settings...)...)
	if err != nil {
		return nil, err
	}
	s := &service{name: name, peers: []peer{
		{"holdfast", func(ctx context.Context) (client, error) { return overDriver(postgres.Open(ctx, server.DSN(), nil)) }},
		// As its README has it: a waiter looks again when a lease, of 20 s, could be over.
		{"pglock", func(context.Context) (client, error) { return openPglock(server.DSN()) }},
		// Tuned for short waits, with a heartbeat each half second.
		{"pglock-1s", func(context.Context) (client, error) {
			return openPglock(server.DSN(), pglock.WithLeaseDuration(time.Second), pglock.WithHeartbeatFrequency(500*time.Millisecond))
		}},
		// No lock service: SELECT … FOR UPDATE in a transaction, which here waits for the row.
		{"row lock", func(ctx context.Context) (client, error) {
			pool, err := pgxpool.New(ctx, server.DSN())
			return rowClient{pool}, err
		}},
	}}
	pool, err := pgxpool.New(ctx, server.DSN())
	if err != nil {
		return nil, err
	}
	s.stop = func() { pool.Close(); server.Stop() }
	s.written = func(ctx context.Context) (n int64, err error) {
		err = pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").Scan(&n)
		return n, err
	}
	d, err := postgres.New(ctx, pool, &postgres.Options{NoCheck: true})
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := d.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE account AS SELECT generate_series(0, 9999) AS id, 0 AS balance; CREATE INDEX ON account (id)"); err != nil {
		return nil, err
	}
	p, err := openPglock(server.DSN())
	if err != nil {
		return nil, err
	}
	defer p.close()
	return s, p.locks.TryCreateTable()
}

type holdfastClient struct{ *holdfast.Client }

func overDriver(d driver.Driver, err error) (client, error) {
	if err != nil {
		return nil, err
	}
	c, err := holdfast.New(d, nil)
	return holdfastClient{c}, err
}

func (c holdfastClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	l, err := c.Acquire(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func (c holdfastClient) close() { c.Close() }

type pglockClient struct {
	db    *sql.DB
	locks *pglock.Client
}

func openPglock(dsn string, opts ...pglock.ClientOption) (pglockClient, error) {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return pglockClient{}, err
	}
	c, err := pglock.New(db, opts...)
	return pglockClient{db, c}, err
}

func (c pglockClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	l, err := c.locks.AcquireContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return func(context.Context) error { return l.Close() }, nil
}

func (c pglockClient) close() { c.db.Close() }

type rowClient struct{ pool *pgxpool.Pool }

func (c rowClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	tx, err := c.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	var balance int
	if err := tx.QueryRow(ctx, "SELECT balance FROM account WHERE id = abs(hashtext($1)) % 10000 FOR UPDATE", name).Scan(&balance); err != nil {
		return nil, errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return tx.Commit, nil
}

func (c rowClient) close() { c.pool.Close() }
