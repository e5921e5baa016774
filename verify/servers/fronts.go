//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/postgres"
	"github.com/holdfast-go/holdfast/sqllock"
)

// starter starts the server of a row.
type starter = func(context.Context) (url string, stop func() error, err error)

// startBehind starts the server and then a front before it. front returns the address of the front.
func startBehind(
	ctx context.Context, h host, err error, front func(ctx context.Context, at string) (addr string, stop func() error, err error),
) (string, func() error, error) {
	_, stop, err := openHost(ctx, h, err)
	if err != nil {
		return "", nil, err
	}
	addr, stopFront, err := front(ctx, h.at)
	if err != nil {
		return "", nil, errors.Join(err, stop())
	}
	url := h.url(addr)
	return url, stopInReverse(stop, stopFront), nil
}

// startBehindHAProxy starts the server behind an HAProxy that cuts a connection after this idle time, as a mesh
// does.
func startBehindHAProxy(start starter, idle string) starter {
	return func(ctx context.Context) (string, func() error, error) {
		url, stop, err := start(ctx)
		if err != nil {
			return "", nil, err
		}
		at, address := serverAddressOf(url)
		addrs, release, err := freeAddrs(1)
		if err != nil {
			return "", nil, errors.Join(err, stop())
		}
		_, stopFront, err := startDaemon(ctx, addrs[0], map[string]string{"haproxy.cfg": fmt.Sprintf(
			"defaults\n mode tcp\n timeout connect 5s\n timeout client %[1]s\n timeout server %[1]s\nlisten front\n bind %[2]s\n server one %[3]s\n",
			idle, addrs[0], at)}, "-db", "-f", "{}/haproxy.cfg")
		if err != nil {
			release()
			return "", nil, errors.Join(err, stop())
		}
		return address(addrs[0]), stopInReverse(stop, func() error { release(); return nil }, stopFront), nil
	}
}

// serverAddressOf returns the address of the server in a URL, as HAProxy writes it, and a function that puts another
// address into the URL.
func serverAddressOf(url string) (at string, address func(string) string) {
	switch {
	case strings.HasPrefix(url, "postgres:"):
		return "unix@" + socketOf(guardedDatabase.dsn), postgresURL
	case strings.HasPrefix(url, "mysql"):
		_, socket, _ := strings.Cut(guardedDatabase.dsn, "unix(")
		socket, _, _ = strings.Cut(socket, ")")
		return "unix@" + socket, mysqlURL
	}
	return strings.TrimPrefix(url, "redis://"), redisURL
}

func startNutcracker(ctx context.Context) (string, func() error, error) {
	h, err := redisHost(ctx, &redisproc.Options{AppendOnly: "always"})
	return startBehind(ctx, h, err, func(ctx context.Context, at string) (string, func() error, error) {
		addrs, release, err := freeAddrs(2)
		if err != nil {
			return "", nil, err
		}
		_, port, _ := net.SplitHostPort(addrs[1])
		_, stop, err := startDaemon(ctx, addrs[0], map[string]string{"nutcracker.yml": fmt.Sprintf(
			"alpha:\n  listen: %s\n  redis: true\n  servers:\n   - %s:1\n", addrs[0], at)}, "-c", "{}/nutcracker.yml", "-o", "{}/nutcracker.log", "-s", port)
		return addrs[0], func() error { release(); return stop() }, err
	})
}

// startBehindPooler starts a PostgreSQL behind a PgBouncer in this mode.
func startBehindPooler(mode string) starter {
	return func(ctx context.Context) (string, func() error, error) {
		s, h, err := postgresHost(ctx)
		return startBehind(ctx, h, err, func(ctx context.Context, _ string) (string, func() error, error) { return startPooler(ctx, s, mode) })
	}
}

func startPooler(ctx context.Context, s *pgproc.Server, mode string) (string, func() error, error) {
	sessions := 20
	if mode == "session" { // each open client connection occupies a server connection
		sessions = 200
	}
	p, err := pgproc.StartPooler(ctx, s, mode, sessions)
	if err != nil {
		return "", nil, err
	}
	return socketOf(p.DSN()), p.Stop, nil
}

