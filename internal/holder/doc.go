// Package holder keeps the waits and the leases of one client. It decides which call of this process is next,
// when a lease is renewed, and when a lease is lost. It sends requests to a driver and reports events. Clients,
// semaphores and read-write locks are built on it, and it does not depend on them.
//
//	Call      one call for a lock: call.go
//	waitlist  the calls for one key, and which of the calls asks the service: waitlist.go
//	line      the calls for any place of one key: line.go
//	lock      one key, with its waitlist and its term; which call receives a term: lock.go
//	term      one grant of the service, which its users have one after the other: term.go
//	Hold      one user's hold of a lock, with a context: hold.go; several holds as one lease: joint.go
//	watchdog  the times at which the Keeper checks each term: watchdog.go; renewals are in renew.go,
//	          losses in lost.go, releases in release.go
//
// A lock goes through these states:
//
//	         enter                grant
//	idle ------------> asking ------------> held --.
//	  ^                 ^  |  ^               |    | handOverLocked: the next user, without the service
//	  '-----------------'  |  '---------------'<---'
//	   answer, no waiter   |    endLocked: the lock stays in asking until the release is answered
//	                       '--> asking: passInquiryLocked, the next waiter asks
//
// One mutex, Keeper.mu, guards all of these, so that each change is one step: a call enters a queue, a user
// hands over, a lease is lost. The names of methods that need the mutex end in Locked, and none of them unlocks
// it. Nothing blocks while the mutex is locked: a followUp collects the requests, the contexts to cancel and the
// releases for the time after it, and events are stored.
package holder
