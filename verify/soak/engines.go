//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	_ "github.com/go-sql-driver/mysql" // the driver
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
	"github.com/holdfast-go/holdfast/verify/tool"
)

// engine is a kind of service under a soak. start waits until its servers serve; after an error it leaves
// nothing behind.
type engine struct {
	name  string
	start func(context.Context) (*service, error)
}

// service holds the servers of an engine.
type service struct {
	url   string
	pids  func() []int                                                // process ids of the servers
	look  func(ctx context.Context, figures map[string]float64) error // adds figures of this engine
	fault func(ctx context.Context, n int) error                      // causes the n-th fault and waits for its end; nil: no server
	stop  func() error
}

var engines = []engine{
	{"redis", startRedis},
	{"redlock", startRedlock},
	{"cluster", startCluster},
	{"sentinel", startSentinel},
	{"etcd", startEtcd},
	{"zookeeper", startZookeeper},
	{"postgres", startPostgres},
	{"mariadb", startMariaDB},
	{"sqlite", startSQLite},
}

// pidsOf returns the processes of some servers.
func pidsOf[S interface{ Pid() int }](all []S) (pids []int) {
	for _, s := range all {
		pids = append(pids, s.Pid())
	}
	return pids
}

// killInTurn returns a fault that kills one server after another, and starts it again.
func killInTurn[S interface {
	Kill()
	Restart(ctx context.Context) error
}](all ...S) func(ctx context.Context, n int) error {
	return func(ctx context.Context, n int) error {
		s := all[n%len(all)]
		s.Kill()
		return s.Restart(ctx)
	}
}

// durable configures a Redis server that loses nothing in an orderly restart.
var durable = redisproc.Options{AppendOnly: "everysec"}

// shortQuarantine shortens the quarantine of nodes, which would otherwise take a minute.
const shortQuarantine = "?maxttl=10s&down=allow"

func startRedis(ctx context.Context) (*service, error) {
	s, err := redisproc.Start(ctx, &durable)
	if err != nil {
		return nil, err
	}
	return overRedis("redis://"+s.Addr(), []*redisproc.Server{s}), nil
}

func startRedlock(ctx context.Context) (*service, error) {
	var all []*redisproc.Server
	for range 3 {
		s, err := redisproc.Start(ctx, &durable)
		if err != nil {
			return nil, errors.Join(err, stopRedis(all))
		}
		all = append(all, s)
	}
	return overRedis("redlock://"+strings.Join(addrsOf(all), ",")+shortQuarantine, all), nil
}

func startCluster(ctx context.Context) (*service, error) {
	c, err := redisproc.StartCluster(ctx, &redisproc.ClusterOptions{Masters: 3, Replicas: 3, Server: durable})
	if err != nil {
		return nil, err
	}
	sv := overRedis("redis+cluster://"+strings.Join(addrsOf(c.Servers), ",")+shortQuarantine, c.Servers)
	restart := sv.fault
	sv.fault = func(ctx context.Context, n int) error {
		if err := restart(ctx, n); err != nil {
			return err
		}
		return c.Await(ctx)
	}
	sv.stop = c.Stop
	return sv, nil
}

// startSentinel starts masters that reject writes without a replica: a replaced master grants nothing.
func startSentinel(ctx context.Context) (*service, error) {
	server := durable
	server.Args = []string{"--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"}
	g, err := redisproc.StartGroup(ctx, &redisproc.GroupOptions{Server: server})
	if err != nil {
		return nil, err
	}
	sv := overRedis("redis+sentinel://"+strings.Join(g.Addrs(), ",")+"/"+redisproc.GroupName+shortQuarantine, g.Servers)
	sv.fault = func(ctx context.Context, _ int) error { // a replica takes over
		return errors.Join(g.AwaitReplicas(ctx, 2), g.Switch(ctx), g.AwaitReplicas(ctx, 2))
	}
	sv.stop = g.Stop
	return sv, nil
}

func addrsOf(all []*redisproc.Server) (out []string) {
	for _, s := range all {
		out = append(out, s.Addr())
	}
	return out
}

func stopRedis(all []*redisproc.Server) (errs error) {
	for _, s := range all {
		errs = errors.Join(errs, s.Stop())
	}
	return errs
}

func overRedis(url string, all []*redisproc.Server) *service {
	return &service{
		url:  url,
		pids: func() []int { return pidsOf(all) },
		look: func(_ context.Context, figures map[string]float64) error {
			for _, s := range all {
				keys, err := s.Do("DBSIZE")
				if err != nil {
					return err
				}
				figures["keys"] += float64(keys.(int64))
				for section, fields := range map[string]map[string]string{
					"memory": {"used_memory": "redis memory"}, "clients": {"connected_clients": "connections"},
				} {
					info, err := s.Do("INFO", section)
					if err != nil {
						return err
					}
					addFields(figures, fmt.Sprint(info), ":", fields)
				}
			}
			return nil
		},
		fault: func(ctx context.Context, n int) error { return all[n%len(all)].Restart(ctx) },
		stop:  func() error { return stopRedis(all) },
	}
}

// addFields adds the fields of a text, one name and number per line, for which there is a figure.
func addFields(figures map[string]float64, text, between string, names map[string]string) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), between)
		if v, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && names[name] != "" {
			figures[names[name]] += v
		}
	}
}

