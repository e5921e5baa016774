package live

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// Picture is the state of a backend at one time. It is immutable.
type Picture struct {
	Taken     time.Time
	Prefix    string
	Rows      []*Row // by name
	Nodes     []holdfast.NodeEvent
	Err       error     // why the last read was incomplete
	Whole     time.Time // end of the last complete read; zero: none yet
	Hidden    int       // number of locks without room
	HandOvers float64   // per second, over the last ten seconds; a lower bound
	Held      int
	Waiters   int
	Bad, Warn int // number of locks in these states

	stale time.Duration
}

// Row is a lock as last read.
type Row struct {
	holdfast.Status
	Seen      time.Time
	Freed     time.Time // time since which it is free without waiters; zero: it is not
	Changed   time.Time // time when it was seen to pass to its holder; zero: never seen
	HandOvers int       // number of hand-overs that were seen

	// Last is the last status with a known holder, while too few nodes answer to know the current one;
	// otherwise nil.
	Last *holdfast.Status

	owner string // the last owner
}

// nextRow returns the row that follows r, which may be nil, from the current status.
func (r *Row) nextRow(st holdfast.Status, now time.Time) *Row {
	n := &Row{Status: st, Seen: now}
	if r != nil {
		n.Changed, n.HandOvers, n.owner = r.Changed, r.HandOvers, r.owner
		if len(st.Nodes) == 0 && st.Held && st.Owner == r.Owner { // some services report nodes only for a single lock
			n.Nodes = r.Nodes
		}
	}
	if st.Held && st.Owner != n.owner {
		if n.owner != "" {
			n.HandOvers++
			n.Changed = now
		}
		n.owner = st.Owner
	}
	if r != nil && !st.Held && view.Unknown(st) {
		if n.Last = r.Last; r.Held {
			n.Last = &r.Status
		}
	}
	if !st.Held && st.Waiters == 0 && !view.Unknown(st) && n.votes() == 0 {
		if n.Freed = now; r != nil && !r.Freed.IsZero() {
			n.Freed = r.Freed
		}
	}
	return n
}

// Who names the holder of the lock. If the holder is unknown, it returns "was" and the last known holder. It is
// empty if the lock is free.
func (r *Row) Who() string {
	switch {
	case r.Held:
		return view.Holder(r.Status)
	case r.Last != nil:
		return "was " + view.Holder(*r.Last)
	}
	return ""
}

// votes returns the number of nodes that name an owner.
func (r *Row) votes() (n int) {
	for _, node := range r.Nodes {
		if node.Owner != "" {
			n++
		}
	}
	return n
}

// Level is the severity of a state.
type Level int

// The levels, by severity.
const (
	Early Level = iota - 1 // nothing is known yet
	Fine
	Warn
	Bad
)

// String returns the level as a word for programs.
func (l Level) String() string { return [...]string{"early", "fine", "warn", "bad"}[l-Early] }

// State returns the state of a lock in a word or two, its level, and the reason if it is bad.
func (p *Picture) State(r *Row) (word string, level Level, why string) {
	mine, lack := 0, 0 // nodes that name the holder, and nodes that answer without naming the holder
	for _, n := range r.Nodes {
		switch {
		case n.Err != nil:
		case n.Owner == r.Owner:
			mine++
		default:
			lack++
		}
	}
	switch age := p.Taken.Sub(r.Seen); {
	case age > p.stale:
		return "unknown", Bad, "nothing was heard of it for " + view.Short(age.Round(time.Second))
	case view.Unknown(r.Status):
		return "unknown", Bad, "too few nodes answer to say who holds it"
	case r.Held && r.Remaining < 0:
		return "no end", Warn, "its key has no TTL: where its holder dies it stays locked"
	case r.Held && lack > 0 && mine == len(r.Nodes)/2+1:
		return "at risk", Warn, fmt.Sprintf("only %d of %d nodes have it: the loss of one more costs the lease", mine, len(r.Nodes))
	case r.Kept:
		return "kept", Fine, "its holder has released it, and asked to keep it for so long"
	case r.Held:
		return "held", Fine, ""
	case r.votes() > 0 && r.Waiters == 0:
		return "split", Warn, fmt.Sprintf("%d of %d nodes name an owner, and no majority the same", r.votes(), len(r.Nodes))
	case r.Waiters > 0:
		return "passing", Fine, "" // to the first waiter
	}
	return "free", Fine, ""
}

func (p *Picture) addRow(r *Row) {
	p.Rows = append(p.Rows, r)
	p.Waiters += r.Waiters
	if r.Held {
		p.Held++
	}
	switch _, level, _ := p.State(r); level {
	case Bad:
		p.Bad++
	case Warn:
		p.Warn++
	}
}

// Left returns the remaining time of the lease, -1 s for a lease without an end.
func (p *Picture) Left(r *Row) time.Duration {
	if r.Remaining < 0 {
		return -time.Second
	}
	return max(r.Remaining-p.Taken.Sub(r.Seen), 0)
}

