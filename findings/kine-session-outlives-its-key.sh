#!/usr/bin/env bash
# kine: a session of etcd's client opens without an error, but its key expires.
#
# Versions: kine 0.17.5 over SQLite, etcd client 3.7.3.
# Expected: etcd: NewSession keeps its lease alive until it is closed, and closes Done when it cannot; a key under the lease exists as
#           long. Each lease has its own id.
# Seen:     Grant returns the TTL as the id, so two clients get the same lease; keepalive, revoke and time-to-live are not supported.
#           NewSession returns a session and no error. A key under its lease is created once, as a lock needs, and disappears after the
#           TTL, while the session is not done. (concurrency.Mutex fails there: kine does not support its transaction.)
# Locks:    code that creates a key once under the lease of a session, as a hand-written lock does, works on kine until one TTL has
#           passed. Then the next client has the lock too, and the session of the first reports nothing.
# Holdfast: Open rejects a service whose answer to Status names no cluster and no member, as kine's does.
# Output:   kine-session-outlives-its-key: as stated: one lease for both sessions, first takes the key: true, second: false; the key is gone, the session lives, second takes the key: true
. "$(dirname "$0")/lib.sh"
fetch kine-0.17.5
port=$(free_port)
launch kine "$server" --listen-address="tcp://127.0.0.1:$port" --endpoint="sqlite://$dir/db" --metrics-bind-address=0
seen=$(
  ENDPOINT=127.0.0.1:$port run_go go.etcd.io/etcd/client/v3@v3.7.3 <<'END'
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const ttl = 5

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var sessions [2]*concurrency.Session
	for i := range sessions {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ENDPOINT")}, DialTimeout: 20 * time.Second, Logger: zap.NewNop()})
		if err != nil {
			log.Fatal(err)
		}
		if sessions[i], err = concurrency.NewSession(c, concurrency.WithTTL(ttl)); err != nil {
			log.Fatal(err)
		}
	}
	first, second := sessions[0], sessions[1]
	if first.Lease() == second.Lease() {
		fmt.Print("one lease for both sessions")
	} else {
		fmt.Print("a lease each")
	}
	take := func(s *concurrency.Session) bool {
		for ctx.Err() == nil {
			r, err := s.Client().Txn(ctx).If(clientv3.Compare(clientv3.ModRevision("/job"), "=", 0)).
				Then(clientv3.OpPut("/job", "me", clientv3.WithLease(s.Lease()))).Else(clientv3.OpGet("/job")).Commit()
			if err == nil {
				return r.Succeeded
			}
			time.Sleep(100 * time.Millisecond) // the database may be busy
		}
		return false
	}
	fmt.Printf(", first takes the key: %v, second: %v", take(first), take(second))
	for range 100 {
		time.Sleep(time.Second)
		r, err := first.Client().Get(ctx, "/job")
		if err != nil || r.Count > 0 {
			continue
		}
		select {
		case <-first.Done():
			fmt.Print("; the key is gone, the session has ended")
		default:
			fmt.Print("; the key is gone, the session lives")
		}
		fmt.Printf(", second takes the key: %v\n", take(second))
		return
	}
	fmt.Println("; the key stays")
}
END
)
verdict 'one lease for both sessions, first takes the key: true, second: false; the key is gone, the session lives, second takes the key: true' "$seen" "kine 0.17.5, etcd client 3.7.3"
