#!/usr/bin/env bash
# pglock: a waiter sleeps for a whole lease between two attempts, and others take the lock that was released meanwhile.
#
# Versions: pglock 1.16.1 on PostgreSQL 15.
# Expected: the documentation of Acquire: it attempts to grab the lock and waits until it succeeds. When the holder releases the lock, the
#           waiter should get it.
# Seen:     a waiter tries again after the lease duration, here 20 s, whatever happens. The holder releases after 3 s; a client that comes
#           later gets the lock at once, five times, while the waiter still sleeps.
# Locks:    with leases of a minute, for work of some minutes, a free lock stays unused for a minute, and the longest waiter gets it last.
# Holdfast: a release notifies the first waiter in the queue.
# Output:   pglock-waiter-sleeps-past-release: as stated: released; latecomer acquired and released 5 times, waiter still waits; then waiter acquired
. "$(dirname "$0")/lib.sh"
start_postgres
export DSN="host=127.0.0.1 port=$postgres_port user=test dbname=postgres sslmode=disable"
seen=$(run_go cirello.io/pglock@v1.16.1 github.com/lib/pq@v1.10.9 <<'GO'
package main

import (
	"database/sql"
	"fmt"
	"os"
	"time"

	"cirello.io/pglock"
	_ "github.com/lib/pq"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func open() *pglock.Client {
	db, err := sql.Open("postgres", os.Getenv("DSN"))
	must(err)
	c, err := pglock.New(db, pglock.WithLeaseDuration(20*time.Second), pglock.WithHeartbeatFrequency(2*time.Second))
	must(err)
	return c
}

func main() {
	c := open()
	must(c.CreateTable())
	held, err := c.Acquire("job")
	must(err)
	acquired := make(chan *pglock.Lock, 1)
	go func() {
		l, err := open().Acquire("job")
		must(err)
		acquired <- l
	}()
	time.Sleep(3 * time.Second) // the waiter has looked once
	must(held.Close())
	fmt.Print("released")
	late, n := open(), 0
	for range 5 {
		l, err := late.Acquire("job", pglock.FailIfLocked())
		if err != nil {
			break
		}
		n++
		must(l.Close())
	}
	select {
	case <-acquired:
		fmt.Print("; waiter acquired before\n")
	default:
		fmt.Printf("; latecomer acquired and released %d times, waiter still waits", n)
		<-acquired
		fmt.Println("; then waiter acquired")
	}
}
GO
)
verdict 'released; latecomer acquired and released 5 times, waiter still waits; then waiter acquired' "$seen" "$postgres_version, pglock 1.16.1"
