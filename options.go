package holdfast

import (
	"cmp"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/holder"
)

const (
	defaultTTL  = 10 * time.Second
	maxTTL      = 365 * 24 * time.Hour // low enough that sums of times do not overflow
	maxKey      = 512                  // bytes
	maxNote     = 64                   // bytes
	maxSlotNote = 48                   // bytes; leaves room for the number of the slot
)

// Options configure a Client. The zero value works.
type Options struct {
	// Holder is shown to callers that find the lock held. Default: the name of this machine, the id of this
	// process and the name of its program.
	Holder Holder
	// Hooks are called when something happens to a lease.
	Hooks Hooks
	// Logger logs leases that are lost or at risk, failed renewals and releases, changes of node states, the
	// number of dropped events and, in Open, the warnings of the driver. nil: warnings go to slog's default
	// logger. To silence them, use a logger with slog.DiscardHandler.
	Logger *slog.Logger
}

// AcquireOptions configure one call of Acquire. The zero value works.
type AcquireOptions struct {
	// TTL is the time after which the lock expires unless it is renewed: the longest time that others wait
	// after the holder has crashed. Default 10 s; from 10 ms to a year. A driver may have narrower bounds.
	TTL time.Duration
	// Wait bounds the time that Acquire waits for a held lock, or for a service that is down, before it
	// returns ErrHeld or ErrUnavailable. 0: until its context ends.
	Wait time.Duration
	// MaxWaiters bounds the queue: Acquire returns ErrHeld at once if the lock is held and at least this many
	// others wait for it. It counts the waiters of this process and, if the service reports them, the first
	// waiter of each other process. If several processes come at the same moment, more may wait. A waiter
	// whose process died counts for up to 30 s. 0: no bound.
	MaxWaiters int
	// NoRenew turns off the watchdog: the lease ends one TTL after it was acquired. Otherwise the watchdog
	// renews the lease until it is released, also if TTL is set (Redisson stops its watchdog then). If another
	// client hands over such a lease, it may begin with a second of trust, unless Margin is set; the watchdog
	// then renews it at once.
	NoRenew bool
	// RenewEvery is the interval of renewals. 0: a third of TTL, or of the time that Margin leaves of it. At
	// least 5 ms, and at most so long that one renewal fits before Margin. Over more than two nodes the first
	// renewal follows after a 32nd of the TTL.
	RenewEvery time.Duration
	// Margin is the time that the holder needs to stop: Lease.Context ends that much before the deadline, or
	// before the end of MaxHold, unless a renewal moves the deadline. The lease is lost then and is not
	// renewed any more, but the lock stays held until Release frees it or the deadline passes. 0: Context ends
	// at the deadline.
	Margin time.Duration
	// MaxHold bounds the life of the lease, against a holder that hangs: the lease is lost then, even if it
	// was renewed or extended. MaxHold is not shorter than MinHold. 0: no bound.
	MaxHold time.Duration
	// MinHold keeps the lock held for that long, even if it is released earlier. It is for jobs that several
	// machines start at once while their clocks differ. Release does not wait for it. After a crash the lock
	// is free after its TTL, also before MinHold ends.
	MinHold time.Duration
	// Adoptable allows another process to continue the lease: it calls Client.Adopt with the Key, Owner and
	// Token, after Detach or when this process is gone. Inside this process such a lease is never handed to
	// the next waiter, so that nobody else has the same grant.
	Adoptable bool
	// Fenced rejects a driver whose leases have no fencing token: Acquire then returns ErrUnsupported in place
	// of a lease with Token 0.
	Fenced bool
	// Note describes the purpose of the lease to people who find the lock held: HeldError and Status show it
	// as Holder.Note. At most 64 bytes of UTF-8 without control characters. Inside a process the lock is not
	// handed over to a waiter with another Note.
	Note string
	// Reentrant allows nesting: if ctx comes from a live lease on the same key, Acquire returns another hold
	// of that lease. Without Reentrant it returns ErrNested. A nested hold shares the lease: leave out TTL,
	// NoRenew, RenewEvery, Margin, MaxHold, MinHold and Note, or give the values of the lease; otherwise Acquire
	// returns ErrInvalid.
	Reentrant bool
}

func thisProcess() Holder {
	host, _ := os.Hostname()
	return Holder{Host: host, PID: os.Getpid(), Program: filepath.Base(os.Args[0])}
}

// kind is the kind of a lock with several slots: a semaphore, or the reader or writer of a read and write lock.
// nil stands for a plain lock.
type kind interface {
	holder.Kind
	// check rejects impossible numbers of places, and options that the kind does not support.
	check(o *AcquireOptions, limits Limits) error
	// obtain obtains a lease for a.
	obtain(c *Client, a *holder.Call) (*holder.Hold, error)
	// countGiven returns the number of places that the caller gave, such as "3 slots".
	countGiven() string
}

