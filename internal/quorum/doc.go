// Package quorum implements the lock protocol. It decides which client holds a lock on N
// independent nodes, with which fencing token, and how long the client may rely on that.
//
// # What is not promised
//
// Mutual exclusion is not unconditional. Two clients can hold one lock at the
// same time if a node's clock jumps by more than [Drift], if nodes forget their
// grants and vote at once all the same, or if a holder continues after its trust has
// ended. No lock service can stop a process that was paused and still sends its
// last write when it wakes up.
//
// Tokens protect even then: a storage that rejects any token lower than one it has
// seen rejects every stale writer. Tokens order grants that followed one another.
// They do not order grants that overlapped in time, one of them made in error.
// docs/protocol.md has the table of promises. Waiters are served first come, first
// served as far as their clocks agree and they answer when it is their turn; that
// order is no guarantee.
//
// # Two state machines
//
//   - [Claim] is a client's claim to one lock, from the first request to the
//     release. [Step] takes it from one state to the next: given an event it
//     returns the new claim and the requests to be sent. [Actions.Asks] yields
//     these in the order in which they are sent.
//   - [Lock] is the lock on one node, the twin of the Lua scripts in
//     internal/wire/scripts. Each of its methods is one script; [Lock.Execute]
//     executes a request by the method for its kind.
//
// Neither does I/O, reads a clock, draws random numbers or starts a goroutine;
// both are plain values that can be compared and copied. So the model checker
// in verify/model can drive this code through every order of messages, and
// package engine, which carries out the actions, need not know the protocol.
// The protocol in full, with the reasons, is in docs/protocol.md.
//
// # Who decides what
//
// A node decides, alone and atomically,
//   - which owner has the lock there, and for how long
//   - the tokens of each grant: always [Block] of them
//   - which owners wait there, and their order
//
// The client decides
//   - whether it has a quorum, more than half of the nodes
//   - which of the nodes' tokens counts
//   - until when it trusts the answers
//
// Local time only ever shortens trust:
//
//	trust = the q-th latest send time of the requests to the counted nodes
//	        + TTL - Drift(TTL)
//
// Trust counts from the time of sending, so that a slow answer cannot stretch it. The
// claim compares it with the clock once more after the last answer that it needed.
// Trust ends by itself, without any answer.
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
// A claim that does not wait goes to Over in place of resting. A claim that waits may
// have no place in the queue, because its client gets no wake-ups or because only a
// minority of the nodes knows it. Such a claim polls: it rests for a time that
// doubles, and asks without queueing.
//
// # What is assumed
//
//   - Requests of one id to one node travel over one connection, in order, and
//     are answered in order; a wake-up with a token arrives in its place among the
//     answers. A broken connection fails every request that was sent over it. The
//     node may still execute such a request long after that.
//   - A node that lost its memory does not vote until every lease that it could
//     have granted is over. Package redis makes sure of that.
//   - Clocks run at the same rate, within Drift. The time of day matters only to a
//     node whose counter of tokens is new or was lost: the counter starts at µs since 1970,
//     which is above all earlier tokens while clocks agree to a second and the locks that share
//     the counter are granted fewer than 31,250 times a second on average. No counter starts
//     if the clocks of the client and the node are a minute apart.
//
// # What happens when something fails
//
//   - A reply is lost. The client may repeat every request but a give-back: the node
//     knows the id. By request:
//     acquire: the node counts as silent. A claim that waits asks again, and the node
//     grants the same tokens with a fresh TTL. A claim that does not wait releases
//     everywhere if it can have no quorum any more.
//     commit: it does not count. A claim that waits and then has no quorum continues under a
//     fresh id; a claim that adopts keeps its id, asks again, and may choose another token
//     (trace C12).
//     renewal: it does not count. The client tries again while trust lasts, a tenth
//     of the TTL, and a second at most, after the failed try.
//     give-back: the id is dead, and the claim continues under a fresh one (trace C3).
//     release: package redis sends it again over the next connection. If no quorum has
//     confirmed it, the caller gets ErrUnavailable, and the lock expires at the latest. The
//     release of a caller that gives up is sent in any case (P10 in docs/protocol.md).
//   - A node is slow or dead. The claim does not wait for it once the outcome is
//     certain, and keeps partial grants because of it no longer than a few round
//     trips.
//   - The client dies. Its locks expire after a TTL at most. Nodes skip its place
//     in the queue, because it does not listen for its wake-up any more, and drop the
//     place once it has not asked for QueueKeep.
//   - A wake-up is lost. Waiters ask again on their own after a second, or as
//     soon as the lock they wait for can expire; if more than a hundred wait, each
//     asks within ten seconds, and one of them soon.
//   - A node gets its queue back from an old copy. Each place in it whose waiter has
//     left since, and whose client still lives, costs the node one hand-over.
//   - A node forgets one lock. Once a quorum has kept the lock, the holder asks that node
//     again, and the node sets the lock again if it is free there. On a single server such
//     a lock is lost. A denial does not touch the counter, so that a client that fails does
//     not disturb the holder.
//   - A renewal fails. The earlier trust counts until its end. A renewal that succeeds
//     after that does not revive the lease: it is lost.
//   - The lease is lost. The claim releases it once everywhere, because a late
//     renewal may have set it again.
//
// # Rules that look odd, and the traces behind them
//
// For each rule a row of the model fails without it.
//
//   - C1. A hand-over starts no counter, because no client's clock is at hand: if the
//     counter is lost, the lock becomes free. A counter from nothing gave token 1.
//   - C3. An id with an unanswered give-back is dead. A node may still execute the
//     give-back, and would free a lock that the same id has taken again. For the same
//     reason an answer that overtakes the answer to a give-back does not count: it came
//     over another connection.
//   - C4. A give-back by the first in the queue leaves the lock free, and after a wake-up
//     from one node the claim asks all of them. A node that kept the lock for the first
//     in its queue would block everybody, and a waiter that was handed a quorum would not
//     notice if some of the messages were lost.
//   - C5. A counter does not start if the client's clock and the node's differ by more
//     than a minute: a start in a wrong hour would be above all later ones.
//   - C6. A free lock with waiters goes to the first in the queue, even if another client
//     asks first. A lock that expired or was given back is free without a hand-over; it
//     used to go to the waiter whose timer ran out first.
//   - C7. A wake-up grants only in its place among the node's answers. Out of order, it
//     may be about a lock that was given back since.
//   - C8. A node that does not have the lock sets it again only after a quorum has kept it
//     in the same round. Otherwise the lease would continue after another lease was committed
//     with the help of a node that forgot.
//   - C9. Adoption compares the owner of the lock, and takes no free lock.
//     Otherwise two clients would have one lease, at the same time or one after
//     the other.
//   - C11. A node that may have gone back to older data has a floor, to which the first
//     requests raise the counter: its lower tokens may have been given out. No lower token
//     counts, or is committed, over a connection with that floor. (C13 is the same for
//     slots of a cluster: docs/protocol.md.)
//   - C12. An adopter whose token no quorum can share any more chooses the highest base,
//     once it has a quorum of grants. Answers to its earlier requests are void, because
//     they may be about the old token. Any other claim continues under a fresh id; an
//     adopter's fresh id would get the lock from no node.
//   - C14. No request of an owner shortens its lock. A node may execute a request after a
//     later one, over a connection that is gone; the lock would end while its holder
//     trusts it.
//   - C15. An id from which the lock was taken never gets it again. A late request, sent
//     before, would bring the lock back to a holder that still renews it.
//   - C16. Each request with a stamp gives the id its place again: the node may have
//     dropped the place.
//   - Commit is rejected unless the id has the lock there, with no higher token than the
//     committed one. Either condition alone lets two grants have one token.
//   - Waiters are ordered by their own stamp, the same on every node. In order of arrival
//     each node could have another head, and no waiter would get a quorum.
//   - A waiter holds nothing while it waits. A client known to fewer than a quorum does
//     not wait at all: it would be the head of queues that never serve it.
package quorum
