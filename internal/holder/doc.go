// Package holder keeps the waits and the leases of one client: it decides which call is next in this process, when a lease is renewed and
// when it is lost. It knows no client, no semaphore and no read and write lock; it asks a driver, and reports events.
//
//	Call      one call for a lock: call.go
//	waitlist  the calls for one key, and which of the calls asks the service: waitlist.go
//	line      the calls for any place of one key: line.go
//	lock      one key, with its waitlist and its term; which call receives a term: lock.go
//	term      one grant of the service, which its users have one after the other: term.go
//	Hold      what a user has, with a context: hold.go; several that are one lease: joint.go
//	watchdog  when the Keeper looks at which term: watchdog.go; it renews in renew.go, loses in lost.go, releases in release.go
//
// A lock goes through these states:
//
//	         enter                grant
//	idle ------------> asking ------------> held --.
//	  ^                 ^  |  ^               |    | handOverLocked: the next user, without the service
//	  '-----------------'  |  '---------------'<---'
//	   answer, no waiter   |    endLocked: the lock is asked for until the release is answered
//	                       '--> asking: passInquiryLocked, the next waiter asks
//
// One mutex, Keeper.mu, guards all of it: a call enters a queue, a user hands over and a lease is lost in one step each. Methods
// that need it end in Locked; none of them unlocks it. Nothing waits while it is locked: requests, contexts to cancel and
// releases come after it, as a followUp, and events are stored.
package holder