// startEtcd starts members that compact old revisions, without which etcd's file grows with each lock, and
// keep a short raft log in memory: by default it grows to 100,000 entries.
func startEtcd(ctx context.Context) (_ *service, err error) {
	c, err := etcdproc.Start(ctx, 3, "--auto-compaction-mode=periodic", "--auto-compaction-retention=1m", "--snapshot-count=5000")
	if err != nil {
		return nil, err
	}
	direct, err := clientv3.New(clientv3.Config{Endpoints: c.Addrs(), Logger: zap.NewNop()})
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return &service{
		url:  "etcd://" + strings.Join(c.Addrs(), ","),
		pids: func() []int { return pidsOf(c.Members) },
		look: func(ctx context.Context, figures map[string]float64) error {
			for _, addr := range c.Addrs() {
				st, err := direct.Status(ctx, addr)
				if err != nil {
					return err
				}
				figures["size"] += float64(st.DbSize)
			}
			keys, err1 := direct.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithCountOnly())
			leases, err2 := direct.Leases(ctx)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			figures["keys"], figures["leases"] = float64(keys.Count), float64(len(leases.Leases))
			return nil
		},
		fault: killInTurn(c.Members...),
		stop:  func() error { return errors.Join(direct.Close(), c.Stop()) },
	}, nil
}

func startZookeeper(ctx context.Context) (*service, error) {
	e, err := zkproc.Start(ctx, 3)
	if err != nil {
		return nil, err
	}
	return &service{
		url:  "zk://" + strings.Join(e.Addrs(), ","),
		pids: func() []int { return pidsOf(e.Members) },
		look: func(_ context.Context, figures map[string]float64) error {
			leader := e.Leader()
			if leader == nil {
				return errors.New("the ensemble has no leader")
			}
			addFields(figures, leader.Ask("mntr"), "\t", map[string]string{"zk_znode_count": "znodes", "zk_global_sessions": "sessions"})
			for _, m := range e.Members {
				addFields(figures, m.Ask("mntr"), "\t", map[string]string{"zk_num_alive_connections": "connections"})
			}
			return nil
		},
		fault: killInTurn(e.Members...),
		stop:  e.Stop,
	}, nil
}

func startPostgres(ctx context.Context) (*service, error) {
	s, err := pgproc.Start(ctx, "max_connections=100", "autovacuum_naptime=10s")
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", s.DSN())
	if err := errors.Join(err, tool.MakeTables(ctx, s.URL())); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	sv := &service{url: s.URL(), pids: func() []int { return processFamily(s.Pid()) }}
	sv.look = func(ctx context.Context, figures map[string]float64) error {
		return readFigures(ctx, db, figures, "DELETE FROM holdfast.lock WHERE expires < now() - interval '1 minute'", map[string]string{
			"rows":        "SELECT (SELECT count(*) FROM holdfast.lock) + (SELECT count(*) FROM holdfast.ticket)",
			"dead rows":   "SELECT coalesce(sum(n_dead_tup), 0)::float FROM pg_stat_user_tables",
			"size":        "SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::float FROM pg_stat_user_tables",
			"connections": "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'",
		})
	}
	sv.fault = killInTurn(s)
	sv.stop = func() error { return errors.Join(db.Close(), s.Stop()) }
	return sv, nil
}

// readFigures purges rows of unused names from a database, as its page advises, and reads numeric figures.
func readFigures(ctx context.Context, db *sql.DB, figures map[string]float64, purge string, queries map[string]string) error {
	if _, err := db.ExecContext(ctx, purge); err != nil {
		return err
	}
	for name, query := range queries {
		var v float64
		if err := db.QueryRowContext(ctx, query).Scan(&v); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		figures[name] = v
	}
	return nil
}

const (
	purgeSQL = "DELETE FROM holdfast_lock WHERE owner = '' AND expires < 1e6 * (%s - 60)"
	rowsSQL  = "SELECT (SELECT count(*) FROM holdfast_lock) + (SELECT count(*) FROM holdfast_ticket)"
)

func startMariaDB(ctx context.Context) (*service, error) {
	s, err := mariaproc.Start(ctx, "--innodb-flush-log-at-trx-commit=2") // commits survive a kill
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("mysql", "root@unix("+s.Socket()+")/")
	if err == nil {
		_, err = db.ExecContext(ctx, "CREATE DATABASE soak")
		err = errors.Join(err, db.Close())
	}
	url := "mysql+unix://root@" + s.Socket() + "?db=soak"
	if err == nil {
		err = tool.MakeTables(ctx, url)
	}
	if err == nil {
		db, err = sql.Open("mysql", "root@unix("+s.Socket()+")/soak")
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	db.SetMaxIdleConns(-1) // a fault would break idle connections
	return &service{
		url:  url,
		pids: func() []int { return processFamily(s.Pid()) },
		look: func(ctx context.Context, figures map[string]float64) error {
			return readFigures(ctx, db, figures, fmt.Sprintf(purgeSQL, "UNIX_TIMESTAMP()"), map[string]string{
				"rows":        rowsSQL,
				"size":        "SELECT sum(file_size) FROM information_schema.innodb_sys_tablespaces WHERE name LIKE 'soak/%'",
				"connections": "SELECT count(*) FROM information_schema.processlist",
			})
		},
		fault: killInTurn(s),
		stop:  func() error { return errors.Join(db.Close(), s.Stop()) },
	}, nil
}

func startSQLite(context.Context) (*service, error) {
	dir, err := os.MkdirTemp("", "holdfast-soak-")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "locks.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &service{
		url:  "sqlite://" + path,
		pids: func() []int { return nil },
		look: func(ctx context.Context, figures map[string]float64) error {
			for name, file := range map[string]string{"size": path, "wal": path + "-wal"} {
				if at, err := os.Stat(file); err == nil {
					figures[name] = float64(at.Size())
				}
			}
			return readFigures(ctx, db, figures, fmt.Sprintf(purgeSQL, "unixepoch()"), map[string]string{"rows": rowsSQL})
		},
		stop: func() error { return errors.Join(db.Close(), os.RemoveAll(dir)) },
	}, nil
}
