// Package election elects one leader at a time among the processes that campaign under the same name, over any
// driver of package holdfast. A leader has a lease on the name, and the fencing token of the lease is the
// number of its term.
//
// # What is not promised
//
// A leader may not know yet that its term has ended: its process may be paused, or its network cut. So work
// under Leadership.Context, which ends by the lease's deadline, and pass the term to the storage, which then
// rejects late writes of an old leader (package fence). Observers learn of a new leader about a second after
// it has begun.
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
// Any process can see the leader and the value that it proclaims, by Observe or in a Status.
//
// # Terms
//
// Terms rise, and no two leaders have the same term, because they are tokens of leases on one name. The value
// is stored in the Note of the lease, after a word that distinguishes a leader from other holders of the name.
// So the value cannot change during a term, is short, and is shown wherever the holder is shown.
//
// When a leader resigns, the candidate that has waited longest leads next. A leader cannot choose its
// successor: the service decides the order of the waiters. If it passed the lease on by Lease.Detach and
// Client.Adopt, the Note would still name the old leader.
package election

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// MaxValueBytes bounds a leader's value, in bytes.
const MaxValueBytes = 57

// leaderMark begins the Note of each leader's lease.
const leaderMark = "leader"

// noteFor returns the Note of a leader that proclaims value.
func noteFor(value string) string { return strings.TrimSuffix(leaderMark+" "+value, " ") }

// Value returns the value that a holder proclaims, and whether the holder is a leader.
func Value(holder holdfast.Holder) (value string, leads bool) {
	rest, leads := strings.CutPrefix(holder.Note, leaderMark)
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

// Campaign blocks until this process leads under name, ctx ends, opts.Wait has passed, or the service rejects
// it for good. Candidates lead in the order of arrival if the driver keeps one, and wait through outages.
// value, which the leader proclaims, is for example its address: at most MaxValueBytes bytes of UTF-8 without control
// characters and without blanks at the ends.
//
// opts are the options of the lease, and may be nil. Note, Reentrant, NoRenew and Adoptable must not be set:
// the term could have no value or no lease of its own. TTL bounds the time until another process leads after a
// crash. Margin is the time that the leader's work has to stop. ctx bounds the campaign, not the term.
//
// Errors: the errors of Client.Acquire. A driver without tokens has no terms: ErrUnsupported.
func Campaign(ctx context.Context, client *holdfast.Client, name, value string, opts *holdfast.AcquireOptions) (*Leadership, error) {
	var o holdfast.AcquireOptions
	if opts != nil {
		o = *opts
	}
	switch {
	case len(value) > MaxValueBytes:
		return nil, invalidCampaign(name, "the value has %d bytes; give at most %d", len(value), MaxValueBytes)
	case strings.TrimSpace(value) != value:
		return nil, invalidCampaign(name, "the value %q begins or ends with a blank; trim it", value)
	case o.Note != "" || o.Reentrant || o.NoRenew || o.Adoptable:
		return nil, invalidCampaign(name, "Note, Reentrant, NoRenew and Adoptable are not for a campaign; give a value in place of the Note")
	}
	o.Note, o.Fenced = noteFor(value), true
	// A lease that can be adopted is never handed over inside the process, which would begin a term that the
	// service does not know. If the driver has no adoption, two campaigns of one client with the same value
	// may look like one.
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

// invalidCampaign returns the error for arguments of Campaign that cannot work.
func invalidCampaign(name, format string, args ...any) error {
	err := fmt.Errorf("%w: %s", holdfast.ErrInvalid, fmt.Sprintf(format, args...))
	return &holdfast.Error{Op: "campaign", Key: name, Err: err}
}

// Term returns the number of the term, greater than the term of each earlier leader. It is the fencing token
// of the lease: pass it to each storage that the leader writes to.
func (l *Leadership) Term() holdfast.Token { return l.lease.Token() }

// Value returns the value that the leader proclaims.
func (l *Leadership) Value() string { return l.value }

// Context returns the context of the lease, which ends with the term.
func (l *Leadership) Context() context.Context { return l.lease.Context() }

// Lease returns the leader's lease, for its Deadline, Owner and so on.
func (l *Leadership) Lease() *holdfast.Lease { return l.lease }

// Resign ends the term, and the candidate that has waited longest leads next. It calls Lease.Release: a second
// call is allowed, and it returns ErrLost if the term had ended before. Stop the leader's work first.
func (l *Leadership) Resign(ctx context.Context) error { return l.lease.Release(ctx) }

// Leader describes a leader to other processes. The zero value means that nobody leads.
type Leader struct {
	Term   holdfast.Token
	Value  string          // the value that the leader proclaims
	Holder holdfast.Holder // the leader's process
	Since  time.Time       // start of the campaign, by the leader's clock; zero if unknown
}

// CurrentLeader returns the leader under name, or the zero Leader if nobody leads or the holder of the name has not
// campaigned. It returns what Observe yields first, and blocks for two answers of the service. Errors:
// ErrUnavailable, ErrUnsupported, ErrInvalid, ErrClosed, ctx.Err().
func CurrentLeader(ctx context.Context, client *holdfast.Client, name string) (Leader, error) {
	for leader, err := range Observe(ctx, client, name) {
		return leader, err
	}
	return Leader{}, ctx.Err()
}

// leaderOf returns the leader that st shows.
func leaderOf(st holdfast.Status) Leader {
	value, leads := Value(st.Holder)
	if !st.Held || st.Kept || !leads {
		return Leader{}
	}
	holder := st.Holder
	holder.Note = ""
	return Leader{Term: st.Token, Value: value, Holder: holder, Since: st.Since}
}

// Callbacks are functions that Run calls. They have the shape of client-go's LeaderCallbacks.
type Callbacks struct {
	// OnStartedLeading is called when this process leads. ctx ends with the term, and when the ctx of Run
	// ends. The term lasts until OnStartedLeading returns.
	OnStartedLeading func(ctx context.Context, term holdfast.Token)
	// OnStoppedLeading, if set, is called after a term of this process.
	OnStoppedLeading func()
	// OnNewLeader, if set, is called from another goroutine with each leader that Run observes.
	OnNewLeader func(Leader)
}

// Run campaigns, calls the callbacks and returns after one term, like client-go's LeaderElector. Unlike
// LeaderElector it waits until OnStartedLeading has returned before it resigns, and leaves no goroutine
// running. It returns the error of Campaign, or ErrLost if the term ended before OnStartedLeading returned. If
// Close ended the term, the error matches ErrClosed as well.
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
		case errors.Is(failed, holdfast.ErrLost): // after any other error the lock expires with its TTL
			err = failed
		case errors.Is(end, holdfast.ErrLost): // Close has released the lease, so Resign did not fail
			err = fmt.Errorf("election: %w", end)
		}
	}()
	calls.OnStartedLeading(work, term.Term())
	return nil
}
