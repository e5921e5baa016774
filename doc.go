// Package holdfast gives one process at a time a lease on a name, over the services that people already run:
// Redis and Valkey (one server, Sentinel, Cluster, or Redlock over several independent ones), etcd, ZooKeeper,
// PostgreSQL, MySQL, MariaDB, and a file of SQLite for the processes of one machine.
//
//	package main
//
//	import (
//		"context"
//		"log"
//
//		"github.com/holdfast-go/holdfast"
//		_ "github.com/holdfast-go/holdfast/redis" // redis://, see Open for the other engines
//	)
//
//	func main() {
//		ctx := context.Background()
//		client, err := holdfast.Open(ctx, "redis://localhost:6379", nil)
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer client.Close()
//		err = client.Do(ctx, "invoice/42", nil, func(ctx context.Context, lease *holdfast.Lease) error {
//			return pay(ctx, lease.Token()) // ctx ends when the lease is lost
//		})
//		if err != nil {
//			log.Print(err) // matches holdfast.ErrLost if the lease ended before pay returned
//		}
//	}
//
// Do waits for the lock, also through an outage; TryAcquire does not wait; Acquire returns the Lease. The client
// renews each lease until it is released or lost. Waiters are served in order of arrival, inside a process and, if
// the driver can, between processes. Package memory has locks inside one process, for tests.
//
// # What is not promised
//
// A lease can be lost while its holder works: the process may be paused, the network cut, a server's clock set. No
// lock over a network can rule that out. So each Lease has a deadline until which the holder can trust it
// (Lease.Deadline), a context that ends at the deadline or earlier (Lease.Context), and a number by which a storage
// rejects a holder that comes too late (Lease.Token, package fence). Without such a storage there is one holder at
// a time as long as a majority of the servers keep their memory, no clock jumps, and the holder stops when its
// context ends. The table of promises is in docs/protocol.md.
package holdfast
