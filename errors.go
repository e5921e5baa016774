package holdfast

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/holder"
)

// Errors of opening a driver and of acquiring. They are matched with errors.Is: what a method returns
// is an *Error around them.
var (
	// ErrHeld is returned when another holder has the lock: by TryAcquire, and
	// by Acquire when AcquireOptions.Wait is over. The error is a *HeldError,
	// which names the holder.
	ErrHeld = driver.ErrHeld
	// ErrUnavailable is returned when too few nodes answer to decide anything.
	// The error is an *UnavailableError, which names each node and its cause.
	ErrUnavailable = driver.ErrUnavailable
	// ErrNested is returned when the context comes from a live lease of the
	// same key and AcquireOptions.Reentrant is not set: waiting would never end.
	ErrNested = errors.New("key is already held by this call chain; set Reentrant to nest, or acquire with a context that is not the lease's")
	// ErrAuth is returned for wrong credentials and for missing rights, by every driver.
	ErrAuth = driver.ErrAuth
	// ErrConfig is returned by every driver when somebody has to change the service, or the URL,
	// before it can keep locks: missing tables, a replica, servers of two clusters. No call waits
	// for it.
	ErrConfig = driver.ErrConfig
	// ErrInvalid is returned for a bad key, option or URL; nothing was sent.
	ErrInvalid = driver.ErrInvalid
)

// Errors of a lease.
var (
	// ErrLost is returned, and is the cause of the lease's context, when the
	// lease ended before it was released. The error also matches what ended it:
	// ErrExpired, ErrMaxHold, ErrGone or ErrClosed. One that has expired also matches
	// the error of its last renewal, if that failed, such as ErrUnavailable: so ask
	// for ErrLost first.
	ErrLost = driver.ErrLost
	// ErrExpired means that the deadline was reached, or Margin before it.
	ErrExpired = holder.ErrExpired
	// ErrMaxHold means that the end of MaxHold was reached, or Margin before it.
	ErrMaxHold = holder.ErrMaxHold
	// ErrGone means that the service has given the lock to another client, was
	// forced to release it, or has forgotten it.
	ErrGone = holder.ErrGone
	// ErrDetached is the cause of the context of a lease after Detach. It does not
	// match ErrLost.
	ErrDetached = holder.ErrDetached
)

// Errors of any phase.
var (
	// ErrClosed is returned once the client is closed.
	ErrClosed = driver.ErrClosed
	// ErrUnsupported is returned when the driver cannot do what is asked.
	ErrUnsupported = driver.ErrUnsupported
	// ErrUnconfirmed is returned by ForceRelease when it has taken the lock away, and no
	// replica of a server that may fail over has confirmed that in time.
	ErrUnconfirmed = driver.ErrUnconfirmed
)

// HeldError names the holder of a lock. It matches ErrHeld.
type HeldError = driver.HeldError

// UnavailableError names the nodes that failed, and why. It matches ErrUnavailable.
type UnavailableError = driver.UnavailableError

// NodeError is the failure of one node.
type NodeError = driver.NodeError

// Error is the type of the error of every method: the operation, the key and the cause.
type Error struct {
	Op  string // "acquire", "release", …
	Key string // "" where the operation has none
	Err error
}

// Error gives the operation, the key and the cause.
func (e *Error) Error() string {
	if e.Key == "" {
		return "holdfast: " + e.Op + ": " + e.Err.Error()
	}
	return "holdfast: " + e.Op + " " + strconv.Quote(e.Key) + ": " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// wrapError puts err into an *Error. Only exported methods call it, so that an error is
// wrapped once.
func wrapError(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Key: key, Err: err}
}

func unsupportedError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

func invalidError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
