//go:build linux

package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	_ "github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
	_ "github.com/holdfast-go/holdfast/postgres"
	_ "github.com/holdfast-go/holdfast/redis"
	_ "github.com/holdfast-go/holdfast/sqllock/mysql"
	_ "github.com/holdfast-go/holdfast/zookeeper"
)

// These variables name the program of a server, for the rig or for this program.
const (
	redisVariable     = "HOLDFAST_REDIS_SERVER"
	etcdVariable      = "HOLDFAST_ETCD_SERVER"
	zookeeperVariable = "HOLDFAST_ZOOKEEPER_SERVER"
	postgresVariable  = "HOLDFAST_POSTGRES_SERVER"
	mysqlVariable     = "HOLDFAST_MYSQL_SERVER"
	mariadbVariable   = "HOLDFAST_MARIADB_SERVER"
	poolerVariable    = "HOLDFAST_PGBOUNCER_SERVER"
	frontVariable     = "HOLDFAST_FRONT_SERVER" // a program before the server, or in its place
)

// row is one line of the table: a server, and the proxy or pooler in front of it.
type row struct {
	name    string
	needs   []need
	start   func(context.Context) (url string, stop func() error, err error)
	fence   func(context.Context) error // for databases: runs on the database that start has started
	suite   tests
	deaf    bool // no push reaches the clients
	scripts tests
	chaos   string          // backend of verify/chaos
	habit   *repeatedAction // repeated during the hammer; start prepares it
	tables  bool            // checkServer migrates: the migration may reject the server
	alike   bool            // an imitation of another server: it may fail
}

// tests selects the tests of some packages by a pattern.
type tests struct {
	pattern  string
	packages []string
}

func testsIn(pattern string, packages ...string) tests { return tests{pattern, packages} }

// need is a server that tools/servers downloads, and the variable for its program.
type need struct{ server, variable string }

// matchesText reports whether the row's name contains one of the texts. A text that is a row's whole name
// matches only that row. Empty matches all.
func (r *row) matchesText(texts string) bool {
	for text := range strings.SplitSeq(texts, ";") {
		whole := slices.ContainsFunc(rows, func(r *row) bool { return r.name == text })
		if r.name == text || !whole && strings.Contains(r.name, text) {
			return true
		}
	}
	return false
}

var rows = slices.Concat(redisRows(), consensusRows(), postgresRows(), databaseRows())

func redisRows() (all []*row) {
	for _, name := range []string{"valkey-9.1.2", "redis-8.0.6", "redict-7.3.6"} {
		all = append(all, &row{
			name: name, needs: []need{{name, redisVariable}}, start: startRedis, chaos: "redis",
			suite: testsIn("^TestConformance$", "../redis"), scripts: testsIn("TestScripts/(leases|waiting|several|slots|readers|looking)$", "../cmd/holdfast"),
		})
	}
	all = append(all,
		&row{
			name: "valkey-9.1.2, cluster", needs: []need{{"valkey-9.1.2", redisVariable}}, start: startRedisCluster, chaos: "cluster",
			suite: testsIn("^TestConformanceOnCluster$|AtOnce", "../redis"),
		},
		repeatedActionRow("valkey-9.1.2, cluster, slots moved at once", need{"valkey-9.1.2", redisVariable}, "slots moved", startMovingSlots),
		&row{
			name: "redis-8.0.6 behind haproxy-3.2.26, which cuts idle links", start: startBehindHAProxy(startRedis, "5s"), suite: suiteAtURL,
			needs: []need{{"redis-8.0.6", redisVariable}, {"haproxy-3.2.26", frontVariable}},
		},
		&row{name: "redis-8.0.6 with CONFIG renamed", start: startRenamed, suite: suiteAtURL, needs: []need{{"redis-8.0.6", redisVariable}}},
		&row{
			name: "redis-8.0.6 behind nutcracker-0.5.0", start: startNutcracker, alike: true,
			needs: []need{{"redis-8.0.6", redisVariable}, {"nutcracker-0.5.0", frontVariable}},
		},
		imitationRow("miniredis-2.40.0", miniredis), imitationRow("redka-1.0.1", redka), imitationRow("olric-0.7.0", olric),
		imitationRow("infinispan-15.0.13.Final", infinispan),
	)
	return all
}