// checkOptions returns opts with defaults filled in, or an error for values that cannot work.
func (c *Client) checkOptions(key string, k kind, opts *AcquireOptions) (o AcquireOptions, err error) {
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = max(defaultTTL, c.limits.MinTTL)
		if c.limits.MaxTTL != 0 {
			o.TTL = min(o.TTL, c.limits.MaxTTL)
		}
	}
	for _, option := range []struct {
		name  string
		value time.Duration
	}{{"Wait", o.Wait}, {"MaxHold", o.MaxHold}, {"MinHold", o.MinHold}, {"Margin", o.Margin}, {"RenewEvery", o.RenewEvery}} {
		if option.value < 0 {
			return o, invalidError("%s %v is negative; give a positive duration, or 0 for the default", option.name, option.value)
		}
	}
	switch {
	case o.MaxWaiters < 0:
		return o, invalidError("MaxWaiters %d: give 1 at least, or 0 for no bound; TryAcquire does not wait at all", o.MaxWaiters)
	case o.MaxHold > 0 && o.MaxHold < o.MinHold:
		return o, invalidError("MaxHold %v is shorter than MinHold %v: the lock would not be kept for MinHold; raise MaxHold, or lower MinHold", o.MaxHold, o.MinHold)
	case o.MinHold > 0 && !c.limits.MinHold:
		return o, unsupportedError("a shortest hold: it cannot keep a lock after its release; sleep before the release instead")
	case o.Adoptable && !c.canAdopt():
		return o, errOneProcess
	case o.Fenced && !c.limits.Token:
		return o, unsupportedError("Fenced: its leases carry no fencing token, so that a storage cannot tell an old holder from a new one")
	}
	longest := maxNote
	if k != nil {
		if err := k.check(&o, c.limits); err != nil {
			return o, err
		}
		key, longest = holder.Place{Of: key, Number: k.Places() - 1}.Key(), maxSlotNote
	}
	if err := cmp.Or(checkKey(key), checkNote(o.Note, longest), c.checkTTL("TTL", o.TTL), c.checkTTL("MinHold", max(o.TTL, o.MinHold))); err != nil {
		return o, err
	}
	call := o.keeperOptions()
	return o, call.CheckRenewal(o.TTL, c.limits)
}

// keeperOptions returns the options in the form that package holder takes.
func (o *AcquireOptions) keeperOptions() holder.Options {
	return holder.Options{
		TTL: o.TTL, RenewEvery: o.RenewEvery, Margin: o.Margin, MaxHold: o.MaxHold, MinHold: o.MinHold,
		NoRenew: o.NoRenew, Adoptable: o.Adoptable, MaxWaiters: o.MaxWaiters, Note: o.Note,
	}
}

// checkTTL rejects a TTL, or the MinHold that extends it, which the service or the client does not allow. option
// is the name of the option.
func (c *Client) checkTTL(option string, d time.Duration) error {
	switch floor := max(holder.MinTTL, c.limits.MinTTL); {
	case d < floor:
		return invalidError("%s %v is too short; give at least %v", option, d, floor)
	case d > maxTTL:
		return invalidError("%s %v is too long; give at most %v, and let the lease be renewed", option, d, maxTTL)
	case c.limits.MaxTTL != 0 && d > c.limits.MaxTTL:
		way := c.limits.MaxTTLHint
		if way != "" {
			way = " (" + way + ")"
		}
		return invalidError("%s %v is too long; this service takes up to %v%s", option, d, c.limits.MaxTTL, way)
	}
	return nil
}

func checkNote(note string, longest int) error {
	switch {
	case len(note) > longest:
		return invalidError("the note has %d bytes; give at most %d", len(note), longest)
	case !utf8.ValidString(note) || strings.ContainsFunc(note, unicode.IsControl):
		return invalidError("the note %q cannot be shown; give valid UTF-8 without control characters", note)
	}
	return nil
}

// checkInspectedKey checks the key of a lock that is inspected or force-released. It allows more than checkKey: other
// programs may use keys that clients here reject, and List shows them.
func checkInspectedKey(key string) error {
	switch {
	case key == "":
		return invalidError("the key is empty")
	case strings.HasPrefix(key, reservedPrefix):
		return invalidError("keys that begin with %q are kept for Holdfast itself", reservedPrefix)
	}
	return nil
}

// reservedPrefix is the prefix of Holdfast's own keys.
const reservedPrefix = "holdfast:"

func checkKey(key string) error {
	switch {
	case len(key) > maxKey:
		return invalidError("the key has %d bytes; give at most %d", len(key), maxKey)
	case !utf8.ValidString(key):
		return invalidError("the key is not valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return invalidError("the key has control characters, such as a line end; leave them out")
	}
	return checkInspectedKey(key)
}
