// Package election keeps one leader at a time among the processes that campaign under a name,
// over any driver of package holdfast. A leader has a lease on the name, and the fencing token
// of the lease is the number of its term.
//
// # What is not promised
//
// A leader may not have noticed yet that its term is over: its process may be paused, or its
// network cut. So work under Leadership.Context, which ends by the lease's deadline, and write
// with the term, so that a storage refuses a leader that comes too late (package fence).
// Observers learn of a new leader about a second after it has begun.
//
// # Use
//
//	term, err := election.Campaign(ctx, client, "scheduler", "10.0.0.7:8080", nil)
//	if err != nil {
//		return err
//	}
//	defer term.Resign(ctx)
//	return schedule(term.Context(), term.Term())
//
// Any process can see who leads and what it proclaims, by Observe or in a Status.
//
// # Terms
//
// Terms rise, and no two leaders have the same: they are tokens of leases on one name. What is
// proclaimed is the Note of the lease, with a word in front that tells a leader from who else
// may hold the name. So it is fixed for the term, short, and shown wherever a holder is.
//
// A leader that resigns is followed by the candidate that has waited longest. It cannot name
// another one: the service decides the order of the waiters, and to pass the lease on
// by Lease.Detach and Client.Adopt would leave the Note of the old leader standing.
package election

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// MaxValue bounds the value that a leader proclaims, in bytes.
const MaxValue = 57

// mark begins the Note of a leader's lease.
const mark = "leader"

// noteFor returns the Note of a leader that proclaims value.
func noteFor(value string) string { return strings.TrimSuffix(mark+" "+value, " ") }

// Value returns what a holder proclaims, and whether it is a leader.
func Value(holder holdfast.Holder) (value string, leads bool) {
	rest, leads := strings.CutPrefix(holder.Note, mark)
	if value, ok := strings.CutPrefix(rest, " "); leads && (ok || rest == "") {
		return value, true
	}
	return "", false
}

// Leadership is one term of this process. It is safe for concurrent use.
type Leadership struct {
	lease *holdfast.Lease
	value string
}

// Campaign blocks until this process leads under name, ctx ends, opts.Wait is over, or the
// service refuses for good. Who campaigns leads in the order of arrival, where the driver has
// one, and goes on waiting through outages. value is what the leader proclaims, such as its
// address: at most MaxValue bytes of UTF-8 without control characters and blanks at the ends.
//
// opts, which may be nil, are the options of the lease, without Note, Reentrant, NoRenew and Adoptable,
// with which there would be no value or no term of its own; TTL says how soon another process leads
// after a crash, and Margin is the time that the leader's work has to stop.
// ctx bounds the campaign, not the term.
//
// Errors: as of Client.Acquire. A driver without tokens has no terms: ErrUnsupported.
func Campaign(ctx context.Context, client *holdfast.Client, name, value string, opts *holdfast.AcquireOptions) (*Leadership, error) {
	var o holdfast.AcquireOptions
	if opts != nil {
		o = *opts
	}
	switch {
	case len(value) > MaxValue:
		return nil, fmt.Errorf("%w: election: the value has %d bytes; give at most %d", holdfast.ErrInvalid, len(value), MaxValue)
	case strings.TrimSpace(value) != value:
		return nil, fmt.Errorf("%w: election: the value %q begins or ends with a blank; trim it", holdfast.ErrInvalid, value)
	case o.Note != "" || o.Reentrant || o.NoRenew || o.Adoptable:
		return nil, fmt.Errorf("%w: election: Note, Reentrant, NoRenew and Adoptable are not for a campaign; give a value in place of the Note", holdfast.ErrInvalid)
	}
	o.Note, o.Fenced = noteFor(value), true
	// A lease that can be adopted is never passed on inside the process, where the next leader would begin a term that
	// the service does not know. Where there is no adoption, two campaigns of one client with one value may look like one.
	o.Adoptable = true
	lease, err := client.Acquire(ctx, name, &o)
	if errors.Is(err, holdfast.ErrUnsupported) {
		o.Adoptable = false
		lease, err = client.Acquire(ctx, name, &o)
	}
	if err != nil {
		return nil, err
	}
	return &Leadership{lease, value}, nil
}

