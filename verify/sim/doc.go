// Package sim runs many clients against many faults in virtual time: the protocol
// core and the twin of the scripts, which are the code that real programs run, on
// a network, on machines and with clocks that are simulated.
//
// A run is a heap of events and one random number generator. There is no
// goroutine and no real clock in it, so that a seed is a run: the same seed gives
// the same history, on every machine, and
//
//	go test ./sim -run TestSim -seed 4711 -v
//
// prints it. Package session decides what goes over a connection, when a client leaves
// it and tries again, and which releases are sent again, as it does in package redis. What
// the simulation adds is what package engine and package redis add: an id for each claim,
// alarms, connections that keep the order of requests, a check that does not let a node vote
// that has forgotten what it granted and raises its counter to the clock, and a holder that
// renews and stops when its trust is over.
//
// # The network
//
// Requests of one client to one node arrive in the order in which they were sent,
// after any time. A connection that breaks fails what is unanswered on it; what
// was in progress is lost, or is executed up to several TTLs later, among the
// requests of the next connection. A node may go on believing for a while that a
// broken connection listens for wake-ups. A request may be executed twice. A
// frozen node executes what it was sent when it wakes up.
//
// # Clocks
//
// Each clock runs as slow or as fast as it may, so that any two of them are either
// level or apart by all that quorum.Drift allows for. That matters to a lease that is
// trusted to its end while another client waits: half of the clients that are stopped
// hold a lock then, and are stopped for longer than their trust lasts.
//
// # What is checked
//
//   - P1: the 32 tokens of a grant belong to no other grant of the key
//   - P2: a grant that was committed before any node relied on by another had
//     granted that other one has the lower token, and nobody who looks at the lock takes an earlier
//     grant's token for the holder's
//   - P3: no two holders trust a lock at the same time
//   - P4: a store that checks tokens loses no update
//   - P5: when the faults are over, every waiter is served in bounded time
//   - P7: when everybody is gone, no lock stands longer than TTL and drift
//   - P9: in RunOutages, a lease lives through outages of one node after the other
//
// Where clocks jump by an hour P1, P2 and P4 are promised: no counter expires, so none is
// lost by that. The checks look at the whole history at the end and are linear in it, but for
// sorting. Which of them holds under which faults is told by the table Classes.
package sim
