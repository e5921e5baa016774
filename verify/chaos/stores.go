//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/rueidisfence"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
)

// The storages that the locks guard, by what checks the fencing token.
const (
	byRedis    = "redisfence"
	bySQL      = "sqlfence"
	byNobody   = "unfenced" // the control
	everyThird = 3          // one key in so many is also kept in PostgreSQL, which is slow
)

// stores says where the storages are.
type stores struct {
	Redis string `json:"redis"` // address
	SQL   string `json:"sql"`   // of a PostgreSQL
}

// store is one storage of one value for each key.
type store struct {
	name string
	get  func(ctx context.Context, key string, token holdfast.Token, id string) (string, error)
	set  func(ctx context.Context, key string, token holdfast.Token, id, value string) error
}

type openStores struct {
	redis               rueidis.Client
	db                  *sql.DB
	fenced, sql, nobody *store
}

func (s stores) open(fenced bool) (*openStores, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Redis}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		return nil, err
	}
	out := &openStores{redis: client, nobody: unfenced(client), fenced: redisFenced(client)}
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
	return out, nil
}

func (s *openStores) close() {
	s.redis.Close()
	if s.db != nil {
		s.db.Close()
	}
}

// of is where the n-th key of a window is kept.
func (s *openStores) of(n int, fenced bool) []*store {
	switch {
	case !fenced:
		return []*store{s.nobody}
	case n%everyThird == 0:
		return []*store{s.nobody, s.fenced, s.sql}
	}
	return []*store{s.nobody, s.fenced}
}

func isStale(err error) bool { return errors.Is(err, fence.ErrStale) }

// valueKey is apart from the lock's key, and from that of the other storage.
func valueKey(name, key string) string { return name + ":" + key }

func unfenced(client rueidis.Client) *store {
	return &store{
		name: byNobody,
		get: func(ctx context.Context, key string, _ holdfast.Token, _ string) (string, error) {
			v, err := client.Do(ctx, client.B().Get().Key(valueKey(byNobody, key)).Build()).ToString()
			if rueidis.IsRedisNil(err) {
				return "", nil
			}
			return v, err
		},
		set: func(ctx context.Context, key string, _ holdfast.Token, _, value string) error {
			return client.Do(ctx, client.B().Set().Key(valueKey(byNobody, key)).Value(value).Build()).Error()
		},
	}
}

func redisFenced(client rueidis.Client) *store {
	s := rueidisfence.New(client)
	return &store{
		name: byRedis,
		get: func(ctx context.Context, key string, token holdfast.Token, id string) (string, error) {
			v, _, err := s.Get(ctx, valueKey(byRedis, key), token, id)
			return v, err
		},
		set: func(ctx context.Context, key string, token holdfast.Token, id, value string) error {
			return s.Set(ctx, valueKey(byRedis, key), token, id, value)
		},
	}
}

const createValues = `CREATE TABLE IF NOT EXISTS chaos (name text PRIMARY KEY, value text NOT NULL)`

// sqlFenced claims, reads and writes in three transactions, so that others come
// between them.
func sqlFenced(db *sql.DB) (*store, error) {
	f, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		return nil, err
	}
	return &store{
		name: bySQL,
		get: func(ctx context.Context, key string, token holdfast.Token, id string) (string, error) {
			if err := f.Claim(ctx, db, key, token, id); err != nil {
				return "", err
			}
			return selectValue(ctx, db, key)
		},
		set: func(ctx context.Context, key string, token holdfast.Token, id, value string) error {
			return f.Do(ctx, db, key, token, id, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO chaos (name, value) VALUES ($1, $2)
					ON CONFLICT (name) DO UPDATE SET value = excluded.value`, key, value)
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

// prepareSQL makes the tables.
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

// final is the last value of a key in a storage, read past its fence.
func (s *openStores) final(ctx context.Context, name, key string) (string, error) {
	if name == bySQL {
		return selectValue(ctx, s.db, key)
	}
	v, err := s.redis.Do(ctx, s.redis.B().Get().Key(valueKey(name, key)).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return v, err
}