// startBehindTwoPoolers starts a PgBouncer behind another, both in transaction mode, as when the provider and the
// user each have one.
func startBehindTwoPoolers(ctx context.Context) (string, func() error, error) {
	s, h, err := postgresHost(ctx)
	return startBehind(ctx, h, err, func(ctx context.Context, _ string) (string, func() error, error) {
		first, stop, err := startPooler(ctx, s, "transaction")
		if err != nil {
			return "", nil, err
		}
		addrs, release, err := freeAddrs(1)
		if err == nil { // the second one runs as another user
			err = os.Chmod(strings.TrimSuffix(first, "/.s.PGSQL.5432"), 0o755)
		}
		if err != nil {
			return "", nil, errors.Join(err, stop())
		}
		_, port, _ := net.SplitHostPort(addrs[0])
		_, stopSecond, err := startDaemon(ctx, addrs[0], map[string]string{"pgbouncer.ini": fmt.Sprintf("[databases]\n* = host=%s port=5432 user=holdfast\n"+
			"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %s\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 20\n"+
			"max_client_conn = 400\n",
			strings.TrimSuffix(first, "/.s.PGSQL.5432"), port)}, "--", os.Getenv(poolerVariable), "-u", "nobody", "{}/pgbouncer.ini")
		return addrs[0], stopInReverse(stop, func() error { release(); return nil }, stopSecond), err
	})
}

// startBehindPgpool starts a PostgreSQL with a replica, and a Pgpool that distributes reads to both.
func startBehindPgpool(ctx context.Context) (string, func() error, error) {
	s, h, err := postgresHost(ctx)
	return startBehind(ctx, h, err, func(ctx context.Context, at string) (string, func() error, error) {
		r, err := s.StartReplica(ctx)
		if err != nil {
			return "", nil, err
		}
		addrs, release, err := freeAddrs(2)
		if err != nil {
			return "", nil, errors.Join(err, r.Stop())
		}
		_, port, _ := net.SplitHostPort(addrs[0])
		_, pcp, _ := net.SplitHostPort(addrs[1])
		config := fmt.Sprintf(`backend_clustering_mode = 'streaming_replication'
listen_addresses = '127.0.0.1'
port = %s
pcp_listen_addresses = '127.0.0.1'
pcp_port = %s
unix_socket_directories = '{}'
pcp_socket_dir = '{}'
pid_file_name = '{}/pid'
work_dir = '{}'
logdir = '{}'
num_init_children = 200
max_pool = 1
load_balance_mode = on
enable_pool_hba = off
sr_check_user = 'holdfast'
sr_check_database = 'postgres'
backend_hostname0 = '%s'
backend_port0 = 5432
backend_weight0 = 1
backend_hostname1 = '%s'
backend_port1 = 5432
backend_weight1 = 1
`, port, pcp, strings.TrimSuffix(at, "/.s.PGSQL.5432"), strings.TrimSuffix(socketOf(r.DSN()), "/.s.PGSQL.5432"))
		_, stop, err := startDaemon(ctx, addrs[0], map[string]string{"pgpool.conf": config, "pcp.conf": "", "pool_hba.conf": ""},
			"-n", "-f", "{}/pgpool.conf", "-F", "{}/pcp.conf", "-a", "{}/pool_hba.conf")
		if err != nil {
			release()
			return "", nil, errors.Join(err, r.Stop())
		}
		return addrs[0], stopInReverse(r.Stop, func() error { release(); return nil }, stop), nil
	})
}

// lookalike is a program that imitates a server.
type lookalike struct {
	url   string // URL of its locks; %s is its address
	ports int    // number of further ports

	// args returns the arguments of the program, and files the files to write before its start. In both, {}
	// stands for its working folder.
	args  func(host, port string) []string
	files func(host string, ports []string) map[string]string
}

// startAlike starts the program at free ports.
func startAlike(a lookalike) starter {
	return func(ctx context.Context) (string, func() error, error) {
		addrs, release, err := freeAddrs(1 + a.ports)
		if err != nil {
			return "", nil, err
		}
		host, port, _ := net.SplitHostPort(addrs[0])
		var files map[string]string
		if a.files != nil {
			var ports []string
			for _, addr := range addrs {
				_, port, _ := net.SplitHostPort(addr)
				ports = append(ports, port)
			}
			files = a.files(host, ports)
		}
		_, stop, err := startDaemon(ctx, addrs[0], files, a.args(host, port)...)
		if err != nil {
			release()
			return "", nil, err
		}
		return fmt.Sprintf(a.url, addrs[0]), stopInReverse(func() error { release(); return nil }, stop), nil
	}
}

