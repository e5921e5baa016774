// Package mysql keeps locks in a database of MySQL or MariaDB that a URL names. It opens the database; package sqllock has the driver,
// and what it promises. A program that has a *sql.DB already gives it to sqllock.New.
package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/sqllock"
)

const (
	// connections is the size of the pool: four for waiters, three for claims and releases.
	connections = 7
	// renewConnections is the size of the renewal pool. One connection is open; more are needed only if
	// several renewals run at once (of several TTLs, or by Extend) or one of them gets no answer.
	renewConnections = 3
	// lifetime bounds the age of a connection: servers and proxies cut old connections.
	lifetime = 3 * time.Minute
)

var grammar = driverkit.Grammar{
	Schemes: map[string]driverkit.Scheme{
		"mysql":        {Example: "mysql://user:password@host:3306/database", Port: "3306", Several: "name the primary, or the proxy before the servers"},
		"mariadb":      {Example: "mariadb://user:password@host:3306/database", Port: "3306", Several: "name the primary, or the proxy before the servers"},
		"mysql+unix":   {Example: "mysql+unix://user@/run/mysqld/mysqld.sock?db=database", Socket: true},
		"mariadb+unix": {Example: "mariadb+unix://user@/run/mysqld/mysqld.sock?db=database", Socket: true},
	},
	Usual:      []string{"mysql", "mariadb"},
	Parameters: []string{"db", "prefix"},
}

// Options configure a Driver. The zero value works.
type Options struct {
	// NoCheck skips the first statement, so that a driver can be opened even for a database that has no tables yet or
	// rejects this client: for Migrate, Limits and Diagnose.
	NoCheck bool
}

// Driver keeps locks in one database. It is safe for concurrent use.
type Driver struct {
	*sqllock.Driver
	db      *sql.DB
	renewDB *sql.DB
	secrets []string // files
}

// Open returns a driver over connections of its own to the database that url names; opts may be nil. Otherwise it does what sqllock.New
// does. Close closes them.
//
//	mysql://user:password@host:3306/database
//	mariadb://user:password@host/database?tls=true
//	mysql+unix://user@/run/mysqld/mysqld.sock?db=database
//
// Further parameters are ca, cert, key and servername for TLS, and prefix, with which the names of the tables begin.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	cfg, u, err := parseURL(url)
	if err != nil {
		return nil, fmt.Errorf("mysql: %w", err)
	}
	cfg.Apply(mysql.BeforeConnect(func(_ context.Context, c *mysql.Config) (err error) {
		c.TLS, err = u.FreshTLS(c.TLS) // certificate files may be replaced while the program runs
		return err
	}))
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("mysql: %w: the URL cannot be used, and is not shown as it may have a password", driver.ErrInvalid)
	}
	pool := func(open, idle int, life time.Duration) *sql.DB {
		db := sql.OpenDB(explainingConnector{connector})
		db.SetMaxOpenConns(open)
		db.SetMaxIdleConns(idle)
		db.SetConnMaxLifetime(life)
		return db
	}
	// The renewal connection has no lifetime: the driver replaces it once another is open.
	d := &Driver{db: pool(connections, connections, lifetime), renewDB: pool(renewConnections, 1, 0), secrets: u.SecretFiles("key")}
	d.Driver, err = sqllock.New(ctx, d.db, sqllock.MySQL, &sqllock.Options{
		NoCheck: opts.NoCheck, Node: cfg.Addr, Prefix: u.Parameters["prefix"], RenewDB: d.renewDB,
	})
	if err != nil {
		return nil, errors.Join(err, d.closePools())
	}
	return d, nil
}

func (d *Driver) closePools() error { return errors.Join(d.db.Close(), d.renewDB.Close()) }

// explainingConnector adds a fix to errors about login methods that this package rejects. The driver's own errors name
// parameters that no URL of this package has, because they would send passwords in clear text.
type explainingConnector struct{ sqldriver.Connector }

// Connect implements sqldriver.Connector.
func (e explainingConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := connectGuarded(ctx, e.Connector)
	for _, way := range []error{mysql.ErrOldPassword, mysql.ErrCleartextPassword, mysql.ErrUnknownPlugin} {
		if errors.Is(err, way) {
			return nil, driverkit.PermanentError{Err: fmt.Errorf("%w: the server wants this user to log in in a way that is not safe or not known here; "+
				"have the user log in by caching_sha2_password, ed25519 or mysql_native_password", driver.ErrAuth)}
		}
	}
	return conn, err
}

// parseURL returns the driver configuration for a URL.
func parseURL(url string) (*mysql.Config, *driverkit.URL, error) {
	u, err := grammar.Parse(url)
	if err != nil {
		return nil, nil, err
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName = u.Username, u.Password, u.Path
	cfg.Net, cfg.Timeout = "tcp", pace.ConnectTime()
	cfg.InterpolateParams = true    // one round trip per statement instead of two
	cfg.Logger = &mysql.NopLogger{} // errors are returned; do not write them to the program's log
	if cfg.TLS, err = u.TLS(nil); err != nil {
		return nil, nil, err
	}
	cfg.DialFunc = newDialer(cfg.TLS == nil)
	if len(u.Hosts) == 0 {
		cfg.Net, cfg.Addr, cfg.DBName = "unix", u.Path, ""
	} else {
		cfg.Addr = u.Hosts[0]
	}
	if name := u.Parameters["db"]; name != "" {
		if cfg.DBName != "" {
			return nil, nil, fmt.Errorf("%w: the URL names two databases; leave out the parameter db", driver.ErrInvalid)
		}
		cfg.DBName = name
	}
	if cfg.DBName == "" {
		return nil, nil, fmt.Errorf("%w: the URL names no database; write it behind the host, as in %s", driver.ErrInvalid, grammar.Schemes["mysql"].Example)
	}
	return cfg, u, nil
}

// Close implements driver.Driver.
func (d *Driver) Close() error {
	d.Driver.Close()
	return d.closePools()
}

// Diagnose implements driver.Doctor.
func (d *Driver) Diagnose(ctx context.Context, ttl time.Duration) []driver.Finding {
	var notes driverkit.Findings
	notes.CheckFileModes(d.secrets...)
	return append(d.Driver.Diagnose(ctx, ttl), notes.Found...)
}
