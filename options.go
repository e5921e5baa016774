package holdfast

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	defaultTTL = 10 * time.Second
	leastTTL   = 10 * time.Millisecond
	mostTTL    = 365 * 24 * time.Hour // far from where sums of times overflow
	longestKey = 512                  // bytes
	closeTime  = 2 * time.Second
)

// Options configure a Client. The zero value works.
type Options struct {
	// Holder is shown to those who find the lock held. Default: this machine's
	// name, this process and the name of its program.
	Holder Holder
	// Hooks are called when something happens to a lease.
	Hooks Hooks
	// Logger gets lost leases, failed releases and changes of node state.
	// nil is silent.
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
	// NoRenew leaves out the watchdog: the lease ends TTL after it was taken.
	// Otherwise the watchdog renews it every TTL/3 until it is released, also
	// when TTL is set (which Redisson does not do); and soon after it was handed
	// over by another client, as it then begins with a second at most.
	NoRenew bool
	// MaxHold bounds how long the lease lasts, against a holder that hangs: it is
	// lost then at the latest, whatever was renewed or extended. 0: no bound.
	MaxHold time.Duration
	// MinHold is how long the lock is kept at least, even when it is released
	// earlier: for jobs that several machines start at once, by clocks that
	// differ. Release does not wait for it; a crash ends it.
	MinHold time.Duration
	// Fenced refuses a driver whose leases carry no fencing token: Acquire returns
	// ErrUnsupported, and not a lease whose Token is 0.
	Fenced bool
	// Reentrant allows nesting: with a context that comes from a live lease of
	// the same key, Acquire returns another hold of that lease. Without it, that
	// is ErrNested. A nested hold shares the lease, so that TTL, NoRenew, MaxHold
	// and MinHold are left out or the same as the lease's; else it is ErrInvalid.
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
	if err := checkKey(key); err != nil {
		return o, err
	}
	if o.TTL == 0 {
		o.TTL = max(defaultTTL, c.limits.MinTTL)
		if c.limits.MaxTTL != 0 {
			o.TTL = min(o.TTL, c.limits.MaxTTL)
		}
	}
	if o.Wait < 0 || o.MaxHold < 0 || o.MinHold < 0 {
		return o, invalid("Wait %v, MaxHold %v, MinHold %v: none may be negative", o.Wait, o.MaxHold, o.MinHold)
	}
	switch {
	case o.MinHold > 0 && !c.limits.MinHold:
		return o, unsupported("MinHold: it cannot keep a lock after its release; sleep before the release instead")
	case o.Fenced && !c.limits.Token:
		return o, unsupported("Fenced: its leases carry no fencing token, so that a storage cannot tell an old holder from a new one")
	}
	return o, c.checkTTL(max(o.TTL, o.MinHold), o.TTL)
}

func (c *Client) checkTTL(most, least time.Duration) error {
	switch floor := max(leastTTL, c.limits.MinTTL); {
	case least < floor:
		return invalid("TTL %v is too short; give at least %v", least, floor)
	case most > mostTTL:
		return invalid("TTL or MinHold %v is too long; give at most %v, and let the watchdog renew", most, mostTTL)
	case c.limits.MaxTTL != 0 && most > c.limits.MaxTTL:
		return invalid("TTL or MinHold %v is too long; this driver takes up to %v (redlock: option MaxTTL, or ?maxttl= in the URL, for all clients alike)", most, c.limits.MaxTTL)
	}
	return nil
}

func checkKey(key string) error {
	switch {
	case key == "":
		return invalid("the key is empty")
	case len(key) > longestKey:
		return invalid("the key has %d bytes; give at most %d", len(key), longestKey)
	case !utf8.ValidString(key):
		return invalid("the key is not valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return invalid("the key has control characters")
	case strings.HasPrefix(key, "holdfast:"):
		return invalid("keys that begin with %q are kept for Holdfast itself", "holdfast:")
	}
	return nil
}