var (
	pglite = lookalike{
		url: "postgres://postgres@%s/postgres?sslmode=disable",
		args: func(host, port string) []string {
			return []string{"--host=" + host, "--port=" + port, "--db=memory://", "--max-connections=20"}
		},
	}
	h2 = lookalike{
		url: "postgres://sa@%s/locks?sslmode=disable",
		args: func(_, port string) []string {
			return []string{"-pg", "-pgPort", port, "-ifNotExists", "-baseDir", "{}"}
		},
	}
	infinispan = lookalike{url: "redis://%s", args: func(host, port string) []string { return []string{host, port} }}
	kine       = lookalike{
		url: "etcd://%s/locks",
		args: func(host, port string) []string {
			return []string{"--listen-address=tcp://" + net.JoinHostPort(host, port), "--endpoint=sqlite://{}/db", "--metrics-bind-address=0"}
		},
	}
	redka     = lookalike{url: "redis://%s", args: func(host, port string) []string { return []string{"-h", host, "-p", port} }}
	miniredis = lookalike{url: "redis://%s", args: func(host, port string) []string { return []string{net.JoinHostPort(host, port)} }}
	mysqlInGo = lookalike{url: "mysql://root@%s/app", args: miniredis.args}
	olric     = lookalike{
		url: "redis://%s", ports: 1,
		args: func(string, string) []string { return []string{"-c", "{}/olric.yaml"} },
		files: func(host string, ports []string) map[string]string {
			return map[string]string{"olric.yaml": fmt.Sprintf("server:\n  bindAddr: %[1]s\n  bindPort: %[2]s\n  keepAlivePeriod: 300s\n  bootstrapTimeout: 5s\n"+
				"  partitionCount: 7\n  replicaCount: 1\n  writeQuorum: 1\n  readQuorum: 1\n  memberCountQuorum: 1\n  routingTablePushInterval: 1m\n"+
				"client:\n  dialTimeout: 5s\n  readTimeout: 3s\n  writeTimeout: 3s\n"+
				"logging:\n  verbosity: 1\n  level: WARN\n  output: stderr\n"+
				"memberlist:\n  environment: local\n  bindAddr: 127.0.0.2\n  bindPort: %[3]s\n  joinRetryInterval: 1ms\n  maxJoinAttempts: 1\n", host, ports[0], ports[1])}
		},
	}
)

// startGRPCProxy starts three members of etcd behind etcd's own proxy.
func startGRPCProxy(ctx context.Context) (string, func() error, error) {
	c, err := etcdproc.Start(ctx, 3)
	if err != nil {
		return "", nil, err
	}
	addrs, release, err := freeAddrs(1)
	if err != nil {
		return "", nil, errors.Join(err, c.Stop())
	}
	_, stop, err := startDaemon(ctx, addrs[0], nil, "--", os.Getenv(etcdVariable), "grpc-proxy", "start", "--endpoints="+strings.Join(c.Addrs(), ","),
		"--listen-addr="+addrs[0], "--advertise-client-url="+addrs[0], "--data-dir={}/data")
	if err != nil {
		release()
		return "", nil, errors.Join(err, c.Stop())
	}
	return "etcd://" + addrs[0] + "/locks", stopInReverse(c.Stop, func() error { release(); return nil }, stop), nil
}

// fenceDatabase checks, on a direct connection to the database, that a fence rejects an older token, and that
// writers under LockRow lose no update.
func fenceDatabase(ctx context.Context) error {
	db, err := sql.Open(guardedDatabase.driver, guardedDatabase.dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	f, err := sqlfence.New(guardedDatabase.dialect, nil)
	if err != nil {
		return err
	}
	if err := f.Create(ctx, db); err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	write := func(*sql.Tx) error { return nil }
	if err := f.Do(ctx, db, "guard", 2, "second", write); err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	if err := f.Do(ctx, db, "guard", 1, "first", write); !errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("the fence lets token 1 pass behind token 2: %v", err)
	}
	return incrementRow(ctx, db)
}

// incrementRow makes writers increment a row under LockRow.
func incrementRow(ctx context.Context, db *sql.DB) error {
	const writers, each = 4, 50
	for _, statement := range []string{
		"CREATE TABLE counted (id INT PRIMARY KEY, n INT)",
		"INSERT INTO counted VALUES (1, 0)",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	ended := make(chan error, writers)
	for range writers {
		go func() {
			for i := 0; i < each; {
				switch err := incrementOnce(ctx, db); {
				case err == nil:
					i++
				case !errors.Is(err, holdfast.ErrHeld):
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for range writers {
		if err := <-ended; err != nil {
			return fmt.Errorf("LockRow: %w", err)
		}
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT n FROM counted").Scan(&n); err != nil {
		return err
	}
	if n != writers*each {
		return fmt.Errorf("LockRow: %d of %d updates lost", writers*each-n, writers*each)
	}
	return nil
}

func incrementOnce(ctx context.Context, db *sql.DB) error {
	if guardedDatabase.dialect == sqlfence.PostgreSQL {
		return incrementOnPostgres(ctx)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := sqllock.LockRow(ctx, tx, sqllock.MySQL, "counted", "id", 1); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM counted WHERE id = 1").Scan(&n); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE counted SET n = ? WHERE id = 1", n+1); err != nil {
		return err
	}
	return tx.Commit()
}

func incrementOnPostgres(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, guardedDatabase.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	var n int
	if err := postgres.LockRow(ctx, tx, "SELECT n FROM counted WHERE id = 1").Scan(&n); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "UPDATE counted SET n = $1 WHERE id = 1", n+1); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
