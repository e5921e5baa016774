#!/usr/bin/env bash
# pgxpool: hung connections keep their places in the pool after their statements have ended, and nobody gets a new one.
#
# Versions: pgx 5.13.0 before PostgreSQL 15.
# Expected: the documentation of pgconn: a context that ends during a statement closes the connection. A pool whose connections are closed
#           opens new ones, which the server accepts at once.
# Seen:     all connections of a pool hang, as behind a firewall that has forgotten them, and their statements end with their context
#           after 1 s. For 15 s the pool waits for each of them to close before it opens another: a statement with a deadline of 5 s fails
#           unsent, while a connection beside the pool answers. Then the pool works again.
# Locks:    a holder that renews through a pool loses its lock long after the network works again.
# Holdfast: renews on its own connection, and replaces the whole pool if none of its statements is answered.
# Output:   pgxpool-waits-for-hung-connections: as stated: hung 2 of 2; beside the pool <nil>; pool within 5 s: context deadline exceeded; pool later <nil>
. "$(dirname "$0")/lib.sh"
start_postgres
export ADDR="127.0.0.1:$postgres_port"
seen=$(run_go github.com/jackc/pgx/v5@v5.13.0 <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// link passes bytes until it hangs.
type link struct{ hangs atomic.Bool }

func (l *link) pass(to io.Writer, from io.Reader) {
	b := make([]byte, 4096)
	for {
		n, err := from.Read(b)
		for l.hangs.Load() {
			time.Sleep(time.Second)
		}
		if err != nil {
			return
		}
		to.Write(b[:n])
	}
}

func main() {
	ctx := context.Background()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	var mu sync.Mutex
	var links []*link
	go func() {
		for {
			client, err := listener.Accept()
			must(err)
			server, err := net.Dial("tcp", os.Getenv("ADDR"))
			must(err)
			l := new(link)
			mu.Lock()
			links = append(links, l)
			mu.Unlock()
			go l.pass(server, client)
			go l.pass(client, server)
		}
	}()
	url := fmt.Sprintf("postgres://test@%s/postgres?sslmode=disable", listener.Addr())
	pool, err := pgxpool.New(ctx, url+"&pool_max_conns=2")
	must(err)
	ask := func(wait time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		_, err := pool.Exec(ctx, "SELECT 1")
		return err
	}
	var all []*pgxpool.Conn
	for range 2 {
		conn, err := pool.Acquire(ctx)
		must(err)
		must(conn.Ping(ctx))
		all = append(all, conn)
	}
	for _, conn := range all {
		conn.Release()
	}
	mu.Lock()
	for _, l := range links {
		l.hangs.Store(true)
	}
	mu.Unlock()
	var asked sync.WaitGroup
	var hung atomic.Int32
	for range 2 {
		asked.Go(func() {
			if err := ask(time.Second); errors.Is(err, context.DeadlineExceeded) {
				hung.Add(1)
			}
		})
	}
	asked.Wait()
	fmt.Printf("hung %d of 2", hung.Load())
	beside, err := pgx.Connect(ctx, url)
	if err == nil {
		_, err = beside.Exec(ctx, "SELECT 1")
	}
	fmt.Printf("; beside the pool %v", err)
	err = ask(5 * time.Second)
	if errors.Is(err, context.DeadlineExceeded) {
		err = context.DeadlineExceeded
	}
	fmt.Printf("; pool within 5 s: %v; pool later %v\n", err, ask(time.Minute))
}
GO
)
verdict 'hung 2 of 2; beside the pool <nil>; pool within 5 s: context deadline exceeded; pool later <nil>' "$seen" "$postgres_version, pgx 5.13.0"