func consensusRows() (all []*row) {
	for _, name := range []string{"etcd-3.5.30", "etcd-3.6.16", "etcd-3.7.3"} {
		all = append(all, &row{
			name: name, needs: []need{{name, etcdVariable}}, start: startEtcd, chaos: "etcd",
			suite: testsIn("^TestConformance(OfServers|AtURL)$", "../etcd", "./servers"), scripts: testsIn("TestScripts/etcd$", "../cmd/holdfast"),
		})
	}
	all = append(all,
		&row{
			name: "zookeeper-3.9.6", needs: []need{{"zookeeper-3.9.6", zookeeperVariable}}, start: startZooKeeper, chaos: "zookeeper",
			suite: testsIn("^TestConformance(OfServers|AtURL)$", "../zookeeper", "./servers"), scripts: testsIn("TestScripts/zookeeper$", "../cmd/holdfast"),
		},
		&row{name: "etcd-3.7.3 behind its grpc-proxy", needs: []need{{"etcd-3.7.3", etcdVariable}}, start: startGRPCProxy, suite: suiteAtURL},
		imitationRow("kine-0.17.5", kine),
		repeatedActionRow("etcd-3.7.3, members replaced", need{"etcd-3.7.3", etcdVariable}, "members replaced", startReplacingMembers),
		repeatedActionRow("zookeeper-3.9.6, members taken out and in", need{"zookeeper-3.9.6", zookeeperVariable}, "members out and in", startReconfiguring),
	)
	return all
}

func postgresRows() []*row {
	return []*row{
		{
			name: "postgres-18.6", needs: []need{{"postgres-18.6", postgresVariable}}, start: startPostgres, fence: fencePostgres, chaos: "postgres",
			suite: testsIn("^TestConformance$", "../postgres"), scripts: testsIn("TestScripts/postgres$", "../cmd/holdfast"),
		},
		{
			name: "postgres-18.6 behind pgbouncer-1.26.1, sessions", start: startBehindPooler("session"), suite: suiteAtURL,
			needs: []need{{"postgres-18.6", postgresVariable}, {"pgbouncer-1.26.1", poolerVariable}},
		},
		{
			name: "postgres-18.6 behind pgbouncer-1.26.1, transactions", start: startBehindPooler("transaction"),
			suite: testsIn("^TestConformanceBehindTransactionPooler$", "../postgres"),
			needs: []need{{"postgres-18.6", postgresVariable}, {"pgbouncer-1.26.1", poolerVariable}},
		},
		{
			name: "postgres-18.6 behind two pgbouncer-1.26.1, transactions", start: startBehindTwoPoolers, suite: suiteAtURL, deaf: true,
			needs: []need{{"postgres-18.6", postgresVariable}, {"pgbouncer-1.26.1", poolerVariable}},
		},
		{
			name: "postgres-18.6 and a replica behind pgpool-4.7.3", start: startBehindPgpool, suite: suiteAtURL,
			needs: []need{{"postgres-18.6", postgresVariable}, {"pgpool-4.7.3", frontVariable}},
		},
		{
			name: "postgres-18.6 behind haproxy-3.2.26, which cuts idle links", start: startBehindHAProxy(startPostgres, "5s"), suite: suiteAtURL,
			needs: []need{{"postgres-18.6", postgresVariable}, {"haproxy-3.2.26", frontVariable}},
		},
	}
}

func databaseRows() []*row {
	return []*row{
		{
			name: "mysql-9.7.4", needs: []need{{"mysql-9.7.4", mysqlVariable}}, start: startMySQL, fence: fenceMySQL, chaos: "mysql",
			suite: testsIn("^TestConformance$/^(?i:mysql)$", "../sqllock"),
		},
		{
			name: "mysql-9.7.4 behind haproxy-3.2.26, which cuts idle links", start: startBehindHAProxy(startMySQL, "5s"), suite: suiteAtURL,
			needs: []need{{"mysql-9.7.4", mysqlVariable}, {"haproxy-3.2.26", frontVariable}},
		},
		{
			name: "mariadb-11.8.9", needs: []need{{"mariadb-11.8.9", mariadbVariable}}, start: startMariaDB, fence: fenceMySQL, chaos: "mariadb",
			suite: testsIn("^TestConformance$/^(?i:mariadb)$", "../sqllock"), scripts: testsIn("TestScripts/mysql$", "../cmd/holdfast"),
		},
		{
			name: "mariadb-11.8.9 with Aria for InnoDB", needs: []need{{"mariadb-11.8.9", mariadbVariable}}, fence: fenceMySQL, alike: true,
			start: startEngine("Aria"), suite: suiteAtURL,
		},
		{
			name: "mariadb-11.8.9 with MyISAM for InnoDB", needs: []need{{"mariadb-11.8.9", mariadbVariable}}, fence: fenceMySQL, alike: true,
			start: startEngine("MyISAM"), suite: suiteAtURL,
		},
		imitationRow("pglite-0.2.17", pglite), imitationRow("h2-2.5.252", h2), imitationRow("go-mysql-server-0.20.0", mysqlInGo),
	}
}

