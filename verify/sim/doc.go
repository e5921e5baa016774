// Package sim runs many clients against many faults in virtual time: the protocol core and the twin of the scripts,
// which are the code of real programs, with a simulated network, machines and clocks.
//
// A run is a heap of events and one random number generator. It has no goroutine and no real clock, so a seed
// determines a run: the same seed gives the same history, on every machine.
//
//	go test ./sim -run TestSim -seed 4711 -v
//
// prints it. Package session decides what goes over a connection, when a client leaves it and connects again, and which
// releases are sent again, as it does in package redis. The simulation adds what package engine and package redis add:
// an id for each claim, alarms, and connections that keep the order of requests. It adds a check that excludes a node
// that has forgotten its grants, and raises the node's counter to the clock. And it adds a holder that renews, and stops
// when its trust ends.
//
// # The network
//
// Requests of one client to one node arrive in the order in which they were sent, after any time. A connection that
// breaks fails all unanswered requests on it. Requests in flight are lost, or executed up to several TTLs later, among
// the requests of the next connection. A node may believe for a while that a broken connection listens for wake-ups. A
// request may be executed twice. A suspended node executes the requests that it got when it continues.
//
// # Clocks
//
// Each clock runs as slow or as fast as it may, so that any two of them are either level or apart by all that
// quorum.Drift allows for. That matters to a lease that is trusted to its end while another client waits: half of the
// suspended clients then hold a lock, and are suspended for longer than their trust lasts.
//
// # What is checked
//
//   - P1: the 32 tokens of a grant belong to no other grant of the key
//   - P2: if a grant was committed before any node that another grant relies on had granted that one, it has the lower
//     token; and no client that inspects the lock sees an earlier grant's token as the holder's
//   - P3: no two holders trust a lock at the same time
//   - P4: a store that checks tokens loses no update
//   - P5: after the faults, every waiter is served in bounded time
//   - P7: after all clients have ended, no lock is held for longer than TTL and drift
//   - P9: in RunOutages, a lease survives outages of one node after the other
//
// If clocks jump by an hour, P1, P2 and P4 are promised: no counter expires, so no counter is lost. The checks read the
// whole history at the end and are linear in it, except for sorting. The table Classes says which of them hold under
// which faults.
package sim
