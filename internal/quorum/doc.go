// Package quorum is the lock protocol: who holds a lock on N independent nodes,
// with which fencing token, and until when that can be relied on.
//
// # What is not promised
//
// Mutual exclusion is not unconditional. Two clients can hold one lock at the
// same time if a node's clock jumps by more than [Drift], if nodes forget what
// they granted and vote at once all the same, or if a holder goes on after its
// trust has ended. Nothing that a lock service does can stop a process that
// was paused and wakes up with its last write still to send.
//
// What stands even then are the tokens: a storage that refuses a token lower
// than one it has seen refuses every stale writer. Tokens order grants that
// followed one another. They do not order grants that overlapped in time, one
// of which was then made in error. Order between waiters is first come, first
// served as far as their clocks agree and they answer when it is their turn; it
// is no guarantee.
//
// # Two state machines
//
//   - [Claim] is a client's claim to one lock, from the first request to the
//     release. [Step] takes it from one state to the next: given an event it
//     returns the new claim and the requests to be sent.
//   - [Lock] is the lock on one node, the twin of the Lua scripts of package
//     redlock. Each of its methods is one script.
//
// Neither does I/O, reads a clock, draws random numbers or starts a goroutine;
// both are plain values that can be compared and copied. That is what lets the
// model checker in verify/model drive this very code through every order of
// messages, and what keeps package engine, which carries it out, from having
// to know the protocol. The protocol in full, with the reasons, is in
// docs/protocol.md.
//
// # Who decides what
//
// A node decides, alone and atomically,
//   - who has the lock there, and for how long
//   - which tokens go with it: [Block] of them for each grant, never fewer
//   - who waits there, and who of them is next
//
// The client decides
//   - whether a quorum, more than half of the nodes, is its own
//   - which of the nodes' tokens stands
//   - until when it trusts the answer
//
// Local time only ever shortens trust:
//
//	trust = the q-th latest of the times at which the requests to the nodes
//	        relied on were sent + TTL - Drift(TTL)
//
// It counts from the send, so that a slow answer cannot stretch it, and it is
// compared with the clock once more when the last answer that was needed has
// come. Whether it ends never depends on an answer.
//
// # States of a claim
//
//	          Start
//	            │
//	            ▼
//	┌──────────────────────────────────────────────────────────────┐
//	│ Seeking                                                      │
//	│                                                              │
//	│   ┌─────────┐   a quorum     ┌────────────┐  commit refused, │
//	│   │ asking  │───granted─────▶│ committing │──or too late ──┐ │
//	│   └─────────┘                └────────────┘                │ │
//	│     ▲     │ a quorum cannot come     │                     │ │
//	│     │     │ any more; it waits:      │ a quorum            │ │
//	│     │     │ give back, keep place    │ shares the token    │ │
//	│  wake-up, ▼                          │                     │ │
//	│  or   ┌─────────┐                    │   release, go on    │ │
//	│  timer│ resting │◀───────────────────┼── under a fresh id ─┘ │
//	│       └─────────┘                    │                       │
//	└───────────┬──────────────────────────┼───────────────────────┘
//	  Busy,     │                          │ Won
//	  Unavail-  │                          ▼
//	  able,     │             ┌──────────────────────────┐
//	  Release   │             │ Held                     │
//	            │             │ renews on all nodes      │
//	            │             └────────────┬─────────────┘
//	            │     Lost, Release        │
//	            ▼                          │
//	┌──────────────────────────────────────▼───────────────────────┐
//	│ Over                                                         │
//	│ has released everywhere; the id is never used again          │
//	└──────────────────────────────────────────────────────────────┘
//
// A claim that does not wait goes to Over where the picture says resting. A
// claim that waits but has no place in the queue, because its wake-ups are not
// heard or because only a minority knows it, polls: it rests for a time that
// doubles, and asks without queueing.
//
// # What is assumed
//
//   - Requests of one id to one node travel over one connection, in order, and
//     are answered in order; a wake-up that tells of a token comes in its place
//     among the answers. A connection that breaks fails every request that
//     was sent over it. A request may be executed long after that.
//   - A node that lost its memory does not vote until every lease that it could
//     have granted is over. Package redlock sees to it.
//   - Clocks run at the same rate, within Drift. What time it is matters only
//     to a counter of tokens that was lost: it starts anew at µs since 1970,
//     which is above all that was granted before while clocks agree to a second.
//     Where a client's and a node's are a minute apart, none starts.
//
// # What happens when something fails
//
//   - A reply is lost. Asking again is harmless: the node knows the id and
//     says what it said. An unanswered commit does not count.
//   - A node is slow or dead. Nobody waits for it once the outcome is certain;
//     partial grants are not kept for its sake longer than a few round trips.
//   - The client dies. Its locks lapse after a TTL at most. Its place in the
//     queue is skipped, as nobody listens for its wake-up any more.
//   - A wake-up is lost. Waiters ask again on their own after a second, or as
//     soon as the lock they wait for can lapse.
//   - A node forgets one lock. Renewal sets it again or, where the node knows of
//     a newer grant, reclaims it. The counter is not touched by a denial, so that
//     whoever fails does not disturb whoever holds.
//   - A renewal fails. The old trust stands, and ends when it ends. A renewal
//     that succeeds after that is a loss all the same.
//   - The lease is lost. It is released once everywhere, as a late renewal may
//     have set it again.
//
// # Rules that look odd, and the traces behind them
//
// Each is a row of the model that fails without it.
//
//   - C1. Every write of the counter prolongs its life, a hand-over and a renewal
//     too. One that kept the expiry of its creation ran out in constant use,
//     and the next grant had token 1.
//   - C2. A renewal that finds the counter lost seeds it from the clock, not from
//     its own token: others may have had higher ones since, which would be given
//     out a second time.
//   - C3. An id whose give-back stays unanswered is dead. The give-back may still
//     be executed, and would free a lock that the same id has taken again. For
//     the same reason an answer that overtakes that of a give-back counts for
//     nothing: it came over another connection.
//   - C4. A give-back by the first in the queue leaves the lock free, and a
//     wake-up from one node asks all of them. Kept for its giver the node would
//     block everybody, and a waiter that was handed a quorum whose messages did
//     not all arrive would not notice.
//   - C5. A counter does not start where the client's clock and the node's differ by
//     more than a minute: that it is missing may be the work of a jump, and one that
//     starts in another hour is above all that follow it.
//   - C6. A free lock that is waited for goes to the first in line, whoever asks.
//     A lock that lapsed or was given back is free without a hand-over, and went
//     to whose timer ran out first.
//   - C7. A wake-up grants only in its place among the node's answers. One that
//     overtakes or is overtaken may tell of a lock that was given back since.
//   - C8. A node that others have had since is reclaimed only after a quorum has kept
//     the lock by renewals that were sent when the node's counter was known, and while
//     that counter stands. What was kept before may have been another's since.
//   - C9. Adoption compares whose the lock is, and takes no free one: two would have
//     one lease, at the same time or one after the other.
//   - Commit is refused unless the id has the lock and no higher token was
//     promised. Either alone lets two grants have one token.
//   - Waiters are ordered by a stamp of their own, the same on every node. In order
//     of arrival each node has another head, and none gets a quorum.
//   - Nothing is held while waiting, and who is known to fewer than a quorum does
//     not wait at all: its entries would be heads that never come.
package quorum