// repeatedActionRow returns the row of a server with a repeated action of its operator.
func repeatedActionRow(name string, server need, done string, start func(*repeatedAction) starter) *row {
	h := &repeatedAction{name: done}
	return &row{name: name, needs: []need{server}, start: start(h), habit: h}
}

// imitationRow returns the row of a server that imitates another.
func imitationRow(name string, a lookalike) *row {
	return &row{
		name: name, needs: []need{{name, frontVariable}}, start: startAlike(a), alike: true,
		tables: strings.HasPrefix(a.url, "postgres:") || strings.HasPrefix(a.url, "mysql:"),
	}
}

// host is the address of a server, a socket's path or host:port, as a URL needs it.
type host struct {
	at   string
	url  func(at string) string
	stop func() error
	make func(context.Context) error // prepares the database
}

func (h host) startHost(ctx context.Context) (string, func() error, error) {
	if h.make != nil {
		if err := h.make(ctx); err != nil {
			return "", nil, errors.Join(err, h.stop())
		}
	}
	return h.url(h.at), h.stop, nil
}

func redisURL(at string) string { return "redis://" + at }

func redisHost(ctx context.Context, opts *redisproc.Options) (host, error) {
	s, err := redisproc.Start(ctx, opts)
	if err != nil {
		return host{}, err
	}
	return host{at: s.Addr(), url: redisURL, stop: s.Stop}, nil
}

func startRedis(ctx context.Context) (string, func() error, error) {
	h, err := redisHost(ctx, &redisproc.Options{AppendOnly: "always"})
	return openHost(ctx, h, err)
}

// startRenamed starts a server without CONFIG, like many hosted services.
func startRenamed(ctx context.Context) (string, func() error, error) {
	h, err := redisHost(ctx, &redisproc.Options{AppendOnly: "always", Args: []string{"--rename-command", "CONFIG", "kept-for-operators"}})
	return openHost(ctx, h, err)
}

func startRedisCluster(ctx context.Context) (string, func() error, error) {
	c, err := redisproc.StartCluster(ctx, &redisproc.ClusterOptions{})
	if err != nil {
		return "", nil, err
	}
	var addrs []string
	for _, s := range c.Servers {
		addrs = append(addrs, s.Addr())
	}
	return "redis+cluster://" + strings.Join(addrs, ","), c.Stop, nil
}

func startEtcd(ctx context.Context) (string, func() error, error) {
	c, err := etcdproc.Start(ctx, 3)
	if err != nil {
		return "", nil, err
	}
	return "etcd://" + strings.Join(c.Addrs(), ",") + "/locks", c.Stop, nil
}

func startZooKeeper(ctx context.Context) (string, func() error, error) {
	e, err := zkproc.Start(ctx, 3)
	if err != nil {
		return "", nil, err
	}
	return "zk://" + strings.Join(e.Addrs(), ",") + "/locks", e.Stop, nil
}

// guardedDatabase is the current row's database, without a proxy or pooler.
var guardedDatabase struct {
	dialect     sqlfence.Dialect
	driver, dsn string
}

func postgresURL(at string) string {
	if dir, ok := strings.CutSuffix(at, "/.s.PGSQL.5432"); ok {
		return "postgres://holdfast:secret@/postgres?host=" + url.QueryEscape(dir)
	}
	return "postgres://holdfast:secret@" + at + "/postgres?sslmode=disable"
}

func socketOf(dsn string) string {
	dir, _, _ := strings.Cut(strings.TrimPrefix(dsn, "host="), " ")
	return dir + "/.s.PGSQL.5432"
}

func postgresHost(ctx context.Context) (*pgproc.Server, host, error) {
	s, err := pgproc.Start(ctx, "max_connections=300")
	if err != nil {
		return nil, host{}, err
	}
	guardedDatabase.dialect, guardedDatabase.driver, guardedDatabase.dsn = sqlfence.PostgreSQL, "pgx", s.DSN()
	h := host{at: socketOf(s.DSN()), url: postgresURL, stop: s.Stop}
	h.make = func(ctx context.Context) error { return migrateTables(ctx, h.url(h.at)) }
	return s, h, nil
}

func startPostgres(ctx context.Context) (string, func() error, error) {
	_, h, err := postgresHost(ctx)
	return openHost(ctx, h, err)
}

