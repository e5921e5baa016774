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
	maxTTL      = 365 * 24 * time.Hour // far from where sums of times overflow
	maxKey      = 512                  // bytes
	maxNote     = 64                   // bytes
	maxSlotNote = 48                   // so that there is room for which slot it is
)

// Options configure a Client. The zero value works.
type Options struct {
	// Holder is shown to callers that find the lock held. Default: this
	// machine's name, this process and the name of its program.
	Holder Holder
	// Hooks are called when something happens to a lease.
	Hooks Hooks
	// Logger gets leases that are lost or at risk, renewals and releases that failed,
	// changes of node state, and how many events were dropped, and in Open the warnings of the
	// driver. nil: warnings go to slog's default; a logger over slog.DiscardHandler is silent.
	Logger *slog.Logger
}

// AcquireOptions configure one call of Acquire. The zero value works.
type AcquireOptions struct {
	// TTL bounds how long the lock stays held after its holder is gone, and so how soon
	// others can go on after a crash. Default 10 s; from 10 ms to a year. A
	// driver may have narrower bounds.
	TTL time.Duration
	// Wait bounds the wait of Acquire for a held lock, or for a service that is down,
	// before it returns ErrHeld or ErrUnavailable.
	// 0: until its context ends.
	Wait time.Duration
	// MaxWaiters bounds the queue: Acquire returns ErrHeld at once if the lock is held and that
	// many others or more wait for it already. It counts the waiters of this process and, if the
	// service reports them, the first waiter of each other process. Of several processes that come
	// at the same moment, more may wait, and a waiter whose process died counts for up to 30 s.
	// 0: no bound.
	MaxWaiters int
	// NoRenew leaves out the watchdog: the lease ends TTL after it was taken.
	// Otherwise the watchdog renews it until it is released, also when TTL is set
	// (which Redisson does not do). Another client may hand over a lease without a
	// Margin with a second of trust at most; the watchdog then renews it at once.
	NoRenew bool
	// RenewEvery is the interval of renewals. 0: a third of TTL, or of what Margin leaves of it. From 5 ms to what leaves time for one renewal
	// before Margin is reached. Over more than two nodes the first renewal comes after a 32nd of the TTL.
	RenewEvery time.Duration
	// Margin is the time that work needs to stop: Lease.Context ends that much before
	// the deadline, or the end of MaxHold, unless a renewal moves it. The lease is lost
	// then, and is not renewed any more, but the lock stays until Release frees it or
	// the deadline passes. 0: Context ends at the deadline.
	Margin time.Duration
	// MaxHold bounds how long the lease lasts, against a holder that hangs: it is
	// lost then at the latest, even if it was renewed or extended. No shorter than
	// MinHold. 0: no bound.
	MaxHold time.Duration
	// MinHold keeps the lock for that long at least, even when it is released earlier:
	// for jobs that several machines start at once, by clocks that differ. Release does not wait for it; a crash ends it.
	MinHold time.Duration
	// Adoptable lets another process continue the lease, by Client.Adopt with its Key, Owner
	// and Token, after Detach or when this process is gone. Such a lease is never handed to
	// the next waiter of this process without the service. A lease without it cannot be
	// adopted, as another holder of this process may have it by then.
	Adoptable bool
	// Fenced rejects a driver whose leases carry no fencing token: Acquire returns
	// ErrUnsupported, and no lease whose Token is 0.
	Fenced bool
	// Note describes the purpose of the lease to people who find the lock held: it is in
	// Holder.Note of HeldError and Status. At most 64 bytes of UTF-8 without control
	// characters. A waiter with another Note is not handed the lock inside the process.
	Note string
	// Reentrant allows nesting: with a context that comes from a live lease of
	// the same key, Acquire returns another hold of that lease. Without it, that
	// is ErrNested. A nested hold shares the lease, so that TTL, NoRenew, RenewEvery,
	// Margin, MaxHold, MinHold and Note are left out or the same as the lease's; else
	// it is ErrInvalid.
	Reentrant bool
}

func thisProcess() Holder {
	host, _ := os.Hostname()
	return Holder{Host: host, PID: os.Getpid(), Program: filepath.Base(os.Args[0])}
}

// kind is a way to use a key that has places: as a semaphore, as a reader, as a writer. nil: as a plain lock.
type kind interface {
	holder.Kind
	// check rejects numbers of places that cannot be, and options that the kind cannot have.
	check(o *AcquireOptions, limits Limits) error
	// obtain gets a lease for a.
	obtain(c *Client, a *holder.Call) (*holder.Hold, error)
	// gave returns the number of places that the caller gave, such as "3 slots".
	gave() string
}

// checkOptions fills in defaults and rejects what cannot work.
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
	if min(o.Wait, o.MaxHold, o.MinHold, o.Margin, o.RenewEvery) < 0 {
		return o, invalidError(
			"Wait %v, MaxHold %v, MinHold %v, Margin %v, RenewEvery %v: none may be negative", o.Wait, o.MaxHold, o.MinHold, o.Margin, o.RenewEvery)
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
	if err := cmp.Or(checkKey(key), checkNote(o.Note, longest), c.checkTTL(max(o.TTL, o.MinHold), o.TTL)); err != nil {
		return o, err
	}
	call := o.forKeeper()
	return o, call.CheckRenewal(o.TTL, c.limits)
}

// forKeeper returns the options that the keeper of the leases needs.
func (o *AcquireOptions) forKeeper() holder.Options {
	return holder.Options{
		TTL: o.TTL, RenewEvery: o.RenewEvery, Margin: o.Margin, MaxHold: o.MaxHold, MinHold: o.MinHold,
		NoRenew: o.NoRenew, Adoptable: o.Adoptable, MaxWaiters: o.MaxWaiters, Note: o.Note,
	}
}

func (c *Client) checkTTL(most, least time.Duration) error {
	switch floor := max(holder.MinTTL, c.limits.MinTTL); {
	case least < floor:
		return invalidError("TTL %v is too short; give at least %v", least, floor)
	case most > maxTTL:
		return invalidError("a TTL or shortest hold of %v is too long; give at most %v, and let the lease be renewed", most, maxTTL)
	case c.limits.MaxTTL != 0 && most > c.limits.MaxTTL:
		way := c.limits.Longer
		if way != "" {
			way = " (" + way + ")"
		}
		return invalidError("a TTL or shortest hold of %v is too long; this service takes up to %v%s", most, c.limits.MaxTTL, way)
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

// checkSeen checks the key of a lock that is inspected or taken away. Other programs may have made a lock whose key no
// client here would take, and List shows it.
func checkSeen(key string) error {
	switch {
	case key == "":
		return invalidError("the key is empty")
	case strings.HasPrefix(key, reserved):
		return invalidError("keys that begin with %q are kept for Holdfast itself", reserved)
	}
	return nil
}

// reserved begins the keys of Holdfast itself.
const reserved = "holdfast:"

func checkKey(key string) error {
	switch {
	case len(key) > maxKey:
		return invalidError("the key has %d bytes; give at most %d", len(key), maxKey)
	case !utf8.ValidString(key):
		return invalidError("the key is not valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return invalidError("the key has control characters")
	}
	return checkSeen(key)
}
