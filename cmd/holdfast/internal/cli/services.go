package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/etcd" // engines: each registers the schemes of its URLs
	"github.com/holdfast-go/holdfast/internal/driverkit"
	_ "github.com/holdfast-go/holdfast/postgres"
	_ "github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/sharding"
	_ "github.com/holdfast-go/holdfast/sqllock/mysql"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
	_ "github.com/holdfast-go/holdfast/zookeeper"
)

// notifiesForce reports whether the backend notifies the holder of key of a force-release at once. It sends no request.
func (a *app) notifiesForce(key string) bool {
	drv, err := a.offlineDriver()
	if err != nil {
		return true // the backend was opened before without an error
	}
	defer drv.Close()
	spread, ok := drv.(*sharding.Driver)
	if !ok {
		_, hears := drv.(driver.Alerter)
		return hears
	}
	all, _ := driverkit.ParseSets(a.backend) // parsed above without an error
	for _, s := range all {
		if s.Name == spread.Home(key) {
			return (&app{backend: s.URLs}).notifiesForce(key)
		}
	}
	return true
}

// singleSetURL returns the URL of a backend that is one set.
func (a *app) singleSetURL(command string) (string, error) {
	all, err := driverkit.ParseSets(a.backend)
	if err == nil && all[0].Name != "" {
		err = exitcode.Usagef("%s is for one set at a time; give the URL of each by --backend, without its name", command)
	}
	if err != nil {
		return "", err
	}
	return all[0].URLs, nil
}

// diagnoseBackend runs the doctor on a backend, even if it cannot be opened.
func diagnoseBackend(ctx context.Context, backend string, ttl time.Duration) ([]driver.Finding, error) {
	all, err := driverkit.ParseSets(backend)
	if err != nil {
		return nil, err
	}
	opts := &driver.OpenOptions{ClientName: "holdfast", ReadOnly: true, NoCheck: len(all) == 1} // several sets are asked about their shards
	drv, err := sharding.Open(ctx, backend, opts)
	if err != nil && !opts.NoCheck {
		opts.NoCheck = true
		drv, err = sharding.Open(ctx, backend, opts)
	}
	if err != nil {
		return nil, err
	}
	defer drv.Close()
	return drv.(driver.Doctor).Diagnose(ctx, ttl), nil
}

// migrator is a driver with tables.
type migrator interface {
	Migrate(ctx context.Context) error
}

func (a *app) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Make the tables for locks in a database",
		Long: `Migrate makes the schema, tables and functions that a postgres:// backend
needs, or the tables of a mysql:// or mariadb:// one, or brings them up to
date. If nothing is missing it changes nothing. The user of the backend needs
the permission to create a schema, or tables; later ones need USAGE on the
schema, and SELECT, INSERT, UPDATE and DELETE on the tables. A file of sqlite:
needs no preparation.
`,
		Example: `  holdfast migrate
  holdfast migrate -b "$HOLDFAST_BACKEND" -v`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error { return a.runMigrate() },
	}
}

func (a *app) runMigrate() error {
	if err := a.loadBackend(); err != nil {
		return err
	}
	url, err := a.singleSetURL("migrate")
	if err != nil {
		return err
	}
	ctx, stop := signalContext()
	defer stop()
	drv, err := driver.Open(ctx, url, &driver.OpenOptions{NoCheck: true})
	if err != nil {
		return a.nameSetting(err)
	}
	defer drv.Close()
	tables, ok := drv.(migrator)
	if _, file := drv.(*sqlite.Driver); !ok || file {
		return exitcode.Usagef("migrate is for a postgres://, mysql:// or mariadb:// backend; others need no preparation")
	}
	complete := hasTables(ctx, url)
	if err := tables.Migrate(ctx); err != nil {
		return signalOrError(ctx, err)
	}
	if complete {
		a.log.Info("the tables for locks were complete already; see holdfast doctor")
		return nil
	}
	a.log.Info("the tables for locks are made or brought up to date; see holdfast doctor")
	return nil
}

// hasTables reports whether the database has all tables for locks.
func hasTables(ctx context.Context, url string) bool {
	drv, err := driver.Open(ctx, url, &driver.OpenOptions{})
	if err == nil {
		drv.Close()
	}
	return err == nil
}
