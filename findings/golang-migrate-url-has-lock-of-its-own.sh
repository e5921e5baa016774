#!/usr/bin/env bash
# golang-migrate over PostgreSQL: a URL and a *sql.DB lead to different locks for the same database.
#
# Versions: golang-migrate 4.19.1 on PostgreSQL 15.
# Expected: the page of the driver: it takes an advisory lock, so that several instances may start at once and one of them migrates.
# Seen:     the number of the lock is a hash that includes the name of the database. With a URL that name is the path, "/postgres", and
#           with a *sql.DB it is the server's answer, "postgres". While a program holds its lock by a *sql.DB, another such program times
#           out, but the command line, which takes a URL, migrates at once.
# Locks:    services migrate when they start, and operators by the command: both execute the same files at the same time.
# Holdfast: the name of a lock in one table is the lock, however a program connects; migrate takes one advisory lock of its database.
# Output:   golang-migrate-url-has-lock-of-its-own: as stated: a *sql.DB holds the lock; second *sql.DB: timeout true; URL: migrated <nil>
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
	"github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/golang-migrate/migrate/v4/source/iofs"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func byInstance() database.Driver {
	db, err := sql.Open("postgres", os.Getenv("ADDR"))
	must(err)
	d, err := postgres.WithInstance(db, &postgres.Config{})
	must(err)
	return d
}

func byURL() database.Driver {
	d, err := database.Open(os.Getenv("ADDR"))
	must(err)
	return d
}

func migrateOver(d database.Driver) error {
	source, err := iofs.New(fstest.MapFS{"1_begin.up.sql": {Data: []byte("CREATE TABLE one (id INT)")}}, ".")
	must(err)
	m, err := migrate.NewWithInstance("iofs", source, "postgres", d)
	must(err)
	m.LockTimeout = 3 * time.Second
	return m.Up()
}

func main() {
	first, second, url := byInstance(), byInstance(), byURL()
	must(first.Lock())
	fmt.Printf("a *sql.DB holds the lock; second *sql.DB: timeout %v", errors.Is(migrateOver(second), migrate.ErrLockTimeout))
	fmt.Printf("; URL: migrated %v\n", migrateOver(url))
}
GO
)
verdict 'a *sql.DB holds the lock; second *sql.DB: timeout true; URL: migrated <nil>' "$seen" "$postgres_version, golang-migrate 4.19.1"
