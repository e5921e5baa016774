package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq"

	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/postgres"
)

var postgresLibraries = []library{
	{name: holdfastName, open: func(ctx context.Context, addrs []string, _ int) (client, error) {
		return newHoldfastClient(postgres.Open(ctx, addrs[0], nil))
	}},
	// As in its README: a waiter tries again when a lease of 20 s may have ended.
	{name: "pglock", open: func(_ context.Context, addrs []string, _ int) (client, error) { return openPglock(addrs[0]) }},
	// Tuned for short waits, with a heartbeat every half second.
	{name: "pglock-1s", open: func(_ context.Context, addrs []string, _ int) (client, error) {
		return openPglock(addrs[0], pglock.WithLeaseDuration(time.Second), pglock.WithHeartbeatFrequency(500*time.Millisecond))
	}},
	// No lock service: SELECT … FOR UPDATE in a transaction, which waits for the row.
	{name: "row lock", open: func(ctx context.Context, addrs []string, _ int) (client, error) {
		pool, err := pgxpool.New(ctx, addrs[0])
		return rowClient{pool}, err
	}},
}

// startPostgres starts a server that does not sync to disk unless settings turn that on.
func startPostgres(ctx context.Context, settings ...string) (*service, error) {
	server, err := pgproc.Start(ctx, append([]string{"max_connections=1000"}, settings...)...)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, server.DSN())
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	sv := &service{nodes: 1, addrs: []string{server.DSN()}, libraries: postgresLibraries, idle: 1}
	sv.stop = func() error { pool.Close(); return server.Stop() }
	sv.spent = func(ctx context.Context) (transactions int64, cpu time.Duration, err error) {
		err = pool.QueryRow(ctx, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()").Scan(&transactions)
		return transactions, processorTime(server.Pid()), err
	}
	sv.written = func(ctx context.Context) (n int64, err error) {
		err = pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").Scan(&n)
		return n, err
	}
	if err := createTables(ctx, pool, server.DSN()); err != nil {
		return nil, errors.Join(err, sv.stop())
	}
	return sv, nil
}

// idleListeners is the number of listening sessions of other programs in postgres-listeners.
const idleListeners = 1000

// startPostgresBeside starts a server with idle sessions of other programs, each of which has run a statement.
func startPostgresBeside(ctx context.Context, sessions int, statement string) (*service, error) {
	sv, err := startPostgres(ctx, "max_connections=2500")
	if err != nil {
		return nil, err
	}
	var others []*pgx.Conn
	stop := sv.stop
	sv.stop = func() error {
		for _, c := range others {
			c.Close(context.Background())
		}
		return stop()
	}
	for range sessions {
		c, err := pgx.Connect(ctx, sv.addrs[0])
		if err != nil {
			return nil, errors.Join(err, sv.stop())
		}
		others = append(others, c)
		if _, err := c.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			return nil, errors.Join(err, sv.stop())
		}
	}
	return sv, nil
}

func createTables(ctx context.Context, pool *pgxpool.Pool, dsn string) error {
	d, err := postgres.New(ctx, pool, &postgres.Options{NoCheck: true})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Migrate(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE account AS SELECT generate_series(0, 9999) AS id, 0 AS balance; CREATE INDEX ON account (id)"); err != nil {
		return err
	}
	p, err := openPglock(dsn)
	if err != nil {
		return err
	}
	defer p.close()
	return p.locks.TryCreateTable()
}

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
