package quorum

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Lock is one lock on one node: the Go twin of the Lua scripts in
// internal/wire/scripts. Each exported method that changes the lock does what one script does (Release and Keep
// are both release.lua), as a pure function of the lock, the node's
// clock now (µs since 1970) and its arguments; TTLs and hand-overs are in
// milliseconds. The zero value is a lock that was never taken, on a node that has
// granted none. Times of expiry are kept in milliseconds, and something expires once the
// clock is past them, as in Redis 7; a newer server may drop it a millisecond sooner.
type Lock struct {
	Owner string // "" while free
	Token int64  // the first of the owner's tokens: what this node gave it, or a commit; 0: nobody's
	Until int64
	Queue Queue
	Notes Notes // the owners from whom Force or Adopt took the lock: no request brings it back to them
	// Fence is the highest token that the node has promised, for whichever of the locks that
	// share it. It never expires. 0: the node has promised none.
	Fence int64
}

// At is the lock as it is at now, without what has expired by then.
func (l Lock) At(now int64) Lock {
	now /= 1000
	if now > l.Until {
		l.free()
	}
	l.Queue, l.Notes = l.Queue.at(now), l.Notes.at(now)
	return l
}

// ClockError says why a node did not start a counter of tokens.
type ClockError struct {
	Ahead int64 // how far the node's clock is ahead of the client's, in µs
}

// Error is what the scripts say.
func (e ClockError) Error() string {
	ahead, side := e.Ahead, "ahead of"
	if ahead <= 0 {
		ahead, side = -ahead, "behind"
	}
	return fmt.Sprintf("CLOCK the node's clock is %.0f s %s the client's, and a counter of tokens must not start there: synchronise the clocks",
		float64(ahead)/1_000_000, side)
}

// ErrTokensEnd is returned by a node whose counter has no tokens left: see MaxToken.
var ErrTokensEnd = errors.New("COUNTER no tokens are left")

// block promises the next tokens, and least at least. With an error nothing has changed: the counter is new and must not
// start, or has no tokens left.
func (l *Lock) block(now, clock, least int64) (base int64, err error) {
	base = l.Fence + 1
	if l.Fence <= 0 {
		var ok bool
		if base, ok = Seed(now, clock); !ok {
			l.Fence = 0
			return 0, ClockError{Ahead: now - clock}
		}
	}
	base = max(base, least)
	if base > Base(MaxToken) {
		return 0, ErrTokensEnd
	}
	l.Fence = Top(base)
	return base, nil
}

func (l *Lock) take(owner string, token, now, ttl int64) {
	l.Owner, l.Token, l.Until = owner, token, now/1000+ttl
}

// prolong lets the lock stand for ttl from now on, or longer: it never shortens what the lock has.
// A request may be executed long after a later one of the same owner, over a connection that has
// gone, and must not end what was promised since (trace C14).
func (l *Lock) prolong(now, ttl int64) { l.Until = max(l.Until, now/1000+ttl) }

func (l *Lock) free() { l.Owner, l.Token, l.Until = "", 0, 0 }

// queue gives owner a place, or lets the place that it has stand for longer. An id from which the
// lock was taken gets none: the lock would be handed to it.
func (l *Lock) queue(owner string, now, stamp int64) {
	if !l.taken(owner) {
		l.Queue = l.Queue.With(Place{Owner: owner, Stamp: stamp, Until: now/1000 + QueueKeep})
	}
}

// Wake is a wake-up. Where the holder releases on every node, the waiter needs no more than
// that; otherwise it asks.
type Wake struct {
	Owner string // its id; "": nobody was woken
	Base  int64  // the first token of its block; 0: not told
	Left  int64  // ms until the lock lapses; 0: not told
}

// String is the message of w.
func (w Wake) String() string {
	if w.Base == 0 {
		return w.Owner
	}
	return fmt.Sprintf("%s %d %d", w.Owner, w.Base, w.Left)
}

// ParseWake reads what String has written. What it cannot read tells of no token, and neither does what no script tells: a
// token that is none, or a hand-over that is too long. Whoever may publish can send a message in the name of a node, and its
// receiver must not rely on it for longer than on a true one.
func ParseWake(text string) Wake {
	owner, rest, _ := strings.Cut(text, " ")
	base, left, _ := strings.Cut(rest, " ")
	w := Wake{Owner: owner}
	b, err1 := strconv.ParseInt(base, 10, 64)
	l, err2 := strconv.ParseInt(left, 10, 32)
	if err1 == nil && err2 == nil && b > 0 && b <= Base(MaxToken) && l > 0 && l <= HandOverMost/ms {
		w.Base, w.Left = b, l
	}
	return w
}

