// Package model explores every order of messages, losses and crashes in a small world of the lock protocol, and checks
// that no promise breaks.
//
// The world consists of the code itself: the clients are [quorum.Step], the nodes are the methods of [quorum.Lock], the
// twin of the Lua scripts. In rows about admission a client calls [member.Rules.Decide] before it sends a request to a
// node. The model adds only queues of messages. A move delivers one message, lets one timer run out or causes one
// fault. Explore visits every reachable world breadth first, so each violation has a shortest trace.
//
//	go test -v ./verify/model -run TestModel
//
// prints a table of the rows, and a trace for each row that must break: in such a row the model, not the code, switches
// off one rule of the protocol.
//
// What the model leaves out, and why that is sound or what it costs:
//
//   - There is no time, except in rows with stages of time, in which leases and quarantines end. A timer may run out at
//     any moment while it runs, and a client may give up an answer at any moment: that is more than can really happen.
//     Rows about waiting are calm: timers run out only if no message of the client is in flight. Validity (send times,
//     drift, TTL) is arithmetic; the unit tests of package quorum check it.
//   - A lock expires when no client relies on it any more, or earlier by a fault.
//   - The clock of nodes that lost a counter is ahead of all counters: this is the documented assumption about a lost
//     counter. A clock that jumps is right or far ahead; with the jump everything on its node expires.
//   - In some rows clients reach only two of the nodes. Such a row is small enough to be explored completely. Two quorums
//     of three nodes that share one node are the hard case.
//   - In rows about waiting the counters do not change, because no rule of the queue reads them. Grants of other locks
//     share the counter; in some rows a fault raises the counter instead.
//   - Nodes that differ only in their number count as the same, ids and epochs are renamed when old ones are no longer
//     mentioned, and 128 bits of hash identify a state.
package model
