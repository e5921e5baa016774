package doorbell

// Attach gives a driver of package sqllock, which sets this variable, a bell that open makes, or returns the error of open. Only
// package sqlite calls it, right after it has made the driver: the bell is no business of programs.
//
// Client begins the owners of the driver's locks and tickets, before a dot. Wake has the waiter of this driver with that owner
// look at its lock; it does not block.
var Attach func(driver any, open func(client string, wake func(owner string)) (Ringer, error)) error

// Ringer reaches the processes that owners of locks and tickets belong to. Its methods do not block, and what they send may be lost.
type Ringer interface {
	// Ring has a waiter that a lock was handed to look at it.
	Ring(owner string)
	// Forced tells a holder that its lock was taken away, and why.
	Forced(owner, why string)
}
