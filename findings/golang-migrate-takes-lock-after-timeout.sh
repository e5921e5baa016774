#!/usr/bin/env bash
# golang-migrate: after "can't acquire database lock" it continues to wait, gets the lock, and keeps it.
#
# Versions: golang-migrate 4.19.1 on PostgreSQL 15.
# Expected: the documentation of LockTimeout: it bounds the wait for the lock, which then ends with ErrLockTimeout. A caller with that
#           error should hold no lock and wait for none.
# Seen:     the statement of the timed-out call is still active. When the holder unlocks, the database gives the lock to that statement,
#           and the connection keeps it as long as the Migrate is open. A third instance gets ErrLockTimeout, although no migration runs.
# Locks:    a service that logs the error and continues, as is usual when another instance migrates, stops all migrations while it runs.
# Holdfast: a wait that ends withdraws its request, and a grant that arrives too late is released.
# Output:   golang-migrate-takes-lock-after-timeout: as stated: second: timeout true; after the unlock locks 1, third: timeout true; second closed: third: no change true
. "$(dirname "$0")/lib.sh"
start_postgres
export ADDR="postgres://test@127.0.0.1:$postgres_port/postgres?sslmode=disable"
seen=$(run_go github.com/golang-migrate/migrate/v4@v4.19.1 <<'GO'
package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	_ "github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/golang-migrate/migrate/v4/source/iofs"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

var files = fstest.MapFS{"1_begin.up.sql": {Data: []byte("CREATE TABLE one (id INT)")}}

func open(wait time.Duration) *migrate.Migrate {
	source, err := iofs.New(files, ".")
	must(err)
	m, err := migrate.NewWithSourceInstance("iofs", source, os.Getenv("ADDR"))
	must(err)
	m.LockTimeout = wait
	return m
}

func main() {
	db, err := sql.Open("postgres", os.Getenv("ADDR"))
	must(err)
	m := open(time.Minute)
	must(m.Up())
	m.Close()
	first, err := database.Open(os.Getenv("ADDR")) // its lock, as another instance has it that migrates
	must(err)
	second, third := open(time.Second), open(5*time.Second) // while the lock is free: this waits for it without a limit
	must(first.Lock())
	fmt.Printf("second: timeout %v", errors.Is(second.Up(), migrate.ErrLockTimeout))
	must(first.Unlock())
	locks := 0
	for range 300 {
		must(db.QueryRow("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted").Scan(&locks))
		if locks > 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Printf("; after the unlock locks %d, third: timeout %v", locks, errors.Is(third.Up(), migrate.ErrLockTimeout))
	second.Close()
	third.Close()
	third = open(time.Minute)
	fmt.Printf("; second closed: third: no change %v\n", errors.Is(third.Up(), migrate.ErrNoChange))
}
GO
)
verdict 'second: timeout true; after the unlock locks 1, third: timeout true; second closed: third: no change true' "$seen" \
  "$postgres_version, golang-migrate 4.19.1"