// forced is what the message to a holder has behind its id.
const forced = " forced "

// Forced is the message to the client of owner, whose lock Force took; why is the reason.
func Forced(owner, why string) string { return owner + forced + why }

// ParseForced reads what Forced has written; ok is false for anything else.
func ParseForced(text string) (owner, why string, ok bool) { return strings.Cut(text, forced) }

// Acquire takes the lock for owner, or, with a stamp other than 0, queues it. A
// free lock that is waited for goes to the first waiter that hears its wake-up.
// clock is the client's wall clock in µs, least the first token that the client may use.
// Asking again is harmless. A free lock that was handed to a waiter is denied, and the
// wake-up is that waiter's. An id from which the lock was taken gets it no more: such a request was
// sent before, and its client may go by a lease that is over.
func (l Lock) Acquire(now int64, owner string, ttl, clock, least, stamp int64, hears func(owner string) bool) (Lock, Reply, Wake) {
	l = l.At(now)
	if l.Owner != owner && l.taken(owner) {
		return l, l.deniedAt(now), Wake{}
	}
	switch l.Owner {
	case "":
		base, err := l.block(now, clock, least)
		if err != nil {
			return l, failed(err), Wake{}
		}
		if stamp != 0 && l.Queue != "" {
			l.queue(owner, now, stamp)
		}
		if woken := l.wake(owner, hears); woken != "" {
			left := HandOver(ttl*ms) / ms
			l.take(woken, base, now, left)
			return l, l.denied(left), Wake{Owner: woken}
		}
		l.take(owner, base, now, ttl)
		l.Queue = l.Queue.Without(owner)
		return l, l.granted(), Wake{}
	case owner:
		l, reply := l.again(now, ttl, clock, least)
		return l, reply, Wake{}
	}
	if stamp != 0 {
		l.queue(owner, now, stamp)
	}
	return l, l.deniedAt(now), Wake{}
}

// again grants the owner what it has, by the token that it was given. If there is none, or it is below
// least, the node has gone back to older data since, and the owner gets tokens of now.
func (l Lock) again(now, ttl, clock, least int64) (Lock, Reply) {
	if l.Token < max(least, 1) {
		base, err := l.block(now, clock, least)
		if err != nil {
			return l, failed(err)
		}
		l.Token = base
	}
	l.prolong(now, ttl)
	return l, l.granted()
}

// Adopt hands the lock of from on to owner, with a block of its own, and knows for noted ms at least from whom it was
// taken. Asking again is harmless; anybody else's lock, and a free one, is denied. Force takes a lock from its owner as
// well, but compares the token, has no owner of its own to give it to, and goes by no client's clock.
func (l Lock) Adopt(now int64, from, owner string, ttl, clock, least, noted int64) (Lock, Reply) {
	switch l = l.At(now); {
	case l.Owner == "", l.taken(owner):
		return l, l.deniedAt(now)
	case l.Owner == owner:
		l, r := l.again(now, ttl, clock, least)
		if r.Kind == Granted {
			l.note(from, now, noted)
			l.Queue = l.Queue.Without(from)
		}
		return l, r
	case l.Owner != from:
		return l, l.deniedAt(now)
	}
	base, err := l.block(now, clock, least)
	if err != nil {
		return l, failed(err)
	}
	l.note(from, now, noted)
	l.take(owner, base, now, ttl)
	l.Queue = l.Queue.Without(from)
	return l, l.granted()
}

// Commit fixes token for owner. Each condition is needed: the owner's, that no other grant
// has come between; that of its token here, that the node has not granted it the lock anew
// since, with others in between; and a counter, which must not begin at a token.
func (l Lock) Commit(now int64, owner string, token int64) (Lock, Reply) {
	l = l.At(now)
	if l.Owner != owner || l.Token > token || l.Fence <= 0 {
		return l, reply(Refused)
	}
	l.Token, l.Fence = token, max(l.Fence, Top(token))
	return l, reply(Accepted)
}

