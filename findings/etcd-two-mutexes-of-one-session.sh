#!/usr/bin/env bash
# etcd's Go client: two Mutexes of one Session on one name are both locked, and unlocking one frees the other.
#
# Versions: go.etcd.io/etcd/client/v3 3.7.3 on etcd 3.4.
# Expected: package concurrency: a Mutex excludes others as a sync.Mutex does, and Lock waits while the mutex is locked.
# Seen:     the key of a Mutex consists of the name and the session's lease. The second Mutex finds that key, treats it as its own, and
#           Lock returns at once. Unlock of one of the two deletes the key, and a third client gets the lock while the other Mutex is
#           still locked.
# Locks:    a session costs a keepalive stream, so a process shares one between its goroutines. For these goroutines the lock excludes
#           nobody.
# Holdfast: queues the callers of one process itself. Each attempt has its own key on etcd, also under a shared lease.
# Output:   etcd-two-mutexes-of-one-session: as stated: first locked, second locked, a stranger locked while second works
. "$(dirname "$0")/lib.sh"
start_etcd
export ENDPOINT="127.0.0.1:$etcd_port"
seen=$(run_go go.etcd.io/etcd/client/v3@v3.7.3 <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func newSession() *concurrency.Session {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ENDPOINT")}, DialTimeout: 30 * time.Second})
	must(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	must(err)
	return session
}

// lock tries for ten seconds, and tells how it ended.
func lock(m *concurrency.Mutex) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := m.Lock(ctx); err != nil {
		return err.Error()
	}
	return "locked"
}

func main() {
	session := newSession()
	first := concurrency.NewMutex(session, "/job")
	second := concurrency.NewMutex(session, "/job")
	fmt.Printf("first %s, second %s", lock(first), lock(second))
	must(first.Unlock(context.Background()))
	fmt.Printf(", a stranger %s while second works\n", lock(concurrency.NewMutex(newSession(), "/job")))
}
GO
)
verdict 'first locked, second locked, a stranger locked while second works' "$seen" "$etcd_version, client 3.7.3"
