package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// schemaParameter is the URL parameter that names the schema.
const schemaParameter = "holdfast_schema"

// Open returns a driver over a pool of its own for the database that url names, in
// the forms of libpq; opts may be nil. Otherwise it does what New does.
//
//	postgres://user:password@host:5432/database?sslmode=verify-full
//	postgres://h1,h2,h3/database?target_session_attrs=read-write   the one that is primary
//
// Further parameters are the parameters of pgxpool, such as pool_max_conns, settings of the server, which
// rejects unknown ones, and holdfast_schema, which goes before Options.Schema.
//
// Write @ as %40, / as %2F, ? as %3F and # as %23 in user and password, and @ and # so everywhere else.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	pool, o, err := openPool(url, opts)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	d, err := newDriver(pool, &o)
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	d.ours = true
	return d.finishOpen(ctx, &o, nil)
}

// New returns a driver over pool, which remains the property of the caller; opts may be nil. New asks the database
// once, for five seconds at most, and returns the errors that waiting would not fix: ErrAuth for a wrong password or
// missing permissions, ErrConfig for missing tables. If the database is down, New returns no error; later calls wait
// for it or return ErrUnavailable. Invalid arguments are ErrInvalid; with NoCheck there is no other error, and New
// does not block.
//
// A program that uses database/sql can share the pool: it opens the pool, and gets a *sql.DB over it by
// OpenDBFromPool of pgx's package stdlib. A *sql.DB that was opened in another way has no such pool; open a separate
// one for the locks.
//
// If the caller uses all connections of the pool, claims wait, and renewals use a connection that the driver opens
// beside the pool. The driver opens it, and the connections on which it listens and waits, with the pool's
// BeforeConnect and AfterConnect. If a statement of the pool got no answer in time, and no other statement got one
// meanwhile, the driver makes the pool replace its connections (pgxpool.Pool.Reset). That ends no transaction of the
// caller.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	if pool == nil {
		return nil, fmt.Errorf("postgres: %w: there is no pool; open one with pgxpool.New, and a *sql.DB over it with stdlib.OpenDBFromPool", driver.ErrInvalid)
	}
	d, err := newDriver(pool, opts)
	return d.finishOpen(ctx, opts, err)
}

// finishOpen checks the database and returns d. If the check finds an error that waiting does not fix, it
// closes d.
func (d *Driver) finishOpen(ctx context.Context, opts *Options, err error) (*Driver, error) {
	if err == nil && opts.NoCheck {
		return d, nil
	}
	return driverkit.OpenChecked(ctx, "postgres", d, err, d.checkDatabase)
}

// checkDatabase checks the database for the first time.
func (d *Driver) checkDatabase(ctx context.Context) error {
	conn, err := d.pool.Acquire(ctx)
	if err == nil {
		err = d.checkSchema(ctx, conn.Conn())
		conn.Release()
	}
	if err != nil {
		err = d.unavailableError(d.explainError(ctx, err, false))
	}
	return err
}

func openPool(dsn string, opts *Options) (*pgxpool.Pool, Options, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := checkEscapes(dsn); err != nil {
		return nil, o, err
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, o, fmt.Errorf("%w: the URL cannot be read, and is not shown as it may have a password; write postgres://user:password@host:5432/database, "+
			"with %%40 for an @ and %%2F for a / in the password", driver.ErrInvalid)
	}
	o.secrets = secretFiles(dsn)
	settings := cfg.ConnConfig.RuntimeParams
	if name, ok := settings[schemaParameter]; ok {
		o.Schema = name
		delete(settings, schemaParameter)
	}
	if settings["application_name"] == "" {
		settings["application_name"] = "holdfast"
	}
	if cfg.ConnConfig.ConnectTimeout == 0 || cfg.ConnConfig.ConnectTimeout > time.Minute {
		cfg.ConnConfig.ConnectTimeout = pace.ConnectTime()
	}
	cfg.ConnConfig.MaxProtocolMessageBodyLen = messageBytes
	cfg.ConnConfig.BuildFrontend = newFrontend
	cfg.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
		// Files that the URL names may be replaced while the program runs, so each connection reads them
		// again.
		if now, err := pgxpool.ParseConfig(dsn); err == nil { // an error: the files are being replaced right now
			cc.Password, cc.TLSConfig, cc.Fallbacks = now.ConnConfig.Password, now.ConnConfig.TLSConfig, now.ConnConfig.Fallbacks
		}
		return nil
	}
	cfg.BeforeClose = closeSocketSoon
	cfg.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {} // drop them: pgx would queue them, and the pool's connections do not listen
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		err = errors.Join(driver.ErrInvalid, err)
	}
	return pool, o, err
}

// checkEscapes rejects a URL in which a part of the password may end up in a host, the path or a parameter, all of
// which errors show. pgx accepts such URLs. The error shows no part of the URL.
func checkEscapes(dsn string) error {
	scheme, rest, ok := strings.Cut(dsn, "://")
	if !ok || scheme != "postgres" && scheme != "postgresql" {
		return nil // the parameters of a libpq string are separate
	}
	authority, after := rest, ""
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority, after = rest[:end], rest[end:]
	}
	switch {
	case strings.Count(authority, "@") > 1:
		return fmt.Errorf("%w: user and password stand once, before the first host; in a password write @ as %%40", driver.ErrInvalid)
	case strings.Contains(after, "@"):
		return fmt.Errorf("%w: an @ comes after the first /, ? or # of the URL; write postgres://user:password@host:5432/database, in user and password with "+
			"/ as %%2F, ? as %%3F and # as %%23, elsewhere with @ as %%40", driver.ErrInvalid)
	case strings.Contains(after, "#"):
		return fmt.Errorf("%w: the URL has a #; in a password and elsewhere write # as %%23", driver.ErrInvalid)
	}
	return nil
}

// checkHosts rejects hosts with an @, which may follow a part of a password. The error does not show the host.
func checkHosts(cc *pgconn.Config) error {
	hosts := []string{cc.Host}
	for _, f := range cc.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, host := range hosts {
		if strings.Contains(host, "@") && !filepath.IsAbs(host) {
			return fmt.Errorf("%w: a host has an @, and is not shown as it may have a part of a password; in the password of a URL write @ as %%40", driver.ErrInvalid)
		}
	}
	return nil
}

// secretFileParameter finds a parameter that names a file which only its users may read, in a URL or a libpq string.
var secretFileParameter = regexp.MustCompile(`(?:^|[?&\s])(?:sslkey|passfile)\s*=\s*('[^']*'|[^&\s']+)`)

// secretFiles returns the files that the URL names and that only their users may read.
func secretFiles(text string) (files []string) {
	for _, found := range secretFileParameter.FindAllStringSubmatch(text, -1) {
		name := strings.Trim(found[1], "'")
		if plain, err := url.QueryUnescape(name); err == nil && strings.Contains(text, "://") {
			name = plain
		}
		files = append(files, name)
	}
	return files
}
