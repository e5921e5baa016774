package driverkit

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// RequestContext returns a context for one request, which ends after limit. If ctx ends during the request, the
// request gets a moment to finish, because ending it would cost its connection.
func (c *Calls) RequestContext(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	lingering, cancel := context.WithTimeout(c.Work, limit)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(pace.FinishTime(), cancel) })
	return lingering, func() {
		stop()
		cancel()
	}
}

// Owners creates owner ids that were never used before.
type Owners struct {
	Client      string // first part of each id
	first, last int64
}

// NewOwners returns the Owners of a new client.
func NewOwners() *Owners {
	now := time.Now().UnixMicro()
	return &Owners{Client: rand.Text(), first: now, last: now}
}

// Next returns a new id.
func (o *Owners) Next(adoptable bool) string {
	owner := quorum.NewOwner(o.Client, atomic.AddInt64(&o.last, 1), "")
	if adoptable {
		owner = driver.MarkAdoptable(owner)
	}
	return owner
}

// Count returns the number of ids so far.
func (o *Owners) Count() int64 { return atomic.LoadInt64(&o.last) - o.first }

// MinHoldID returns the owner id for a lock that owner has released and that MinHold keeps. The id belongs to no
// grant.
func MinHoldID(owner string) string { return quorum.MinHoldID(owner) }

// IsMinHoldID reports whether owner is the id of a released lock that MinHold keeps.
func IsMinHoldID(owner string) bool { return quorum.IsMinHoldID(owner) }

// FromMicros converts a database's duration from µs.
func FromMicros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// ToMicros returns d in µs, rounded up.
func ToMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// HolderJSON returns the description of a holder that others see.
func HolderJSON(h driver.Holder) string {
	text, _ := json.Marshal(h) // cannot fail: strings and a number
	return string(text)
}
