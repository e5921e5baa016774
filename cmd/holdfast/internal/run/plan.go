// Package run runs a command under a lease: it waits for the lease, starts the command, renews the lease, and stops the
// command before another client can get the lock. It releases the lock after every process of the command has ended.
//
// # Timeline
//
// The run trusts the lease until D. D counts from before the last successful renewal was sent, and is earlier by the
// difference that clocks may have.
//
//	t0        renewal    renewal    TERM            KILL     D     others
//	|-----------|----------|--------|----------------|-------|------|
//	                                 <- kill-after -> <margin>
//
// A successful renewal moves the whole line. After TERM the command cannot be saved: half of it may have ended already.
// If the service reports that another client has the lock, the run sends TERM at once.
package run

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// AtOnce is a KillAfter without time: KILL follows TERM.
const AtOnce = time.Nanosecond

// Plan describes a run: the locks, the command and its rules.
type Plan struct {
	Names   []string // names of the locks, or of the semaphore
	Slots   int      // of the semaphore; 0: plain locks
	Readers int      // of the read-write lock; 0: plain locks
	Shared  bool     // acquire as one of the readers
	Path    string   // path of the program
	Args    []string // arguments, beginning with the program's name
	Backend string   // scheme of the URL, which the command may see
	Secret  bool     // HOLDFAST_BACKEND has a password, which the command must not see

	Note       string
	Nested     bool // allow a wait for a run around this one
	NoWait     bool
	Wait       time.Duration // 0: no bound
	MaxWaiters int           // maximal number of waiters before this one; 0: no bound
	Splay      time.Duration
	Otherwise  string // what to do when the backend is unavailable: fail, skip, run

	TTL         time.Duration
	Renew       time.Duration // 0: TTL/3
	KillAfter   time.Duration // 0: min(5 s, TTL/6)
	Margin      time.Duration // 0: max(100 ms, TTL/20)
	HoldAtLeast time.Duration
	MaxRuntime  time.Duration // 0: no bound

	Service pace.Service // kind of the backend

	OnLost    Policy
	OnlyChild bool // send signals to the command alone, not to its group
	Guard     bool

	Busy exitcode.Code // exit code if another process holds the lock
	Lost exitcode.Code // exit code if the lease was lost
}

// Name returns the name of the lock; of several locks, all names, separated by spaces.
func (p *Plan) Name() string { return strings.Join(p.Names, " ") }

// hasLocks reports whether the plan acquires plain locks, all together.
func (p *Plan) hasLocks() bool { return p.Slots == 0 && p.Readers == 0 }

// Locks names the locks for a sentence.
func (p *Plan) Locks() string {
	switch {
	case p.Slots > 0:
		return fmt.Sprintf("one of %d slots of %s", p.Slots, p.Name())
	case p.Shared:
		return "the lock " + p.Name() + ", as a reader"
	case p.Readers > 0:
		return "the lock " + p.Name() + ", as the writer"
	case len(p.Names) > 1:
		return "the locks " + p.Name()
	}
	return "the lock " + p.Name()
}

// Defaults sets the times that depend on the TTL, and rejects a TTL that is too short for them.
func (p *Plan) Defaults() error {
	given := *p
	terms, sum := p.setDefaultTimes()
	if sum > p.TTL {
		return exitcode.Usagef("--ttl %v is too short: %s make %v, and more with a longer TTL; give %v at least, or lower one of them",
			p.TTL, strings.Join(terms, " + "), roundForMessage(sum), minTTL(given))
	}
	return nil
}

// setDefaultTimes sets the times that depend on the TTL. It returns what must fit into the TTL, and the sum of these
// times.
func (p *Plan) setDefaultTimes() (terms []string, sum time.Duration) {
	if p.Renew == 0 {
		p.Renew = p.TTL / 3
	}
	if p.KillAfter == 0 {
		p.KillAfter = min(5*time.Second, p.TTL/6).Truncate(time.Millisecond)
	}
	if p.Margin == 0 {
		p.Margin = max(100*time.Millisecond, p.TTL/20)
	}
	parts := []struct {
		name string
		d    time.Duration
	}{
		{"--renew", p.Renew},
		{"one round trip", pace.RequestShare(p.TTL, p.Service)},
		{"--kill-after", p.killAfter()},
		{"--margin", p.Margin},
		{"drift of clocks", pace.Drift(p.TTL)},
	}
	for _, part := range parts {
		sum += part.d
		terms = append(terms, fmt.Sprintf("%s %v", part.name, roundForMessage(part.d)))
	}
	return terms, sum
}

// minTTL returns the shortest TTL, in steps of 10 ms, that has room for all times with these settings: the
// dependent times grow with it.
func minTTL(given Plan) time.Duration {
	fits := func(steps int) bool {
		p := given
		p.TTL = time.Duration(steps) * 10 * time.Millisecond
		_, sum := p.setDefaultTimes()
		return sum <= p.TTL
	}
	most := 1
	for !fits(most) {
		most *= 2
	}
	return time.Duration(sort.Search(most, fits)) * 10 * time.Millisecond
}

// killAfter returns the time for which the command may end by itself.
func (p *Plan) killAfter() time.Duration {
	if p.OnLost.Kill {
		return 0
	}
	return p.KillAfter
}

// Options returns the options for the client: the lease ends early enough for the command to end before others
// can have the lock, unless the command may continue.
func (p *Plan) Options() *holdfast.AcquireOptions {
	o := &holdfast.AcquireOptions{
		TTL: p.TTL, Wait: p.Wait, MaxWaiters: p.MaxWaiters,
		MinHold: p.HoldAtLeast, RenewEvery: p.Renew, Note: p.Note,
	}
	if !p.OnLost.Warn {
		o.Margin = p.Margin + p.killAfter()
	}
	return o
}

func roundForMessage(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}