// Renew prolongs the lock, and never shortens it. One that is free is not the owner's, unless anew
// says that the owner has it all the same: then it is set again, with its token. One that was taken by
// Force or Adopt is not set again. It is not the owner's here while that is known, so that nothing but
// the lock has to be looked at where it is not free.
func (l Lock) Renew(now int64, owner string, ttl, token int64, anew bool) (Lock, Reply) {
	l = l.At(now)
	switch {
	case l.Owner == owner:
		l.prolong(now, ttl)
	case l.Owner == "" && anew && !l.taken(owner):
		l.take(owner, token, now, ttl)
	default:
		return l, reply(NotMine)
	}
	return l, l.kept()
}

// Release withdraws owner from the queue, or, with a stamp, keeps or gives it
// its place. If owner holds the lock, it passes to the first waiter that hears
// its wake-up, for the time handOver, and Release returns what that is told;
// else it is free. It is free also where the counter is lost, for no client's clock
// is at hand: the waiter that was woken takes it by its own clock. Without a stamp, a lock
// that nobody holds passes on as well.
func (l Lock) Release(now int64, owner string, least, stamp, handOver int64, hears func(owner string) bool) (Lock, Wake) {
	l = l.At(now)
	if stamp != 0 {
		l.queue(owner, now, stamp)
	} else {
		l.Queue = l.Queue.Without(owner)
	}
	if l.Owner != owner && (l.Owner != "" || stamp != 0) {
		return l, Wake{}
	}
	return l.pass(now, owner, least, handOver, stamp == 0, hears)
}

// Keep releases the lock for owner and lets it stand for minHold: it is nobody's then, and no
// request about the owner changes it any more. A lock that is not the owner's stays as it is.
func (l Lock) Keep(now int64, owner string, minHold int64) Lock {
	l = l.At(now)
	l.Queue = l.Queue.Without(owner)
	if l.Owner == owner {
		l.take(KeptID(owner), 0, now, minHold)
	}
	return l
}

// first is the first in the queue, or "" where from is it, or nobody waits.
func (l *Lock) first(from string) string {
	if head, _ := l.Queue.Head(); head != from {
		return head
	}
	return ""
}

// wake takes the first waiter that hears its wake-up out of the queue, and those before it. It
// returns "" where from is the first of all, or nobody hears.
func (l *Lock) wake(from string, hears func(owner string) bool) string {
	for owner := range l.Queue.line {
		if owner == from {
			return ""
		}
		l.Queue = l.Queue.Without(owner)
		if hears(owner) {
			return owner
		}
	}
	return ""
}

// pass hands the lock over, or frees it. Where the first in the queue is from itself the lock
// is free: kept for it, the node would block all others until it asks again (trace C4).
// everywhere says that from releases on all nodes. With a handOver of 0 the lock is free, also
// where others wait.
func (l Lock) pass(now int64, from string, least, handOver int64, everywhere bool, hears func(owner string) bool) (Lock, Wake) {
	if handOver == 0 || l.first(from) == "" {
		l.free()
		return l, Wake{}
	}
	base, err := l.block(now, noClock, least)
	w := Wake{Owner: l.wake(from, hears)}
	if w.Owner == "" || err != nil {
		l.free()
		return l, w
	}
	l.take(w.Owner, base, now, handOver)
	if everywhere {
		w.Base, w.Left = base, handOver
	}
	return l, w
}

// noteEnd bounds the time of a note, in ms since 1970. A lock may have been given any TTL by another program.
const noteEnd = 100_000_000_000_000

// note keeps in mind that the lock was taken from owner, for noted ms or as long as the owner has it here. At another
// node it may have it for longer, and trust it still.
func (l *Lock) note(owner string, now, noted int64) {
	l.Notes = l.Notes.With(owner, min(max(l.Until, now/1000+noted, now/1000+1), noteEnd))
}

// taken reports whether the lock was taken from owner by Force or Adopt.
func (l *Lock) taken(owner string) bool {
	_, ok := l.Notes.Until(owner)
	return ok
}

// Force takes the lock away from owner, and knows that for noted ms at least. A lock that was released, and stands for its
// MinHold, is not its owner's any more.
func (l Lock) Force(now int64, owner string, least, handOver, noted int64, hears func(owner string) bool) (Lock, bool, Wake) {
	l = l.At(now)
	if l.Owner == "" || l.Owner != owner {
		return l, false, Wake{}
	}
	l.Queue = l.Queue.Without(owner)
	l.note(owner, now, noted)
	l, woken := l.pass(now, owner, least, handOver, true, hears)
	return l, true, woken
}
