package doorbell

// Attach gives a driver of package sqllock a bell that open creates, or returns the error of open. Package
// sqllock sets this variable; only package sqlite calls it, right after creating the driver, so programs
// cannot.
//
// The owners of the driver's locks and tickets begin with client and a dot. wake makes the waiter with that
// owner poll its lock; it does not block.
var Attach func(driver any, open func(client string, wake func(owner string)) (Ringer, error)) error

// Ringer sends messages to the processes of other owners. Its methods do not block, and a message may be lost.
type Ringer interface {
	// Ring notifies a waiter that a lock was handed to it.
	Ring(owner string)
	// Forced notifies a holder that its lock was force-released, with the reason.
	Forced(owner, why string)
}
