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

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	defaultTTL      = 10 * time.Second
	leastTTL        = 10 * time.Millisecond
	mostTTL         = 365 * 24 * time.Hour // far from where sums of times overflow
	leastEvery      = 5 * time.Millisecond
	longestKey      = 512 // bytes
	longestNote     = 64  // bytes
	longestSlotNote = 48  // so that there is room for which slot it is
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

// AcquireOptions say how to take one lock. The zero value works.
type AcquireOptions struct {
	// TTL is how long the lock stands when its holder is gone, and so how soon
	// others can go on after a crash. Default 10 s; from 10 ms to a year. A
	// driver may have narrower bounds.
	TTL time.Duration
	// Wait is how long Acquire waits for a lock that is held, or for a service that
	// is down, before it returns ErrHeld or ErrUnavailable.
	// 0: until its context ends.
	Wait time.Duration
	// MaxWaiters bounds the queue: Acquire returns ErrHeld at once where the lock is held, and so
	// many others or more wait for it already. It counts those of this process and, where the
	// service tells, the first of each other process. Of several processes that come at the
	// same moment, more may wait, and a waiter whose process died counts for up to 30 s. 0: no bound.
	MaxWaiters int
	// Slots makes the key a semaphore: as many as Slots hold it at once, each with a lease on one
	// slot, Lease.Slot, which is a lock of its own. Its key, Lease.Key, is that of the semaphore with "#" and
	// the slot: no caller should take that as a lock, see AcquireAll. Tokens rise for each slot by itself, so
	// that a storage compares them for each slot. Who waits gets the first slot that is free, first
	// come first. All callers give the same Slots; Hooks.Differs hears of a holder that gave another
	// number. With a smaller one than before, the holders of the slots beyond it go on until they end.
	// From 1 to 64: more is work for a limiter of rates, or a queue. Note has 48 bytes at most then.
	// 0: a lock.
	Slots int
	// Readers makes the key a read and write lock: as many as Readers hold it at once with Shared, or one
	// without, the writer. They come in by order of arrival, so that readers who come after a writer that waits
	// wait for it. A reader's lease is on one of so many places, Lease.Slot, and its Key is that of the place,
	// as with Slots; its Token is of the order that all readers and writers have together. A writer's
	// lease is on the key itself, and with it the writer holds every place: it ends as soon as one of
	// them is lost. A reader that dies keeps a writer waiting for its TTL.
	//
	// All callers of the key give the same Readers, from 2 to 64, and none takes it as a lock or with Slots; Hooks.Differs
	// hears of a holder that gave another number. TryAcquire waits for a reader that is just coming in, for a quarter of
	// a second at most. Adoptable is ErrInvalid with Readers, and NoRenew for a writer;
	// under a lease on the key a reader cannot become a writer, nor a writer a reader.
	// Note has 48 bytes at most. 0: a lock.
	Readers int
	// Shared takes the key as one of its Readers.
	Shared bool
	// NoRenew leaves out the watchdog: the lease ends TTL after it was taken.
	// Otherwise the watchdog renews it until it is released, also when TTL is set
	// (which Redisson does not do). Another client may hand over a lease without a
	// Margin with a second of trust at most; the watchdog then renews it at once.
	NoRenew bool
	// RenewEvery is how often the watchdog renews the lease. 0: every third of TTL, or
	// of what Margin leaves of it. From 5 ms to what leaves time for one renewal
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
	// MinHold is how long the lock is kept at least, even when it is released
	// earlier: for jobs that several machines start at once, by clocks that
	// differ. Release does not wait for it; a crash ends it.
	MinHold time.Duration
	// Adoptable lets another process continue the lease, by Client.Adopt with its Key, Owner
	// and Token, after Detach or when this process is gone. Such a lease is never handed to
	// the next waiter of this process without the service. A lease without it cannot be
	// adopted, as another holder of this process may have it by then.
	Adoptable bool
	// Fenced refuses a driver whose leases carry no fencing token: Acquire returns
	// ErrUnsupported, and not a lease whose Token is 0.
	Fenced bool
	// Note says what the lease is for, to people who find the lock held: it is in
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

// check fills in defaults and refuses what cannot work.
func (c *Client) check(key string, opts *AcquireOptions) (AcquireOptions, error) {
	var o AcquireOptions
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
		return o, invalid("Wait %v, MaxHold %v, MinHold %v, Margin %v, RenewEvery %v: none may be negative", o.Wait, o.MaxHold, o.MinHold, o.Margin, o.RenewEvery)
	}
	switch {
	case o.MaxWaiters < 0:
		return o, invalid("MaxWaiters %d: give 1 at least, or 0 for no bound; TryAcquire does not wait at all", o.MaxWaiters)
	case o.Slots < 0 || o.Slots > mostSlots:
		return o, invalid("Slots %d: give 1 to %d, or 0 for a lock; for more at once, limit the rate or take a queue", o.Slots, mostSlots)
	case o.MaxHold > 0 && o.MaxHold < o.MinHold:
		return o, invalid("MaxHold %v is shorter than MinHold %v: the lock would not be kept for MinHold; raise MaxHold, or lower MinHold", o.MaxHold, o.MinHold)
	case o.MinHold > 0 && !c.limits.MinHold:
		return o, unsupported("a shortest hold: it cannot keep a lock after its release; sleep before the release instead")
	case o.Adoptable && !c.adopts():
		return o, errOneProcess
	case o.Fenced && !c.limits.Token:
		return o, unsupported("Fenced: its leases carry no fencing token, so that a storage cannot tell an old holder from a new one")
	}
	longest := longestNote
	if n := o.places(); n > 0 {
		key, longest = share{of: key, slot: n - 1}.key(), longestSlotNote
	}
	if err := cmp.Or(o.checkReaders(c.limits.NoReaders), checkKey(key), checkNote(o.Note, longest), c.checkTTL(max(o.TTL, o.MinHold), o.TTL)); err != nil {
		return o, err
	}
	return o, o.checkRenewal(o.TTL, c.limits)
}