func openHost(ctx context.Context, h host, err error) (string, func() error, error) {
	if err != nil {
		return "", nil, err
	}
	return h.startHost(ctx)
}

// migrateTables creates the tables by the command.
func migrateTables(ctx context.Context, url string) error {
	out, err := runCommand(ctx, "migrate", "--backend", url).CombinedOutput()
	if err != nil {
		return fmt.Errorf("migrate: %w: %s", err, out)
	}
	return nil
}

func mysqlURL(at string) string {
	if strings.HasPrefix(at, "/") {
		return "mysql+unix://root:secret@" + at + "?db=app"
	}
	return "mysql://root@" + at + "/app" // no password: MySQL 9 cannot check one without TLS
}

func mysqlHost(s *mariaproc.Server, err error) (host, error) {
	if err != nil {
		return host{}, err
	}
	guardedDatabase.dialect, guardedDatabase.driver, guardedDatabase.dsn = sqlfence.MySQL, "mysql", "root@unix("+s.Socket()+")/app"
	h := host{at: s.Socket(), url: mysqlURL, stop: s.Stop}
	h.make = func(ctx context.Context) error {
		db, err := sql.Open("mysql", "root@unix("+s.Socket()+")/")
		if err != nil {
			return err
		}
		defer db.Close()
		if _, err = db.ExecContext(ctx, "CREATE DATABASE app"); err != nil {
			return err
		}
		return migrateTables(ctx, h.url(h.at))
	}
	return h, nil
}

func startMySQL(ctx context.Context) (string, func() error, error) {
	h, err := mysqlHost(mariaproc.StartMySQL(ctx, "--max-connections=300"))
	return openHost(ctx, h, err)
}

func startMariaDB(ctx context.Context) (string, func() error, error) {
	h, err := mysqlHost(mariaproc.Start(ctx, "--max-connections=300"))
	return openHost(ctx, h, err)
}

// startEngine starts a MariaDB that creates every table with an engine without transactions.
func startEngine(engine string) func(context.Context) (string, func() error, error) {
	return func(ctx context.Context) (string, func() error, error) {
		h, err := mysqlHost(mariaproc.Start(ctx, "--max-connections=300", "--enforce-storage-engine="+engine, "--sql-mode="))
		return openHost(ctx, h, err)
	}
}

func fencePostgres(ctx context.Context) error { return fenceDatabase(ctx) }
func fenceMySQL(ctx context.Context) error    { return fenceDatabase(ctx) }

// startDaemon starts a program with files in its own folder ({} in the files and arguments), and waits until
// it listens at addr.
func startDaemon(ctx context.Context, addr string, files map[string]string, args ...string) (dir string, stop func() error, err error) {
	if dir, err = os.MkdirTemp("", "holdfast-front-"); err != nil {
		return "", nil, err
	}
	program := os.Getenv(frontVariable)
	if args[0] == "--" { // another program follows
		program, args = args[1], args[2:]
	}
	fill := func(text string) string { return strings.ReplaceAll(text, "{}", dir) }
	err = os.Chmod(dir, 0o755)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(fill(text)), 0o644))
	}
	p := &child.Process{Program: child.Program{
		Cmd: func() *exec.Cmd {
			cmd := exec.Command(program)
			for _, a := range args {
				cmd.Args = append(cmd.Args, fill(a))
			}
			cmd.Dir = dir
			return cmd
		},
		Ready: func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, cmp.Or(map[bool]string{true: "unix"}[strings.HasPrefix(addr, "{}")], "tcp"), fill(addr))
			if err == nil {
				conn.Close()
			}
			return err
		},
		Output: filepath.Join(dir, "log"), Signal: syscall.SIGKILL, Limit: time.Minute,
	}}
	stop = func() error {
		p.End(syscall.SIGTERM)
		return os.RemoveAll(dir)
	}
	if err == nil {
		err = p.Restart(ctx)
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("start %s: %w", filepath.Base(program), err), stop())
	}
	return dir, stop, nil
}

// freeAddrs returns n free addresses of this machine.
func freeAddrs(n int) (addrs []string, release func(), err error) {
	reserved, err := child.MemberPorts.Reserve(n)
	if err != nil {
		return nil, nil, err
	}
	return child.Addrs(reserved), func() { child.Release(reserved) }, nil
}

// stopInReverse returns a function that calls all, the last one first.
func stopInReverse(all ...func() error) func() error {
	return func() (err error) {
		for i := len(all) - 1; i >= 0; i-- {
			err = errors.Join(err, all[i]())
		}
		return err
	}
}
