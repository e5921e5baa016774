package direct

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// What the drivers have in common that keep locks in tables.

// Linger is a context for one request, which ends with limit: one that is under way when ctx ends has a
// moment to come to its end, as it would cost its connection otherwise.
func (c *Calls) Linger(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	lingering, cancel := context.WithTimeout(c.Work, limit)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(pace.LastWords(), cancel) })
	return lingering, func() {
		stop()
		cancel()
	}
}

// Owners makes names of owners that were never used.
type Owners struct {
	Client      string // the first part of each
	first, last int64
}

// NewOwners returns the owner names of a new client.
func NewOwners() *Owners {
	now := time.Now().UnixMicro()
	return &Owners{Client: rand.Text(), first: now, last: now}
}

// Next is a name.
func (o *Owners) Next(adoptable bool) string {
	owner := o.Client + "." + strconv.FormatInt(atomic.AddInt64(&o.last, 1), 36)
	if adoptable {
		owner = driver.Adoptable(owner)
	}
	return owner
}

// Count returns the number of names made.
func (o *Owners) Count() int64 { return atomic.LoadInt64(&o.last) - o.first }

// kept ends the owner of a lock that was released and stays for its MinHold. It belongs to no grant.
const kept = "!"

// Kept returns the owner of a lock that owner has released and that stays for its MinHold.
func Kept(owner string) string { return owner + kept }

// IsKept reports whether a lock with that owner was released and stays for its MinHold.
func IsKept(owner string) bool { return strings.HasSuffix(owner, kept) }

// Micros is a duration that a database gives in µs, and InMicros one that it gets.
func Micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// InMicros is d in µs, rounded up.
func InMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// AsJSON returns the description of a holder that others see.
func AsJSON(h driver.Holder) string {
	text, _ := json.Marshal(h) // strings and a number
	return string(text)
}
