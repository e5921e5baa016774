package quorum

import "iter"

// AskKind is what a request asks of a node.
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

// String is the name of the request, as docs/protocol.md has it.
func (k AskKind) String() string { return askNames[k] }

// Frees says whether the request may free a lock. Such a request is never too late.
func (k AskKind) Frees() bool { return k == AskRelease || k == AskGiveBack }

// Seeds says whether the request may start a counter of tokens, and so needs Ask.Clock.
func (k AskKind) Seeds() bool { return k == AskAcquire || k == AskAdopt }

// Ask is one request to one node. Actions.Asks fills in what the claim knows. The
// program that sends it adds the clock, the least token and how long a taking is noted.
type Ask struct {
	Kind     AskKind
	Epoch    uint8 // Claim.Epoch[Node]
	Node     int
	ID       uint32 // Claim.ID; a release has the one so far
	TTL      int64  // ns
	Token    int64  // commit, renew: the first token of the grant
	Anew     bool   // renew: a free lock is set again
	Stamp    int64  // acquire, give-back: place in the queue, µs since 1970; 0: none
	HandOver int64  // release, give-back: for how many ns the next in the queue has the lock; 0: the lock is handed to no one
	MinHold  int64  // release: for how many ns the lock stands from now on, although nobody holds it; 0: it passes on
	Sent     int64  // when it is sent, by the claim's time

	Owner string // the owner id that ID stands for
	From  string // adopt: the owner id that has the lock
	Clock int64  // acquire, adopt: the client's wall clock, µs since 1970
	Noted int64  // adopt: for how many ns the node knows from whom the lock was taken; 0: for as long as From had it
	Least int64  // acquire, adopt, release, give-back: the first token that may be granted; 0: any
}

// Owners are the owner ids of a claim.
type Owners struct {
	Before string // of its id before a Step
	Now    string // of its id
	From   string // of the lock that it adopts
}

// Asks yields the requests of a, in the one order in which they are sent. A release comes
// first, under the id that it ends; a commit and a renewal come after the acquire of the same
// Step. before is Claim.ID before that Step, c the claim after it, and at the time of its event.
func (a *Actions) Asks(before uint32, c *Claim, at int64, owners Owners) iter.Seq[Ask] {
	return func(yield func(Ask) bool) { a.asks(before, c, at, owners, yield) }
}

func (a *Actions) asks(before uint32, c *Claim, at int64, owners Owners, yield func(Ask) bool) {
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
				ask.HandOver, ask.MinHold = HandOver(c.TTL), c.MinHold
			case ask.Kind == AskCommit, ask.Kind == AskRenew:
				ask.Token, ask.Anew = c.Token, ask.Kind == AskRenew && a.Anew.Has(n)
			}
			if !yield(ask) {
				return
			}
		}
	}
}

// Reply is what a node answers. Its Event is what the claim needs to know; the rest is
// for people.
type Reply struct {
	Event

	Holder string // Denied: who has the lock
	Err    error  // Failed
}

// Reply is r as the answer to k.
func (k *Ask) Reply(r Reply) Reply {
	r.Of, r.Node, r.ID, r.Epoch, r.Sent, r.TTL = k.Kind, k.Node, k.ID, k.Epoch, k.Sent, k.TTL
	r.Queued = r.Kind == Denied && k.Stamp != 0
	return r
}

// Answer carries out ask on the lock. now is the node's clock, in µs. It returns the lock as
// it is then, the reply, and the wake-up of the waiter that was handed the lock.
func (l Lock) Answer(now int64, ask *Ask, hears func(owner string) bool) (Lock, Reply, Wake) {
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
		l, r = l.Renew(now, ask.Owner, ttl, ask.Token, ask.Anew)
	default:
		if ask.MinHold > 0 {
			l = l.Keep(now, ask.Owner, Millis(ask.MinHold))
		} else {
			l, woken = l.Release(now, ask.Owner, ask.Least, ask.Stamp, Millis(ask.HandOver), hears)
		}
		r = reply(Freed)
	}
	return l, ask.Reply(r), woken
}

// reply is an answer that consists of its kind.
func reply(kind Kind) Reply { return Reply{Event: Event{Kind: kind}} }

// granted is that the lock is the owner's, with the first of its tokens.
func (l Lock) granted() Reply { return Reply{Event: Event{Kind: Granted, Token: l.Token}} }

// denied is that the lock is another's, for left ms.
func (l Lock) denied(left int64) Reply {
	return Reply{Event: Event{Kind: Denied, Left: left * ms, Waiters: l.Queue.Len()}, Holder: l.Owner}
}

// deniedAt is that the lock is another's, or free and not to be had.
func (l Lock) deniedAt(now int64) Reply {
	if l.Owner == "" {
		return l.denied(leftOfFree)
	}
	return l.denied(l.Until - now/1000)
}

// leftOfFree is the time left in ms of a denial although the lock is free, as PTTL has it: the id may not have the lock.
const leftOfFree = -2

// kept is that the lock stands.
func (l Lock) kept() Reply { return Reply{Event: Event{Kind: Kept, Waiters: l.Queue.Len()}} }

// failed returns the answer of a node that has done nothing.
func failed(err error) Reply {
	return Reply{Event: Event{Kind: Failed}, Err: err}
}
