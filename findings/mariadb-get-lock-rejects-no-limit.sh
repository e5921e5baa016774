#!/usr/bin/env bash
# MariaDB: GET_LOCK with a negative timeout, "wait without a limit" on MySQL, returns NULL at once, even if the name is free.
#
# Versions: MariaDB 10.11.
# Expected: MySQL's documentation: a negative timeout means an infinite timeout. MariaDB has the function from MySQL, and both use the
#           same drivers: GET_LOCK should wait for a held name and take a free one.
# Seen:     NULL without a wait or an error, for a name that nobody holds; afterwards nobody holds it either. The server sends a warning,
#           which drivers do not show.
# Locks:    a program for MySQL reads NULL as "an error has occurred", or as 0 = held and tries again for ever. A program that only checks
#           whether the statement failed works without a lock.
# Holdfast: never calls GET_LOCK with a negative timeout, and uses it only as a queue for waiters. Its locks are rows.
# Output:   mariadb-get-lock-rejects-no-limit: as stated: GET_LOCK(free, -1) NULL, warnings 1, then held by nobody; GET_LOCK(free, 1) 1
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

func main() {
	ctx := context.Background()
	db, err := sql.Open("mysql", os.Getenv("DSN"))
	if err != nil {
		panic(err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		panic(err)
	}
	ask := func(query string) string {
		var answer sql.NullString
		if err := conn.QueryRowContext(ctx, query).Scan(&answer); err != nil {
			return err.Error()
		}
		if !answer.Valid {
			return "NULL"
		}
		return answer.String
	}
	fmt.Printf("GET_LOCK(free, -1) %s", ask("SELECT GET_LOCK('job', -1)"))
	fmt.Printf(", warnings %s", ask("SELECT @@warning_count"))
	holder := ask("SELECT IS_USED_LOCK('job')")
	if holder == "NULL" {
		holder = "nobody"
	}
	fmt.Printf(", then held by %s; GET_LOCK(free, 1) %s\n", holder, ask("SELECT GET_LOCK('job', 1)"))
}
GO
)
verdict 'GET_LOCK(free, -1) NULL, warnings 1, then held by nobody; GET_LOCK(free, 1) 1' "$seen" "$mariadb_version, go-sql-driver/mysql 1.10.1"