// Term returns the number of the term, greater than the term of each earlier leader. It is the fencing
// token of the lease: pass it to whatever the leader writes.
func (l *Leadership) Term() holdfast.Token { return l.lease.Token() }

// Value returns the value that the leader proclaims.
func (l *Leadership) Value() string { return l.value }

// Context returns the context of the lease, Lease.Context, which ends with the term.
func (l *Leadership) Context() context.Context { return l.lease.Context() }

// Lease is the leader's lease, to look at its Deadline, Owner, and so on.
func (l *Leadership) Lease() *holdfast.Lease { return l.lease }

// Resign ends the term, and the candidate that has waited longest leads. It is Lease.Release: it
// may be called again, and its error is ErrLost where the term had ended before. Let the
// leader's work end first.
func (l *Leadership) Resign(ctx context.Context) error { return l.lease.Release(ctx) }

// Leader describes the leader to others. The zero value means that nobody leads.
type Leader struct {
	Term   holdfast.Token
	Value  string          // what it proclaims
	Holder holdfast.Holder // which process it is
	Since  time.Time       // when it began its campaign, by its own clock; zero if unknown
}

// Look returns the leader under name, or the zero Leader if nobody leads, or the leader has not
// campaigned holds the name. It is the first that Observe yields, and blocks for two answers of
// the service. Errors: ErrUnavailable, ErrUnsupported, ErrInvalid, ErrClosed, ctx.Err().
func Look(ctx context.Context, client *holdfast.Client, name string) (Leader, error) {
	for leader, err := range Observe(ctx, client, name) {
		return leader, err
	}
	return Leader{}, ctx.Err()
}

// leaderOf is the leader that st shows.
func leaderOf(st holdfast.Status) Leader {
	value, leads := Value(st.Holder)
	if !st.Held || st.Kept || !leads {
		return Leader{}
	}
	holder := st.Holder
	holder.Note = ""
	return Leader{Term: st.Token, Value: value, Holder: holder, Since: st.Since}
}

// Callbacks are called by Run, in the shape of client-go's LeaderCallbacks.
type Callbacks struct {
	// OnStartedLeading is called when this process leads. ctx ends with the term, and when that
	// of Run does. The term lasts until OnStartedLeading returns.
	OnStartedLeading func(ctx context.Context, term holdfast.Token)
	// OnStoppedLeading, if set, is called after a term of this process.
	OnStoppedLeading func()
	// OnNewLeader, if set, is called with each leader that is seen, from another goroutine.
	OnNewLeader func(Leader)
}

// Run campaigns, calls back, and returns after one term, like client-go's LeaderElector. Unlike
// that it waits until OnStartedLeading has returned before it resigns, and leaves nothing
// running. It returns the error of Campaign, or ErrLost if the term ended before
// OnStartedLeading had returned, which matches ErrClosed as well where Close ended it.
func Run(ctx context.Context, client *holdfast.Client, name, value string, opts *holdfast.AcquireOptions, calls Callbacks) (err error) {
	if calls.OnStartedLeading == nil {
		panic("election: Run: OnStartedLeading is nil; give the function to call as leader")
	}
	if calls.OnNewLeader != nil {
		defer reportLeaders(ctx, client, name, calls.OnNewLeader)()
	}
	term, err := Campaign(ctx, client, name, value, opts)
	if err != nil {
		return err
	}
	if calls.OnStoppedLeading != nil {
		defer calls.OnStoppedLeading()
	}
	work, cancel := context.WithCancelCause(term.Context())
	unlink := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer func() {
		unlink()
		cancel(nil)
		end := context.Cause(term.Context())
		switch failed := term.Resign(context.WithoutCancel(ctx)); {
		case errors.Is(failed, holdfast.ErrLost): // any other leaves the lock to lapse by itself
			err = failed
		case errors.Is(end, holdfast.ErrLost): // Close has released it, which is no failure of Resign
			err = fmt.Errorf("election: %w", end)
		}
	}()
	calls.OnStartedLeading(work, term.Term())
	return nil
}
