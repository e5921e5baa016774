#!/usr/bin/env bash
# etcd's Go client: a Mutex stays locked after its Lock has failed by timeout, and Unlock does not free it.
#
# Versions: go.etcd.io/etcd/client/v3 3.7.3 on etcd 3.4.
# Expected: package concurrency: "If the context is canceled while trying to acquire the lock, the mutex tries to clean its stale lock
#           entry." After the error others get the lock, or Unlock frees it.
# Seen:     the answer to Lock's first request comes after the timeout. The server has written the key, Lock returns the error of the
#           context and deletes nothing, and Unlock returns ErrLockReleased. Others wait until the session ends.
# Locks:    a session lasts as long as its process. One slow answer to a caller that has left blocks every process.
# Holdfast: gives back what a failed attempt may have taken, until the server has confirmed that; the attempt has a key of its own.
# Output:   etcd-mutex-stays-after-timeout: as stated: lock: timeout; unlock: ErrLockReleased; other: timeout; session closed; other: locked
. "$(dirname "$0")/lib.sh"
start_etcd
export ENDPOINT="127.0.0.1:$etcd_port"
seen=$(run_go go.etcd.io/etcd/client/v3@v3.7.3 <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// answers is locked while the network holds answers of the server back.
var answers sync.Mutex

// proxy listens for clients of the server.
func proxy(server string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() {
		for {
			near, err := listener.Accept()
			must(err)
			far, err := net.Dial("tcp", server)
			must(err)
			go io.Copy(far, near)
			go func() {
				for data := make([]byte, 1<<16); ; {
					n, err := far.Read(data)
					if err != nil {
						near.Close()
						return
					}
					answers.Lock()
					near.Write(data[:n])
					answers.Unlock()
				}
			}()
		}
	}()
	return listener.Addr().String()
}

func newSession(endpoint string) *concurrency.Session {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 30 * time.Second})
	must(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	must(err)
	return session
}

// lock tries for some time, and tells how it ended.
func lock(m *concurrency.Mutex, limit time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := m.Lock(ctx)
	if err == nil {
		return "locked"
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return err.Error()
	}
	return "timeout"
}

func main() {
	server := os.Getenv("ENDPOINT")
	slow, other := newSession(proxy(server)), newSession(server)
	mutex := concurrency.NewMutex(slow, "/job")
	answers.Lock()
	result := lock(mutex, 3*time.Second)
	answers.Unlock()
	unlock := mutex.Unlock(context.Background())
	if errors.Is(unlock, concurrency.ErrLockReleased) {
		unlock = errors.New("ErrLockReleased")
	}
	fmt.Printf("lock: %s; unlock: %v", result, unlock)
	fmt.Printf("; other: %s", lock(concurrency.NewMutex(other, "/job"), 15*time.Second))
	must(slow.Close())
	fmt.Printf("; session closed; other: %s\n", lock(concurrency.NewMutex(other, "/job"), 15*time.Second))
}
GO
)
verdict 'lock: timeout; unlock: ErrLockReleased; other: timeout; session closed; other: locked' "$seen" "$etcd_version, client 3.7.3"
