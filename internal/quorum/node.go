package quorum

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/block"
)

// Lock is one lock on one node: the Go twin of the Lua scripts of package
// redlock. Each method is one script, a pure function of the lock, the node's
// clock now (µs since 1970) and its arguments; TTLs, hand-overs and for how long it
// keeps the counter are in milliseconds. The zero value is a lock that was never
// taken. Times of expiry are kept in milliseconds, and something expires once the
// clock is past them, as in Redis 7; a newer server may drop it a millisecond sooner.
type Lock struct {
	Owner      string // "" while free
	Until      int64
	Fence      int64 // the highest token promised; 0: no counter
	FenceUntil int64
	Queue      Queue
	QueueUntil int64
}

// At is the lock as it is at now, without what has expired by then.
func (l Lock) At(now int64) Lock {
	now /= 1000
	if now > l.Until {
		l.Owner, l.Until = "", 0
	}
	if now > l.FenceUntil {
		l.Fence, l.FenceUntil = 0, 0
	}
	if now > l.QueueUntil || l.Queue == "" {
		l.Queue, l.QueueUntil = "", 0
	}
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

// block promises the next tokens. ok is false, and nothing has changed, where the
// counter is new and must not start.
func (l *Lock) block(now, clock, keep int64) (ok bool) {
	base := l.Fence + 1
	if l.Fence == 0 {
		if base, ok = Seed(now, clock); !ok {
			return false
		}
	}
	l.promise(Top(base), now, keep)
	return true
}

// promise sets the counter.
func (l *Lock) promise(top, now, keep int64) { l.Fence, l.FenceUntil = top, now/1000+keep }

func (l *Lock) take(owner string, now, ttl int64) {
	l.Owner, l.Until = owner, now/1000+ttl
}

// prolong lets the lock stand for ttl from now on, or longer: it never shortens what the lock has.
// A request may be executed long after a later one of the same owner, over a connection that has
// gone, and must not end what was promised since (trace C14).
func (l *Lock) prolong(now, ttl int64) { l.Until = max(l.Until, now/1000+ttl) }

func (l *Lock) free() { l.Owner, l.Until = "", 0 }

func (l *Lock) queue(owner string, now, stamp int64) {
	l.Queue, l.QueueUntil = l.Queue.With(owner, stamp), now/1000+QueueKeep
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

// ParseWake reads what String has written. What it cannot read tells of no token.
func ParseWake(text string) Wake {
	owner, rest, _ := strings.Cut(text, " ")
	base, left, _ := strings.Cut(rest, " ")
	w := Wake{Owner: owner}
	b, err1 := strconv.ParseInt(base, 10, 64)
	l, err2 := strconv.ParseInt(left, 10, 32)
	if err1 == nil && err2 == nil && b > 0 && l > 0 {
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
// clock is the client's wall clock in µs. Asking again is harmless. A free lock that was
// handed to a waiter is denied, and the wake-up is that waiter's.
func (l Lock) Acquire(now int64, owner string, ttl, clock, stamp, keep int64, hears func(owner string) bool) (Lock, Reply, Wake) {
	l = l.At(now)
	switch l.Owner {
	case "":
		if !l.block(now, clock, keep) {
			return l, noCounter(now, clock), Wake{}
		}
		if stamp != 0 && l.Queue != "" {
			l.queue(owner, now, stamp)
		}
		if woken := l.wake(owner, hears); woken != "" {
			left := HandOver(ttl*ms) / ms
			l.take(woken, now, left)
			return l, l.denied(left), Wake{Owner: woken}
		}
		l.take(owner, now, ttl)
		l.Queue = l.Queue.Without(owner)
	case owner:
		if l.Fence != 0 {
			l.FenceUntil = now/1000 + keep
		} else if !l.block(now, clock, keep) {
			return l, noCounter(now, clock), Wake{}
		}
		l.prolong(now, ttl)
	default:
		if stamp != 0 {
			l.queue(owner, now, stamp)
		}
		return l, l.denied(l.Until - now/1000), Wake{}
	}
	return l, l.granted(), Wake{}
}

// Adopt hands the lock of from on to owner, with a block of its own. Asking again is
// harmless; anybody else's lock, and a free one, is denied. Force takes a lock from its owner as
// well, but compares the token, has no owner of its own to give it to, and goes by no client's clock.
func (l Lock) Adopt(now int64, from, owner string, ttl, clock, keep int64) (Lock, Reply) {
	l = l.At(now)
	if l.Owner == "" || l.Owner != from && l.Owner != owner {
		left := int64(-2)
		if l.Owner != "" {
			left = l.Until - now/1000
		}
		return l, l.denied(left)
	}
	if l.Owner == owner && l.Fence != 0 {
		l.FenceUntil = now/1000 + keep
	} else if !l.block(now, clock, keep) {
		return l, noCounter(now, clock)
	}
	if l.Owner == owner {
		l.prolong(now, ttl)
	} else {
		l.take(owner, now, ttl)
	}
	l.Queue = l.Queue.Without(from)
	return l, l.granted()
}

// Commit fixes token for owner. Both conditions are needed: the owner's, that
// no other grant has come between; the counter's, that none has been promised more.
func (l Lock) Commit(now int64, owner string, token, keep int64) (Lock, Reply) {
	l = l.At(now)
	if l.Owner != owner || l.Fence > Top(token) {
		return l, reply(Refused)
	}
	l.promise(Top(token), now, keep)
	return l, reply(Accepted)
}

// Renew prolongs the lock, never shortens it, and takes it again where the node has lost it and
// knows of no newer grant; with token 0 not even then. Where there was one and the lock is
// free, the reply has the counter. clock is the client's wall clock in
// µs.
func (l Lock) Renew(now int64, owner string, ttl, clock, token, keep int64) (Lock, Reply) {
	l = l.At(now)
	switch {
	case l.Owner == owner:
		if l.Fence != 0 {
			l.FenceUntil = now/1000 + keep
		}
		l.prolong(now, ttl)
		return l, l.kept()
	case l.Owner != "", token == 0:
		return l, reply(NotMine)
	case l.Fence > Top(token):
		return l, Reply{Event: Event{Kind: NotMine, Token: l.Fence}}
	case l.Fence == 0:
		// The counter is lost: what was granted meanwhile is below the clock (trace C2).
		start, ok := Seed(now, clock)
		if !ok {
			return l, noCounter(now, clock)
		}
		l.promise(Top(max(token, start)), now, keep)
	default:
		l.promise(Top(token), now, keep)
	}
	l.take(owner, now, ttl)
	return l, l.kept()
}

// Reclaim takes a free lock for owner without a new block, if no grant has been since
// the counter was fence: that is what Renew told.
func (l Lock) Reclaim(now int64, owner string, ttl, fence, keep int64) (Lock, Reply) {
	l = l.At(now)
	if l.Owner != "" || l.Fence != fence || fence == 0 {
		return l, reply(NotMine)
	}
	l.take(owner, now, ttl)
	l.FenceUntil = now/1000 + keep
	return l, l.kept()
}

// Release withdraws owner from the queue, or, with a stamp, keeps or gives it
// its place. If owner holds the lock, it passes to the first waiter that hears
// its wake-up, for the time handOver, and Release returns what that is told;
// else it is free. It is free also where the counter is lost, for no client's clock
// is at hand: the waiter that was woken takes it by its own clock. Without a stamp, a lock
// that nobody holds passes on as well.
func (l Lock) Release(now int64, owner string, stamp, handOver, keep int64, hears func(owner string) bool) (Lock, Wake) {
	l = l.At(now)
	if stamp != 0 {
		l.queue(owner, now, stamp)
	} else {
		l.Queue = l.Queue.Without(owner)
	}
	if l.Owner != owner && (l.Owner != "" || stamp != 0) {
		return l, Wake{}
	}
	return l.pass(now, owner, handOver, keep, stamp == 0, hears)
}

// Keep releases the lock for owner and lets it stand for minHold: it is nobody's then, and no
// request about the owner changes it any more. A lock that is not the owner's stays as it is.
func (l Lock) Keep(now int64, owner string, minHold, keep int64) Lock {
	l = l.At(now)
	l.Queue = l.Queue.Without(owner)
	if l.Owner == owner {
		l.take(KeptID(owner), now, minHold)
		if l.Fence != 0 {
			l.FenceUntil = now/1000 + keep
		}
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

// wake takes the first waiter that hears its wake-up out of the queue, and is ""
// where from is the first of all, or nobody hears.
func (l *Lock) wake(from string, hears func(owner string) bool) string {
	for head := l.first(from); head != ""; head = l.first(from) {
		l.Queue = l.Queue.Without(head)
		if hears(head) {
			return head
		}
	}
	return ""
}

// pass hands the lock over, or frees it. Where the first in the queue is from itself the lock
// is free: kept for it, the node would block all others until it asks again (trace C4).
// everywhere says that from releases on all nodes. With a handOver of 0 the lock is free, also
// where others wait.
func (l Lock) pass(now int64, from string, handOver, keep int64, everywhere bool, hears func(owner string) bool) (Lock, Wake) {
	if handOver == 0 {
		l.free()
		return l, Wake{}
	}
	promised := l.first(from) != "" && l.block(now, noClock, keep)
	w := Wake{Owner: l.wake(from, hears)}
	if w.Owner == "" || !promised {
		l.free()
		return l, w
	}
	l.take(w.Owner, now, handOver)
	if everywhere {
		w.Base, w.Left = Base(l.Fence), handOver
	}
	return l, w
}

// Force takes the lock away from the grant that token belongs to, so that the
// old holder can neither renew nor pass a storage that has seen a newer token. A lock that was
// released, and stands for its MinHold, is no grant's.
func (l Lock) Force(now, token, handOver, keep int64, hears func(owner string) bool) (Lock, bool, Wake) {
	l = l.At(now)
	if l.Owner == "" || IsKept(l.Owner) || l.Fence == 0 || !block.Has(Base(l.Fence), token) {
		return l, false, Wake{}
	}
	l.block(now, noClock, keep)
	l.Queue = l.Queue.Without(l.Owner)
	l, woken := l.pass(now, l.Owner, handOver, keep, true, hears)
	return l, true, woken
}
