#!/usr/bin/env bash
# database/sql with go-sql-driver/mysql: a GET_LOCK outlives Conn.Close, and the pool passes it to the next borrower of the connection.
#
# Versions: go-sql-driver/mysql 1.10.1 on MariaDB 10.11.
# Expected: MariaDB's documentation: GET_LOCK's lock ends with RELEASE_LOCK or when the session ends. The driver implements
#           SessionResetter, which database/sql calls before it lends a connection again, so a session should begin clean.
# Seen:     Conn.Close only returns the connection to the pool, and the reset sends nothing to the server. The lock stays held although no
#           code holds it. The next borrower of that connection gets it at once (GET_LOCK counts), and no other session gets it.
# Locks:    a worker that omits RELEASE_LOCK on an error path blocks all other processes, but no goroutine of its own process.
# Holdfast: has its own table of leases on MySQL and MariaDB, with a TTL by the server's clock. The row decides, never a session lock.
# Output:   mariadb-get-lock-outlives-conn: as stated: after Close: free 0, same pool gets 1, another pool gets 0
. "$(dirname "$0")/lib.sh"
start_mariadb
export DSN=$mariadb_dsn
seen=$(run_go github.com/go-sql-driver/mysql@v1.10.1 <<'GO'
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"

	_ "github.com/go-sql-driver/mysql"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := context.Background()
	open := func() *sql.DB {
		db, err := sql.Open("mysql", os.Getenv("DSN"))
		must(err)
		return db
	}
	ask := func(db *sql.DB, query string) int {
		conn, err := db.Conn(ctx)
		must(err)
		var n int
		must(conn.QueryRowContext(ctx, query).Scan(&n))
		must(conn.Close())
		return n
	}
	worker, other := open(), open()
	if ask(worker, "SELECT GET_LOCK('job', 0)") != 1 {
		panic("not locked")
	}
	fmt.Printf("after Close: free %d", ask(other, "SELECT IS_FREE_LOCK('job')"))
	fmt.Printf(", same pool gets %d", ask(worker, "SELECT GET_LOCK('job', 0)"))
	fmt.Printf(", another pool gets %d\n", ask(other, "SELECT GET_LOCK('job', 0)"))
}
GO
)
verdict 'after Close: free 0, same pool gets 1, another pool gets 0' "$seen" "$mariadb_version, go-sql-driver/mysql 1.10.1"
