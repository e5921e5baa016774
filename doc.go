// Package holdfast gives one process at a time a lease on a name, over services
// that people already run: one Redis or Valkey, Redlock over several
// independent ones (package redlock), or nodes inside the process (package
// memory).
//
// # What is not promised
//
// A lease can be lost while its holder works: the process may be paused, the
// network cut, a node's clock set. No lock over a network can exclude that. So a
// Lease says until when it can be trusted (Lease.Deadline), ends a context at
// that moment at the latest (Lease.Context), and carries a number by which a
// storage can refuse a holder that comes too late (Lease.Token, package fence).
// Exclusion without such a storage holds while a majority of the nodes keep
// their memory, no clock jumps, and the holder stops when its context ends. The
// table of promises is in docs/protocol.md.
//
// # Use
//
//	err = client.Do(ctx, "invoice/42", nil, func(ctx context.Context, lease *holdfast.Lease) error {
//		return pay(ctx, db, lease.Token())
//	})
//
// Waiters are served in the order in which they came, inside a process and, where
// the driver can, between processes. One watchdog renews all leases until they
// are released. It renews none that was lost.
package holdfast
