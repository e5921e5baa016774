//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	onrueidis "github.com/holdfast-go/holdfast/verify/examples/rueidis"
)

// The storages that the locks guard, named by what checks the token.
const (
	byRedis    = "redisfence"
	bySQL      = "sqlfence"
	byRow      = "postgres.FenceTx" // in the database of the locks
	byNobody   = "unfenced"         // the control
	everyThird = 3                  // only every third key is also kept in PostgreSQL, which is slow
)

// fencedStores are the storages that lose no update.
var fencedStores = []string{byRedis, bySQL, byRow}

// stores holds the addresses of the storages.
type stores struct {
	Redis string `json:"redis"` // address
	SQL   string `json:"sql"`   // DSN of a PostgreSQL
	Row   string `json:"row"`   // DSN of the PostgreSQL with the locks; empty: they are elsewhere
}

// storages are the servers whose data the locks guard.
type storages struct {
	redis *redisproc.Server
	sql   *pgproc.Server
}

// start starts both. Call stop even after an error.
func (s *storages) start(ctx context.Context) (err error) {
	if s.redis, err = redisproc.Start(ctx, nil); err != nil {
		return err
	}
	if s.sql, err = pgproc.Start(ctx, "max_connections=200"); err != nil {
		return err
	}
	return prepareSQL(ctx, s.sql.DSN())
}

func (s *storages) stop() (errs error) {
	if s.redis != nil {
		errs = s.redis.Stop()
	}
	if s.sql != nil {
		errs = errors.Join(errs, s.sql.Stop())
	}
	return errs
}

// store is one storage with one value per key.
type store struct {
	name string
	get  func(ctx context.Context, key string, h heldLock) (string, error)
	set  func(ctx context.Context, key string, h heldLock, value string) error
}

type openStores struct {
	redis               rueidis.Client
	db                  *sql.DB
	pool                *pgxpool.Pool // of the database with the locks; nil: elsewhere
	fenced, sql, nobody *store
	row                 *store
}

func (s stores) open(fenced bool) (*openStores, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Redis}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		return nil, err
	}
	out := &openStores{redis: client, nobody: newUnfenced(client), fenced: redisFenced(client)}
	if fenced {
		if out.db, err = sql.Open("pgx", s.SQL); err != nil {
			return nil, err
		}
		out.db.SetMaxOpenConns(4)
		out.db.SetMaxIdleConns(4)
		if out.sql, err = sqlFenced(out.db); err != nil {
			return nil, err
		}
	}
	if fenced && s.Row != "" {
		cfg, err := pgxpool.ParseConfig(s.Row)
		if err != nil {
			return nil, err
		}
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // works through a pooler
		if out.pool, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
			return nil, err
		}
		out.row = rowFenced(out.pool)
	}
	return out, nil
}

func (s *openStores) close() {
	s.redis.Close()
	if s.db != nil {
		s.db.Close()
	}
	if s.pool != nil {
		s.pool.Close()
	}
}

// storesOf returns the stores of the n-th key of a window.
func (s *openStores) storesOf(n int, fenced bool) []*store {
	if !fenced {
		return []*store{s.nobody}
	}
	out := []*store{s.nobody, s.fenced}
	if n%everyThird == 0 {
		out = append(out, s.sql)
	}
	if s.row != nil {
		out = append(out, s.row)
	}
	return out
}

func isStale(err error) bool {
	return errors.Is(err, fence.ErrStale) || errors.Is(err, holdfast.ErrLost)
}

// valueKey returns a key that differs from the lock's key and from other storages' keys.
func valueKey(name, key string) string { return name + ":" + key }

func newUnfenced(client rueidis.Client) *store {
	return &store{
		name: byNobody,
		get: func(ctx context.Context, key string, _ heldLock) (string, error) {
			v, err := client.Do(ctx, client.B().Get().Key(valueKey(byNobody, key)).Build()).ToString()
			if rueidis.IsRedisNil(err) {
				return "", nil
			}
			return v, err
		},
		set: func(ctx context.Context, key string, _ heldLock, value string) error {
			return client.Do(ctx, client.B().Set().Key(valueKey(byNobody, key)).Value(value).Build()).Error()
		},
	}
}

func redisFenced(client rueidis.Client) *store {
	s := onrueidis.Store(client)
	return &store{
		name: byRedis,
		get: func(ctx context.Context, key string, h heldLock) (string, error) {
			v, _, err := s.Get(ctx, valueKey(byRedis, key), h.token, h.id)
			return v, err
		},
		set: func(ctx context.Context, key string, h heldLock, value string) error {
			return s.Set(ctx, valueKey(byRedis, key), h.token, h.id, value)
		},
	}
}

const (
	createValues = `CREATE TABLE IF NOT EXISTS chaos (name text PRIMARY KEY, value text NOT NULL)`
	upsertValue  = `INSERT INTO chaos (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`
)

// sqlFenced claims, reads and writes in three transactions, so that other writers can come between them.
func sqlFenced(db *sql.DB) (*store, error) {
	f, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		return nil, err
	}
	return &store{
		name: bySQL,
		get: func(ctx context.Context, key string, h heldLock) (string, error) {
			if err := f.Claim(ctx, db, key, h.token, h.id); err != nil {
				return "", err
			}
			return selectValue(ctx, db, key)
		},
		set: func(ctx context.Context, key string, h heldLock, value string) error {
			return f.Do(ctx, db, key, h.token, h.id, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, upsertValue, key, value)
				return err
			})
		},
	}, nil
}

func selectValue(ctx context.Context, db *sql.DB, key string) (string, error) {
	var v string
	err := db.QueryRowContext(ctx, `SELECT value FROM chaos WHERE name = $1`, key).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return v, err
}

// prepareSQL creates the tables.
func prepareSQL(ctx context.Context, dsn string) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	f, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		return err
	}
	if err := f.Create(ctx, db); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, createValues)
	return err
}

// finalValue reads the last value of a key in a storage, without its fence.
func (s *openStores) finalValue(ctx context.Context, name, key string) (string, error) {
	switch name {
	case bySQL:
		return selectValue(ctx, s.db, key)
	case byRow:
		return selectRow(ctx, s.pool, key)
	}
	v, err := s.redis.Do(ctx, s.redis.B().Get().Key(valueKey(name, key)).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return v, err
}