// checkReaders refuses what a read and write lock cannot have. refusal is why the driver has none; "": it has.
func (o *AcquireOptions) checkReaders(refusal string) error {
	switch {
	case o.Readers == 0 && !o.Shared:
		return nil
	case o.Readers == 0:
		return invalid("Shared without Readers: say how many may read at once, the same number as the writers give")
	case o.Readers < 2 || o.Readers > mostSlots:
		return invalid("Readers %d: give 2 to %d, or 0 for a lock", o.Readers, mostSlots)
	case o.Slots > 0:
		return invalid("Readers %d and Slots %d: give one of them", o.Readers, o.Slots)
	case o.Adoptable:
		return invalid("Adoptable with Readers: a reader or a writer has leases on several locks, and Adopt takes over one")
	case o.NoRenew && !o.Shared:
		return invalid("NoRenew for a writer: its first lease would end while readers are waited for; leave it out, and bound the lease by MaxHold")
	case refusal != "":
		return unsupported("Readers %d: %s", o.Readers, refusal)
	}
	return nil
}

// checkRenewal rejects a Margin and a RenewEvery that leave no time to renew ttl.
func (o *AcquireOptions) checkRenewal(ttl time.Duration, limits driver.Limits) error {
	switch {
	case o.Margin == 0 && o.RenewEvery == 0:
		return nil
	case o.RenewEvery > 0 && o.NoRenew:
		return invalid("RenewEvery %v and NoRenew: give one of them", o.RenewEvery)
	case o.RenewEvery > 0 && o.RenewEvery < leastEvery:
		return invalid("a renewal every %v is too often; give at least %v, or 0 for a third of the TTL", o.RenewEvery, leastEvery)
	case o.MaxHold > 0 && o.Margin >= o.MaxHold:
		return invalid("Margin %v leaves nothing of MaxHold %v; lower Margin or raise MaxHold", o.Margin, o.MaxHold)
	}
	service := pace.Alone
	if limits.Nodes > 0 {
		service = pace.Voters
	}
	renewal := ttl/100 + 2*time.Millisecond + pace.RequestShare(ttl, service) // the drift of clocks, and the time to answer
	every := o.renewEvery(ttl)
	if most := ttl - renewal - every; o.Margin > most {
		return invalid("a margin of %v and a renewal every %v leave no time to renew a TTL of %v, which takes up to %v; raise the TTL, or lower one of them",
			o.Margin, every, ttl, renewal)
	}
	return nil
}

// renewEvery is how often a lease of ttl is renewed.
func (o *AcquireOptions) renewEvery(ttl time.Duration) time.Duration {
	if o.RenewEvery > 0 {
		return o.RenewEvery
	}
	return max(ttl-o.Margin, 0) / 3
}

// renewsSoon says whether a lease may begin with a small part of its TTL.
func (o *AcquireOptions) renewsSoon() bool { return !o.NoRenew && o.Margin == 0 }

func (c *Client) checkTTL(most, least time.Duration) error {
	switch floor := max(leastTTL, c.limits.MinTTL); {
	case least < floor:
		return invalid("TTL %v is too short; give at least %v", least, floor)
	case most > mostTTL:
		return invalid("a TTL or shortest hold of %v is too long; give at most %v, and let the lease be renewed", most, mostTTL)
	case c.limits.MaxTTL != 0 && most > c.limits.MaxTTL:
		way := c.limits.Longer
		if way != "" {
			way = " (" + way + ")"
		}
		return invalid("a TTL or shortest hold of %v is too long; this service takes up to %v%s", most, c.limits.MaxTTL, way)
	}
	return nil
}

func checkNote(note string, longest int) error {
	switch {
	case len(note) > longest:
		return invalid("the note has %d bytes; give at most %d", len(note), longest)
	case !utf8.ValidString(note) || strings.ContainsFunc(note, unicode.IsControl):
		return invalid("the note %q cannot be shown; give valid UTF-8 without control characters", note)
	}
	return nil
}

// checkSeen checks the key of a lock that is looked at, or taken away. Other programs may have
// made one that no client here would take, and List shows it.
func checkSeen(key string) error {
	switch {
	case key == "":
		return invalid("the key is empty")
	case strings.HasPrefix(key, reserved):
		return invalid("keys that begin with %q are kept for Holdfast itself", reserved)
	}
	return nil
}

// reserved begins the keys of Holdfast itself.
const reserved = "holdfast:"

func checkKey(key string) error {
	switch {
	case len(key) > longestKey:
		return invalid("the key has %d bytes; give at most %d", len(key), longestKey)
	case !utf8.ValidString(key):
		return invalid("the key is not valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return invalid("the key has control characters")
	}
	return checkSeen(key)
}
