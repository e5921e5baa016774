#!/usr/bin/env bash
# PgBouncer in transaction mode: LISTEN succeeds and receives nothing.
#
# Versions: PgBouncer 1.18 before PostgreSQL 15, pgx 5.13.0.
# Expected: PgBouncer's table of features: LISTEN does not work with transaction pooling. So LISTEN should fail, like other statements
#           that a mode does not support. PostgreSQL's documentation: LISTEN registers the current session.
# Seen:     LISTEN returns without an error or a notice. It registers the server's connection, which goes back to the pool. A NOTIFY
#           reaches a listener with a direct connection, and never the client that listens through PgBouncer.
# Locks:    a waiter that relies on NOTIFY alone sleeps for ever, in a set-up in which each statement succeeded.
# Holdfast: sends itself a notification when it begins to listen. If none arrives, it polls instead.
# Output:   pgbouncer-listen-is-deaf: as stated: LISTEN error <nil>, direct listener hears "free", through PgBouncer: nothing
. "$(dirname "$0")/lib.sh"
start_postgres
make_data bouncer
port=$(free_port)
cat >"$dir/bouncer/ini" <<INI
[databases]
postgres = host=127.0.0.1 port=$postgres_port user=test
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
pool_mode = transaction
INI
launch bouncer "${drop_root[@]}" pgbouncer "$dir/bouncer/ini"
await psql -h 127.0.0.1 -p "$port" -U test -c 'select 1' postgres
export DIRECT="postgres://test@127.0.0.1:$postgres_port/postgres" POOLED="postgres://test@127.0.0.1:$port/postgres"
seen=$(run_go github.com/jackc/pgx/v5@v5.13.0 <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func connect(address string) *pgx.Conn {
	config, err := pgx.ParseConfig(os.Getenv(address))
	must(err)
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(context.Background(), config)
	must(err)
	return conn
}

// hear waits for a notification.
func hear(conn *pgx.Conn, wait time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	notification, err := conn.WaitForNotification(ctx)
	if ctx.Err() != nil {
		return "nothing"
	}
	must(err)
	return fmt.Sprintf("%q", notification.Payload)
}

func main() {
	ctx := context.Background()
	direct, pooled, sender := connect("DIRECT"), connect("POOLED"), connect("DIRECT")
	_, err := direct.Exec(ctx, "LISTEN job")
	must(err)
	_, err = pooled.Exec(ctx, "LISTEN job")
	fmt.Printf("LISTEN error %v", err)
	_, err = sender.Exec(ctx, "NOTIFY job, 'free'")
	must(err)
	fmt.Printf(", direct listener hears %s", hear(direct, time.Minute))
	fmt.Printf(", through PgBouncer: %s\n", hear(pooled, 10*time.Second))
}
GO
)
verdict 'LISTEN error <nil>, direct listener hears "free", through PgBouncer: nothing' "$seen" \
  "$postgres_version, $(pgbouncer --version | head -n 1), pgx 5.13.0"
