// Package model explores every order of messages, losses and deaths that a small
// world of the lock protocol can see, and checks that no promise breaks.
//
// The world consists of the code itself: the clients are [quorum.Step], the nodes
// are the methods of [quorum.Lock], the twin of the Lua scripts. In rows about admission
// a client asks [member.Rules.Decide] before it sends to a node. Around them there
// are only queues of messages. A move delivers one message, lets one timer run out
// or makes one fault happen. Explore visits every reachable world breadth first, so
// that a shortest trace shows each violation.
//
//	go test -v ./verify/model -run TestModel
//
// prints a table of the rows and a trace for each row that must break: such a row
// has a rule of the protocol switched off, in the model and not in the code.
//
// What is left out, and why that is sound or what it costs:
//
//   - There is no time, unless a row has stages of it, in which leases and quarantines
//     end. A timer can run out whenever it runs, and an answer can be
//     given up at any moment, which is more than what can happen. Rows about
//     waiting are calm: timers run out only when none of the client's messages is
//     on its way. Validity (send times, drift, TTL) is not modelled, as it is
//     arithmetic; the unit tests of package quorum hold it.
//   - A lock expires when nobody relies on it any more, or by a fault before that.
//   - The clock of nodes that lost a counter is ahead of all counters: that is
//     the documented assumption of a lost counter. A clock that jumps is right or
//     far ahead; with the jump everything on its node expires.
//   - In some rows clients reach only two of the nodes, which keeps the row small
//     enough to be explored as a whole. Two quorums of three nodes
//     that meet in one node are the hard case.
//   - In rows about waiting the counters stand still, as no rule of the queue
//     reads them. Grants of other locks, which share the counter, are in some rows, in
//     which a fault raises the counter.
//   - Nodes that differ only in their number count as the same, ids and epochs are
//     renamed when old ones are no longer mentioned, and 128 bits of hash identify a
//     state.
package model
