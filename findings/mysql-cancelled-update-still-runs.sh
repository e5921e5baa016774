#!/usr/bin/env bash
# go-sql-driver/mysql: an UPDATE whose context was cancelled is executed later.
#
# Versions: go-sql-driver/mysql 1.10.1 on MariaDB 10.11.
# Expected: database/sql's documentation: the driver uses the context to cancel the statement, and ExecContext returns its error. So a
#           caller that gets "context canceled" assumes that nothing more happens.
# Seen:     the driver closes its connection and sends no KILL. The server notices a closed connection only when it next reads from it:
#           the UPDATE continues to wait for the row lock, gets it when the other transaction ends, and commits.
# Locks:    "UPDATE locks SET owner = me WHERE the row is free", ended by a deadline, takes the lock afterwards, and nobody uses it.
# Holdfast: an owner id is never used again, and sqllock releases in the background what the server may still grant to a cancelled caller.
# Output:   mysql-cancelled-update-still-runs: as stated: error "context canceled", owner afterwards "late"
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
	"time"

	_ "github.com/go-sql-driver/mysql"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	db, err := sql.Open("mysql", os.Getenv("DSN"))
	must(err)
	exec := func(query string) {
		_, err := db.Exec(query)
		must(err)
	}
	exec("CREATE TABLE locks (name VARCHAR(20) PRIMARY KEY, owner VARCHAR(20)) ENGINE=InnoDB")
	exec("INSERT INTO locks VALUES ('job', '')")

	tx, err := db.Begin()
	must(err)
	_, err = tx.Exec("SELECT owner FROM locks WHERE name = 'job' FOR UPDATE")
	must(err)

	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() {
		_, err := db.ExecContext(ctx, "UPDATE locks SET owner = 'late' WHERE name = 'job' AND owner = ''")
		result <- err
	}()
	waiting := func() bool {
		var n int
		must(tx.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE locks%'").Scan(&n))
		return n > 0
	}
	for !waiting() {
		time.Sleep(50 * time.Millisecond)
	}
	cancel()
	cancelled := <-result
	time.Sleep(2 * time.Second) // time for a server that would notice
	must(tx.Rollback())

	var owner string
	for range 50 { // ten seconds at most
		must(db.QueryRow("SELECT owner FROM locks WHERE name = 'job'").Scan(&owner))
		if owner != "" {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	fmt.Printf("error %q, owner afterwards %q\n", cancelled, owner)
}
GO
)
verdict 'error "context canceled", owner afterwards "late"' "$seen" "$mariadb_version, go-sql-driver/mysql 1.10.1"