// HeldFor returns the time for which the holder has had the lock: since it was seen to pass to the holder, or
// else since the holder's request, by the holder's clock. 0: unknown.
func (p *Picture) HeldFor(r *Row) time.Duration {
	switch {
	case !r.Held:
		return 0
	case !r.Changed.IsZero():
		return p.Taken.Sub(r.Changed)
	case !r.Since.IsZero():
		return max(p.Taken.Sub(r.Since), 0)
	}
	return 0
}

// Down returns the number of nodes that do not vote.
func (p *Picture) Down() (n int) {
	for _, e := range p.Nodes {
		if NodeLevel(e.State) == Bad {
			n++
		}
	}
	return n
}

// NodeLevel returns the level of a node's state.
func NodeLevel(s holdfast.NodeState) Level {
	switch s {
	case holdfast.NodeUp:
		return Fine
	case holdfast.NodePolling, holdfast.NodeDegraded:
		return Warn
	}
	return Bad
}

// RoundTrip returns the response time of a node, or "" if it is unknown.
func RoundTrip(e holdfast.NodeEvent) string {
	switch {
	case e.RoundTrip <= 0:
		return ""
	case e.RoundTrip < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(e.RoundTrip)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.0f ms", e.RoundTrip.Truncate(time.Millisecond).Seconds()*1000)
}

// Sort is an order of locks.
type Sort string

// The orders of locks. Each comment names the locks that come first.
const (
	ByState   Sort = "state" // the worst, then by name
	ByName    Sort = "name"
	ByHolder  Sort = "holder"
	ByHeld    Sort = "held"    // held for longest
	ByLeft    Sort = "left"    // least time left
	ByWaiters Sort = "waiting" // most waiters
	ByRate    Sort = "changes" // most hand-overs
)

// Sorts are all orders.
var Sorts = []Sort{ByState, ByName, ByHolder, ByHeld, ByLeft, ByWaiters, ByRate}

// Select returns, in an order, the rows in which each word of filter occurs: in name, holder, note, owner or
// state.
func (p *Picture) Select(filter string, by Sort) []*Row {
	words := strings.Fields(strings.ToLower(filter))
	rows := make([]*Row, 0, len(p.Rows))
	for _, r := range p.Rows {
		if p.matches(r, words) {
			rows = append(rows, r)
		}
	}
	if order := p.order(by); order != nil {
		slices.SortStableFunc(rows, order)
	}
	return rows
}

// order returns the comparison for a sort, or nil for the order of Rows.
func (p *Picture) order(by Sort) func(a, b *Row) int {
	switch by {
	case ByState:
		return func(a, b *Row) int { return cmp.Compare(p.level(b), p.level(a)) }
	case ByHolder:
		return func(a, b *Row) int {
			return cmp.Or(strings.Compare(a.Holder.Host, b.Holder.Host), cmp.Compare(a.Holder.PID, b.Holder.PID))
		}
	case ByHeld:
		return func(a, b *Row) int { return cmp.Compare(p.HeldFor(b), p.HeldFor(a)) }
	case ByLeft: // free locks and leases without an end come last
		return func(a, b *Row) int { return cmp.Compare(p.urgency(a), p.urgency(b)) }
	case ByWaiters:
		return func(a, b *Row) int { return cmp.Compare(b.Waiters, a.Waiters) }
	case ByRate:
		return func(a, b *Row) int { return cmp.Compare(b.HandOvers, a.HandOvers) }
	}
	return nil
}

func (p *Picture) level(r *Row) Level { _, level, _ := p.State(r); return level }

func (p *Picture) urgency(r *Row) uint64 {
	if !r.Held {
		return 1<<64 - 1
	}
	return uint64(p.Left(r)) // a lease without an end is negative, so it comes late
}

func (p *Picture) matches(r *Row, words []string) bool {
	if len(words) == 0 {
		return true
	}
	word, _, _ := p.State(r)
	h := r.Holder
	if r.Last != nil {
		h = r.Last.Holder
	}
	text := strings.ToLower(strings.Join([]string{r.Key, h.Host, strconv.Itoa(h.PID), h.Program, h.Note, r.Owner, word}, "\n"))
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// Headline describes the overall state in a sentence, with its level.
func (p *Picture) Headline() (text string, level Level) {
	down, all := p.Down(), len(p.Nodes)
	switch {
	case p.Whole.IsZero() && p.Err == nil:
		return "looking at the locks for the first time", Early
	case all > 1 && down > (all-1)/2:
		return fmt.Sprintf("NO MAJORITY: %d of %d nodes do not vote, nobody gets a lock", down, all), Bad
	case all == 1 && down == 1:
		return "DOWN: the server does not answer, nobody gets a lock", Bad
	case p.Err != nil:
		return "INCOMPLETE: " + p.Err.Error(), Bad
	case p.Bad > 0:
		return fmt.Sprintf("%s in an unknown state", Locks(p.Bad)), Bad
	case down > 0:
		return fmt.Sprintf("DEGRADED: %d of %d nodes do not vote, the others go on", down, all), Warn
	case p.Warn > 0:
		return Locks(p.Warn) + " to look at", Warn
	}
	return "all well", Fine
}

// Locks formats a number of locks.
func Locks(n int) string {
	if n == 1 {
		return "1 lock"
	}
	return strconv.Itoa(n) + " locks"
}
