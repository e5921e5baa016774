#!/usr/bin/env bash
# MariaDB with innodb_snapshot_isolation: an UPDATE of a row that changed since it was read rolls back the whole transaction.
#
# Versions: MariaDB 10.11 with the variable ON (its documentation: the default from 11.6 on), go-sql-driver/mysql 1.10.1.
# Expected: MariaDB's documentation of REPEATABLE READ: reads see the transaction's snapshot, and an UPDATE works on the newest version of
#           the row. An error rolls back its statement; only a deadlock (1213) rolls back more.
# Seen:     the UPDATE fails with 1020, "Record has changed since last read". The whole transaction is rolled back: a row that it had
#           inserted before is gone, although COMMIT afterwards returns no error.
# Locks:    code that reads the row of a lock and takes it if it is free, in one transaction, worked for years. After an upgrade of the
#           server it fails as soon as two clients compete, and code that retries only 1213 and 1205 returns the error.
# Holdfast: treats 1020 like a deadlock (1213) or a lock wait timeout (1205): another client was faster, and it tries again.
# Output:   mariadb-read-then-write-rolls-back: as stated: OFF: error none, COMMIT <nil>, audit rows 1; ON: error 1020, COMMIT <nil>, audit rows 0
. "$(dirname "$0")/lib.sh"
start_mariadb
export DSN=$mariadb_dsn
seen=$(run_go github.com/go-sql-driver/mysql@v1.10.1 <<'GO'
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"github.com/go-sql-driver/mysql"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := context.Background()
	db, err := sql.Open("mysql", os.Getenv("DSN"))
	must(err)
	exec := func(query string) {
		_, err := db.Exec(query)
		must(err)
	}
	exec("CREATE TABLE locks (name VARCHAR(20) PRIMARY KEY, owner VARCHAR(20)) ENGINE=InnoDB")
	exec("CREATE TABLE audit (what VARCHAR(20)) ENGINE=InnoDB")

	// compete reads a row, lets another client change it, and changes it too.
	compete := func(setting string) {
		exec("DELETE FROM audit")
		exec("REPLACE INTO locks VALUES ('job', '')")
		conn, err := db.Conn(ctx)
		must(err)
		run := func(query string) error {
			_, err := conn.ExecContext(ctx, query)
			return err
		}
		must(run("SET innodb_snapshot_isolation = " + setting))
		must(run("START TRANSACTION"))
		must(run("INSERT INTO audit VALUES ('try')"))
		var owner string
		must(conn.QueryRowContext(ctx, "SELECT owner FROM locks WHERE name = 'job'").Scan(&owner))
		exec("UPDATE locks SET owner = 'other' WHERE name = 'job'")
		number := "none"
		if err := run("UPDATE locks SET owner = 'me' WHERE name = 'job' AND owner = ''"); err != nil {
			var failed *mysql.MySQLError
			if !errors.As(err, &failed) {
				panic(err)
			}
			number = fmt.Sprint(failed.Number)
		}
		commit := run("COMMIT")
		var rows int
		must(db.QueryRow("SELECT COUNT(*) FROM audit").Scan(&rows))
		fmt.Printf("%s: error %s, COMMIT %v, audit rows %d", setting, number, commit, rows)
	}
	compete("OFF")
	fmt.Print("; ")
	compete("ON")
	fmt.Println()
}
GO
)
verdict 'OFF: error none, COMMIT <nil>, audit rows 1; ON: error 1020, COMMIT <nil>, audit rows 0' "$seen" \
  "$mariadb_version, go-sql-driver/mysql 1.10.1"
