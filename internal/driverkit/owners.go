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

// Linger returns a context for one request, which ends with limit. A request that is under way when ctx ends has a
// moment to finish, as it would cost its connection otherwise.
func (c *Calls) Linger(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	lingering, cancel := context.WithTimeout(c.Work, limit)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(pace.LastWords(), cancel) })
	return lingering, func() {
		stop()
		cancel()
	}
}

// Owners makes names of owners that nobody has used before.
type Owners struct {
	Client      string // the first part of each
	first, last int64
}

// NewOwners returns the owner names of a new client.
func NewOwners() *Owners {
	now := time.Now().UnixMicro()
	return &Owners{Client: rand.Text(), first: now, last: now}
}

// Next returns a name.
func (o *Owners) Next(adoptable bool) string {
	owner := quorum.NewOwner(o.Client, atomic.AddInt64(&o.last, 1), "")
	if adoptable {
		owner = driver.Adoptable(owner)
	}
	return owner
}

// Count returns the number of names made.
func (o *Owners) Count() int64 { return atomic.LoadInt64(&o.last) - o.first }

// Kept returns the owner of a lock that owner has released and that stands for its MinHold. It belongs to no grant.
func Kept(owner string) string { return quorum.KeptID(owner) }

// IsKept reports whether a lock with that owner was released and stands for its MinHold.
func IsKept(owner string) bool { return quorum.IsKept(owner) }

// Micros converts a database's duration in µs.
func Micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// InMicros returns d in µs, rounded up.
func InMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// AsJSON returns the description of a holder that others see.
func AsJSON(h driver.Holder) string {
	text, _ := json.Marshal(h) // strings and a number
	return string(text)
}
