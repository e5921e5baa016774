package holder

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// MinTTL is the shortest TTL of a lease.
const MinTTL = 10 * time.Millisecond

// minRenewEvery is the shortest interval of renewals.
const minRenewEvery = 5 * time.Millisecond

// Options are the options of one call, with defaults filled in: holdfast.AcquireOptions documents each.
type Options struct {
	TTL, RenewEvery, Margin time.Duration
	MaxHold, MinHold        time.Duration
	NoRenew, Adoptable      bool
	MaxWaiters              int
	Note                    string // note of the lock, as the service shows it
}

// RenewsSoon reports whether a lease may begin with a small part of its TTL, because it is renewed at once.
func (o *Options) RenewsSoon() bool { return !o.NoRenew && o.Margin == 0 }

// renewEvery returns the interval of renewals for ttl.
func (o *Options) renewEvery(ttl time.Duration) time.Duration {
	if o.RenewEvery > 0 {
		return o.RenewEvery
	}
	return max(ttl-o.Margin, 0) / 3
}

// CheckRenewal rejects a Margin and a RenewEvery that leave no time to renew ttl.
func (o *Options) CheckRenewal(ttl time.Duration, limits driver.Limits) error {
	switch {
	case o.Margin == 0 && o.RenewEvery == 0:
		return nil
	case o.RenewEvery > 0 && o.NoRenew:
		return invalidError("RenewEvery %v and NoRenew: give one of them", o.RenewEvery)
	case o.RenewEvery > 0 && o.RenewEvery < minRenewEvery:
		return invalidError("a renewal every %v is too often; give at least %v, or 0 for a third of the TTL", o.RenewEvery, minRenewEvery)
	case o.MaxHold > 0 && o.Margin >= o.MaxHold:
		return invalidError("Margin %v leaves nothing of MaxHold %v; lower Margin or raise MaxHold", o.Margin, o.MaxHold)
	}
	service := pace.Alone
	if limits.Nodes > 0 {
		service = pace.Voters
	}
	renewal := pace.Drift(ttl) + pace.RequestShare(ttl, service) // the drift of clocks, and the time for an answer
	every := o.renewEvery(ttl)
	if room := ttl - renewal - every; o.Margin > room {
		given := fmt.Sprintf("Margin %v leaves", o.Margin)
		switch {
		case o.Margin == 0:
			given = fmt.Sprintf("RenewEvery %v leaves", o.RenewEvery)
		case o.RenewEvery > 0:
			given = fmt.Sprintf("Margin %v and RenewEvery %v leave", o.Margin, o.RenewEvery)
		}
		return invalidError("%s no time to renew a TTL of %v: a renewal may take %v; raise TTL, or lower Margin or RenewEvery", given, ttl, renewal)
	}
	return nil
}

func unsupportedError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", driver.ErrUnsupported, fmt.Sprintf(format, args...))
}

func invalidError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", driver.ErrInvalid, fmt.Sprintf(format, args...))
}
