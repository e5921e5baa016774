package quorum

import "iter"

// AskKind is the kind of a request.
type AskKind uint8

// The requests of a Claim.
const (
	AskAcquire AskKind = iota
	AskCommit
	AskRenew
	AskRelease
	AskGiveBack
	AskAdopt // in place of AskAcquire, for a claim that Adopts
)

var askNames = [...]string{"acquire", "commit", "renew", "release", "give-back", "adopt"}

// String returns the name of the request in docs/protocol.md.
func (k AskKind) String() string { return askNames[k] }

// Frees reports whether the request may free a lock. Such a request is sent however late it is.
func (k AskKind) Frees() bool { return k == AskRelease || k == AskGiveBack }

// MayStartCounter reports whether the request may start a counter of tokens, and so needs Ask.Clock.
func (k AskKind) MayStartCounter() bool { return k == AskAcquire || k == AskAdopt }

// Ask is one request to one node. Actions.Asks fills in what the claim knows. The sender adds the clock, the
// lowest token and the time of a note.
type Ask struct {
	Kind     AskKind
	Epoch    uint8 // Claim.Epoch[Node]
	Node     int
	ID       uint32 // Claim.ID; for a release, the ID before the Step
	TTL      int64  // ns
	Token    int64  // commit, renew: the first token of the grant
	Restore  bool   // renew: set the lock again if it is free
	Stamp    int64  // acquire, give-back: place in the queue, µs since 1970; 0: none
	HandOver int64  // release, give-back: how long the next waiter holds the lock, ns; 0: no waiter gets it
	MinHold  int64  // release: how long the released lock stays held, ns; 0: it is free at once
	Sent     int64  // time of sending, by the claim's clock

	Owner string // the owner id for ID
	From  string // adopt: the owner id of the present holder
	Clock int64  // acquire, adopt: the client's wall clock, µs since 1970
	Noted int64  // adopt: how long the node keeps a note about From, ns; 0: as long as From's lock lasts
	Least int64  // acquire, adopt, release, give-back: the lowest token that may be granted; 0: any
}

// Owners holds the owner ids of a claim.
type Owners struct {
	Before string // for its id before a Step
	Now    string // for its present id
	From   string // of the lock that it adopts
}

// Asks yields the requests of a in the order of sending. A release comes first, under the id that it ends. A
// commit and a renewal come after the acquire of the same Step. before is Claim.ID before that Step, c is the
// claim after it, and at is the time of its event.
func (a *Actions) Asks(before uint32, c *Claim, at int64, owners Owners) iter.Seq[Ask] {
	return func(yield func(Ask) bool) { a.yieldAsks(before, c, at, owners, yield) }
}

func (a *Actions) yieldAsks(before uint32, c *Claim, at int64, owners Owners, yield func(Ask) bool) {
	acquire := AskAcquire
	if c.Adopts {
		acquire = AskAdopt
	}
	for _, group := range [...]struct {
		to    Set
		kind  AskKind
		id    uint32
		stamp int64
	}{
		{a.Release, AskRelease, before, 0},
		{a.GiveBack, AskGiveBack, c.ID, c.Stamp},
		{a.Acquire & a.Stamped, AskAcquire, c.ID, c.Stamp},
		{a.Acquire &^ a.Stamped, acquire, c.ID, 0},
		{a.Commit, AskCommit, c.ID, 0},
		{a.Renew, AskRenew, c.ID, 0},
	} {
		for n := range group.to.Nodes {
			ask := Ask{
				Kind: group.kind, Epoch: c.Epoch[n], Node: n, ID: group.id, TTL: c.TTL, Stamp: group.stamp, Sent: at,
				Owner: owners.Now, From: owners.From,
			}
			if group.id != c.ID {
				ask.Owner = owners.Before
			}
			switch {
			case ask.Kind.Frees():
				ask.HandOver, ask.MinHold = HandOverTime(c.TTL), c.MinHold
			case ask.Kind == AskCommit, ask.Kind == AskRenew:
				ask.Token, ask.Restore = c.Token, ask.Kind == AskRenew && a.Restore.Has(n)
			}
			if !yield(ask) {
				return
			}
		}
	}
}

// Reply is the answer of a node. The claim uses its Event. The other fields are for error texts.
type Reply struct {
	Event

	Holder string // Denied: the holder of the lock
	Err    error  // Failed
}

// Reply returns r as the answer to k, with the fields that identify the request.
func (k *Ask) Reply(r Reply) Reply {
	r.Of, r.Node, r.ID, r.Epoch, r.Sent, r.TTL = k.Kind, k.Node, k.ID, k.Epoch, k.Sent, k.TTL
	r.Queued = r.Kind == Denied && k.Stamp != 0
	return r
}

// Execute executes ask on the lock. now is the node's clock, in µs. It returns the changed lock, the reply, and
// the wake-up for the waiter to which the lock was handed.
func (l Lock) Execute(now int64, ask *Ask, hears func(owner string) bool) (Lock, Reply, Wake) {
	var r Reply
	var woken Wake
	switch ttl := Millis(ask.TTL); ask.Kind {
	case AskAcquire:
		l, r, woken = l.Acquire(now, ask.Owner, ttl, ask.Clock, ask.Least, ask.Stamp, hears)
	case AskAdopt:
		l, r = l.Adopt(now, ask.From, ask.Owner, ttl, ask.Clock, ask.Least, Millis(ask.Noted))
	case AskCommit:
		l, r = l.Commit(now, ask.Owner, ask.Token)
	case AskRenew:
		l, r = l.Renew(now, ask.Owner, ttl, ask.Token, ask.Restore)
	default:
		if ask.MinHold > 0 {
			l = l.Keep(now, ask.Owner, Millis(ask.MinHold))
		} else {
			l, woken = l.Release(now, ask.Owner, ask.Least, ask.Stamp, Millis(ask.HandOver), hears)
		}
		r = replyOf(Freed)
	}
	return l, ask.Reply(r), woken
}

// replyOf returns a reply of the given kind without other fields.
func replyOf(kind Kind) Reply { return Reply{Event: Event{Kind: kind}} }

// grantedReply reports that the owner has the lock, with its first token.
func (l Lock) grantedReply() Reply { return Reply{Event: Event{Kind: Granted, Token: l.Token}} }

// deniedReply reports that another owner has the lock, for left ms.
func (l Lock) deniedReply(left int64) Reply {
	return Reply{Event: Event{Kind: Denied, Left: left * ms, Waiters: l.Queue.Len()}, Holder: l.Owner}
}

// deniedReplyAt returns the denial at the time now. It also serves for a free lock that this owner may not
// have.
func (l Lock) deniedReplyAt(now int64) Reply {
	if l.Owner == "" {
		return l.deniedReply(remainingWhenFree)
	}
	return l.deniedReply(l.Until - now/1000)
}

// remainingWhenFree is the remaining time, in ms, in the denial of a free lock that this owner may not have. PTTL
// returns the same value for a missing key.
const remainingWhenFree = -2

// keptReply reports that the owner still has the lock.
func (l Lock) keptReply() Reply { return Reply{Event: Event{Kind: Kept, Waiters: l.Queue.Len()}} }

// failedReply returns the answer of a node that has changed nothing.
func failedReply(err error) Reply {
	return Reply{Event: Event{Kind: Failed}, Err: err}
}
