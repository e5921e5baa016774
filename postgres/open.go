package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/direct"
)

// connectTime bounds how long a connection may take that the URL sets no bound for.
const connectTime = 5 * time.Second

// schemaParameter names the schema in a URL.
const schemaParameter = "holdfast_schema"

// Open returns a driver over a pool of its own for the database that url names, in
// the forms of libpq; opts may be nil.
//
//	postgres://user:password@host:5432/database?sslmode=verify-full
//	postgres://h1,h2,h3/database?target_session_attrs=read-write   the one that is primary
//
// Further parameters are those of pgxpool, such as pool_max_conns, and
// holdfast_schema, which goes before Options.Schema. Open asks the database once, so
// that what time does not mend is an error here: a wrong password, missing tables or rights. A
// database that is down is none; calls wait for it or return ErrUnavailable.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	d, err := open(url, opts)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	conn, err := d.pool.Acquire(ctx)
	if err == nil {
		err = d.check(ctx, conn.Conn())
		conn.Release()
	}
	if err == nil {
		return d, nil
	}
	if why := d.diagnose(ctx, err, false); direct.Lasts(why) {
		d.Close()
		return nil, fmt.Errorf("postgres: %w", d.unavailable(why))
	}
	return d, nil
}

func open(url string, opts *Options) (*Driver, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("%w: the URL cannot be read, and is not shown as it may have a password; write postgres://user:password@host:5432/database, "+
			"with %%40 for an @ and %%2F for a / in the password", driver.ErrInvalid)
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	settings := cfg.ConnConfig.RuntimeParams
	if name, ok := settings[schemaParameter]; ok {
		o.Schema = name
		delete(settings, schemaParameter)
	}
	if settings["application_name"] == "" {
		settings["application_name"] = "holdfast"
	}
	if cfg.ConnConfig.ConnectTimeout == 0 || cfg.ConnConfig.ConnectTimeout > time.Minute {
		cfg.ConnConfig.ConnectTimeout = connectTime
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, errors.Join(driver.ErrInvalid, err)
	}
	d, err := New(pool, &o)
	if err != nil {
		pool.Close()
		return nil, err
	}
	d.ours = true
	return d, nil
}
