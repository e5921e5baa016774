package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/postgres"
	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// services open the backends that are not Redis, by the scheme of their URL.
var services = map[string]func(ctx context.Context, url string) (driver.Driver, error){
	"postgres":   openPostgres,
	"postgresql": openPostgres,
	"etcd":       openEtcd,
	"etcds":      openEtcd,
	"zk":         openZooKeeper,
	"zks":        openZooKeeper,
}

// openOne opens one set. opts are for Redis.
func openOne(ctx context.Context, url string, opts *redlock.Options) (driver.Driver, error) {
	scheme, _, _ := strings.Cut(url, "://")
	if open := services[scheme]; open != nil {
		if len(beginning().FindAllStringIndex(url, 2)) > 1 {
			return nil, exitcode.Usagef("%s:// is a whole set; give each of several sets a name, as in a=%s://… b=%s://…", scheme, scheme, scheme)
		}
		return open(ctx, url)
	}
	return redlock.OpenURL(ctx, url, opts)
}

// doctors diagnose them.
var doctors = map[string]func(ctx context.Context, url string, ttl time.Duration) ([]driver.Finding, error){
	"postgres":   diagnosePostgres,
	"postgresql": diagnosePostgres,
	"etcd":       diagnoseEtcd,
	"etcds":      diagnoseEtcd,
	"zk":         diagnoseZooKeeper,
	"zks":        diagnoseZooKeeper,
}

// diagnoseOne looks for what is wrong with one set, also where it cannot be opened.
func diagnoseOne(ctx context.Context, url string, ttl time.Duration) ([]driver.Finding, error) {
	scheme, _, _ := strings.Cut(url, "://")
	if diagnose := doctors[scheme]; diagnose != nil {
		return diagnose(ctx, url, ttl)
	}
	return redlock.DiagnoseURL(ctx, url, ttl, &redlock.Options{ClientName: "holdfast"})
}

func openPostgres(ctx context.Context, url string) (driver.Driver, error) {
	return postgres.Open(ctx, url, nil)
}

func openEtcd(ctx context.Context, url string) (driver.Driver, error) {
	return etcd.Open(ctx, url, nil)
}

func openZooKeeper(ctx context.Context, url string) (driver.Driver, error) {
	return zookeeper.Open(ctx, url, nil)
}

func diagnosePostgres(ctx context.Context, url string, ttl time.Duration) ([]driver.Finding, error) {
	return postgres.DiagnoseURL(ctx, url, ttl, nil)
}

func diagnoseEtcd(ctx context.Context, url string, ttl time.Duration) ([]driver.Finding, error) {
	return etcd.DiagnoseURL(ctx, url, ttl, nil)
}

func diagnoseZooKeeper(ctx context.Context, url string, ttl time.Duration) ([]driver.Finding, error) {
	return zookeeper.DiagnoseURL(ctx, url, ttl, nil)
}

func (a *app) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Make the tables for locks in a PostgreSQL database",
		Long: `Migrate makes the schema, tables and functions that a postgres:// backend needs, or
brings them up to date. Where all is there it does nothing. The user of the backend
needs the right to create a schema; later ones need USAGE on the schema, and SELECT,
INSERT, UPDATE and DELETE on its tables.
`,
		Args: cobra.NoArgs,
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
	if !strings.HasPrefix(url, "postgres") {
		return exitcode.Usagef("migrate is for a postgres:// backend; others need no preparation")
	}
	ctx, stop := interruptible()
	defer stop()
	return interruptedBy(ctx, postgres.MigrateURL(ctx, url, nil))
}
