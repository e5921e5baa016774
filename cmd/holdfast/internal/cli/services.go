package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/dsn"
	"github.com/holdfast-go/holdfast/postgres"
	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/sharding"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// opener opens one set. opts are for Redis; the others have NoCheck alone, and SQLite ReadOnly.
type opener func(ctx context.Context, urls string, opts *redlock.Options) (driver.Driver, error)

// services are those that are not Redis, by the scheme of their URLs.
var services = map[string]opener{
	"postgres": openPostgres, "postgresql": openPostgres, "etcd": openEtcd, "etcds": openEtcd, "zk": openZooKeeper, "zks": openZooKeeper,
	"mysql": openMySQL, "mariadb": openMySQL, "mysql+unix": openMySQL, "mariadb+unix": openMySQL, "sqlite": openSQLite,
}

func openPostgres(ctx context.Context, url string, opts *redlock.Options) (driver.Driver, error) {
	return postgres.Open(ctx, url, &postgres.Options{NoCheck: opts.NoCheck})
}

func openMySQL(ctx context.Context, url string, opts *redlock.Options) (driver.Driver, error) {
	return mysql.Open(ctx, url, &mysql.Options{NoCheck: opts.NoCheck})
}

func openSQLite(ctx context.Context, url string, opts *redlock.Options) (driver.Driver, error) {
	return sqlite.Open(ctx, url, &sqlite.Options{NoCheck: opts.NoCheck, ReadOnly: opts.ReadOnly})
}

func openEtcd(ctx context.Context, url string, opts *redlock.Options) (driver.Driver, error) {
	return etcd.Open(ctx, url, &etcd.Options{NoCheck: opts.NoCheck})
}

func openZooKeeper(ctx context.Context, url string, opts *redlock.Options) (driver.Driver, error) {
	return zookeeper.Open(ctx, url, &zookeeper.Options{NoCheck: opts.NoCheck})
}

func openRedis(ctx context.Context, urls string, opts *redlock.Options) (driver.Driver, error) {
	return redlock.Open(ctx, urls, opts)
}

// openNone refuses what no service is for.
func openNone(context.Context, string, *redlock.Options) (driver.Driver, error) {
	return nil, fmt.Errorf("%w: the URL does not begin with redis://, rediss://, unix://, redlock://, sqlite:, postgres://, mysql://, mariadb://, "+
		"etcd://, etcds://, zk:// or zks://; an example: redis://localhost:6379", driver.ErrInvalid)
}

// hears says whether the holder of key is told of a force-release at once. It asks no server.
func (a *app) hears(key string) bool {
	ctx, opts := context.Background(), &redlock.Options{NoCheck: true}
	drv, err := openBackend(ctx, a.backend, opts)
	if err != nil {
		return true // it has been opened already
	}
	defer drv.Close()
	spread, ok := drv.(*sharding.Driver)
	if !ok {
		_, hears := drv.(driver.Alerter)
		return hears
	}
	all, _ := dsn.Sets(a.backend) // read above without an error
	for _, s := range all {
		if s.Name == spread.Home(key) {
			return (&app{backend: s.URLs}).hears(key)
		}
	}
	return true
}

// openBackend opens one set, or several, over which package sharding spreads the names.
func openBackend(ctx context.Context, backend string, opts *redlock.Options) (driver.Driver, error) {
	all, err := dsn.Sets(backend)
	if err != nil {
		return nil, err
	}
	several := all[0].Name != ""
	own := *opts
	own.AllowDown = opts.AllowDown || several // a set that is down takes its names with it, and no others
	sets, errs := make([]sharding.Set, len(all)), make([]error, len(all))
	var opening sync.WaitGroup
	for i, s := range all {
		opening.Go(func() {
			scheme, _, _ := strings.Cut(s.URLs, ":")
			open := services[scheme]
			switch {
			case open != nil:
			case scheme == "unix", strings.HasPrefix(strings.ToLower(scheme), "red"), strings.HasPrefix(scheme, "valkey"):
				open = openRedis // which knows what is meant by one that is nearly right
			default:
				open = openNone
			}
			sets[i].Name = s.Name
			if sets[i].Driver, errs[i] = open(ctx, s.URLs, &own); errs[i] != nil && several {
				errs[i] = fmt.Errorf("set %s: %w", s.Name, errs[i])
			}
		})
	}
	opening.Wait()
	switch err := errors.Join(errs...); {
	case err == nil && several:
		return sharding.New(sets, nil)
	case err == nil:
		return sets[0].Driver, nil
	default:
		for i, s := range sets {
			if errs[i] == nil {
				s.Driver.Close()
			}
		}
		return nil, err
	}
}

// sole is the URL of a backend of one set.
func (a *app) sole(command string) (string, error) {
	all, err := dsn.Sets(a.backend)
	if err == nil && all[0].Name != "" {
		err = exitcode.Usagef("%s is for one set at a time; give the URL of each by --backend, without its name", command)
	}
	if err != nil {
		return "", err
	}
	return all[0].URLs, nil
}

// diagnoseBackend looks for what is wrong with a backend, also where it cannot be opened.
func diagnoseBackend(ctx context.Context, backend string, ttl time.Duration) ([]driver.Finding, error) {
	all, err := dsn.Sets(backend)
	if err != nil {
		return nil, err
	}
	opts := &redlock.Options{ClientName: "holdfast", ReadOnly: true, NoCheck: len(all) == 1} // several are asked where their locks are
	drv, err := openBackend(ctx, backend, opts)
	if err != nil && !opts.NoCheck {
		opts.NoCheck = true
		drv, err = openBackend(ctx, backend, opts)
	}
	if err != nil {
		return nil, err
	}
	defer drv.Close()
	return drv.(driver.Doctor).Diagnose(ctx, ttl), nil
}

// migrator is a driver over tables.
type migrator interface {
	Migrate(ctx context.Context) error
}

func (a *app) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Make the tables for locks in a database",
		Long: `Migrate makes the schema, tables and functions that a postgres:// backend
needs, or the tables of a mysql:// or mariadb:// one, or brings them up to
date. Where all is there it does nothing. The user of the backend needs the
right to create a schema, or tables; later ones need USAGE on the schema, and
SELECT, INSERT, UPDATE and DELETE on the tables. A file of sqlite: needs no
preparation.
`,
		Example: `  holdfast migrate
  holdfast migrate -b "$HOLDFAST_BACKEND" -v`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error { return a.migrate() },
	}
}

func (a *app) migrate() error {
	if err := a.loadBackend(); err != nil {
		return err
	}
	url, err := a.sole("migrate")
	if err != nil {
		return err
	}
	scheme, _, _ := strings.Cut(url, ":")
	if !slices.Contains([]string{"postgres", "postgresql", "mysql", "mariadb", "mysql+unix", "mariadb+unix"}, scheme) {
		return exitcode.Usagef("migrate is for a postgres://, mysql:// or mariadb:// backend; others need no preparation")
	}
	ctx, stop := interruptible()
	defer stop()
	drv, err := services[scheme](ctx, url, &redlock.Options{NoCheck: true})
	if err != nil {
		return err
	}
	defer drv.Close()
	return interruptedBy(ctx, drv.(migrator).Migrate(ctx))
}
