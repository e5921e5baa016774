package holdfast

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/holder"
)

// Errors of opening a driver and of acquiring a lock. Match them with errors.Is: each method returns an *Error
// that wraps them.
var (
	// ErrHeld is returned when another holder has the lock: by TryAcquire, and by Acquire when
	// AcquireOptions.Wait has passed. The error contains a *HeldError, which names the holder.
	ErrHeld = driver.ErrHeld
	// ErrUnavailable is returned when too few nodes answer to decide anything. The error contains an
	// *UnavailableError, which names each failed node and its cause.
	ErrUnavailable = driver.ErrUnavailable
	// ErrNested is returned when ctx comes from a live lease on the same key and AcquireOptions.Reentrant is
	// not set: the call would wait for itself.
	ErrNested = errors.New("key is already held by this call chain; set Reentrant to nest, or acquire with a context that is not the lease's")
	// ErrAuth is returned by every driver for wrong credentials and missing permissions.
	ErrAuth = driver.ErrAuth
	// ErrConfig is returned by every driver when the service or the URL has to be changed before the service
	// can keep locks: missing tables, a read-only replica, servers of two different clusters. No call waits
	// for that.
	ErrConfig = driver.ErrConfig
	// ErrInvalid is returned for a bad key, option or URL. Nothing was sent to the service.
	ErrInvalid = driver.ErrInvalid
)

// Errors of a lease.
var (
	// ErrLost is returned when a lease ended before it was released, and is the cause of its context then. The
	// error also matches the reason: ErrExpired, ErrMaxHold, ErrGone or ErrClosed. If the lease expired
	// because a renewal failed, it matches the error of that renewal as well, such as ErrUnavailable. So test
	// for ErrLost first.
	ErrLost = driver.ErrLost
	// ErrExpired means that the lease reached its deadline, or came within Margin of it, without a renewal.
	ErrExpired = holder.ErrExpired
	// ErrMaxHold means that the lease reached the end of MaxHold, or came within Margin of it.
	ErrMaxHold = holder.ErrMaxHold
	// ErrGone means that the service no longer has this lease: another client has the lock, somebody
	// force-released it, or the service lost its data.
	ErrGone = holder.ErrGone
	// ErrDetached is the cause of the context of a lease after Detach. It does not
	// match ErrLost.
	ErrDetached = holder.ErrDetached
)

// Errors of any phase.
var (
	// ErrClosed is returned once the client is closed.
	ErrClosed = driver.ErrClosed
	// ErrUnsupported is returned when the driver does not support the operation.
	ErrUnsupported = driver.ErrUnsupported
	// ErrUnconfirmed is returned by ForceRelease when it has taken the lock away, but no replica of a server
	// that may fail over has confirmed that in time.
	ErrUnconfirmed = driver.ErrUnconfirmed
)

// HeldError names the holder of a lock. It matches ErrHeld.
type HeldError = driver.HeldError

// UnavailableError names each node that failed, and its cause. It matches ErrUnavailable.
type UnavailableError = driver.UnavailableError

// NodeError is the failure of one node.
type NodeError = driver.NodeError

// Error wraps every error that a method returns, with the operation and the key.
type Error struct {
	Op  string // "acquire", "release", …
	Key string // "" where the operation has none
	Err error
}

// maxShownKey bounds the bytes that an error shows of a key that is too long for a lock.
const maxShownKey = 64

// Error returns the operation, the key and the cause. A key that is too long for a lock is cut.
func (e *Error) Error() string {
	if e.Key == "" {
		return "holdfast: " + e.Op + ": " + e.Err.Error()
	}
	key := e.Key
	if len(key) > maxKey {
		key = key[:maxShownKey] + "…"
	}
	return "holdfast: " + e.Op + " " + strconv.Quote(key) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// wrapError wraps err in an *Error. Only exported methods call it, so that each error is wrapped once.
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
