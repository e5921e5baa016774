package quorum

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Lock is one lock on one node, the Go twin of the Lua scripts in internal/wire/scripts. Each exported method
// that changes the lock corresponds to one script (Release and Keep are both release.lua). It is a pure
// function of the lock, the node's clock now (µs since 1970) and its arguments; TTLs and hand-overs are in
// milliseconds. The zero value is a lock that was never acquired, on a node that has granted none. Times of
// expiry are in milliseconds, and something expires once the clock is past them, as in Redis 7; a newer server
// may drop it a millisecond sooner.
type Lock struct {
	Owner string // "" while free
	Token int64  // first token of the owner: granted by this node, or committed; 0: none
	Until int64
	Queue Queue
	Notes Notes // owners that lost the lock by Force or Adopt: none of their requests gets it back
	// Fence is the highest token that the node has promised for any of the locks that share this counter. It
	// never expires. 0: the node has promised none.
	Fence int64
}

// At returns the lock at the time now, without expired parts.
func (l Lock) At(now int64) Lock {
	now /= 1000
	if now > l.Until {
		l.free()
	}
	l.Queue, l.Notes = l.Queue.withoutExpired(now), l.Notes.withoutExpired(now)
	return l
}

// ClockError is returned by a node that did not start a counter of tokens because clocks differ.
type ClockError struct {
	Ahead int64 // time by which the node's clock is ahead of the client's, in µs
}

// Error returns the text of the error that the scripts return.
func (e ClockError) Error() string {
	ahead, side := e.Ahead, "ahead of"
	if ahead <= 0 {
		ahead, side = -ahead, "behind"
	}
	return fmt.Sprintf("CLOCK the node's clock is %.0f s %s the client's, and a counter of tokens must not start there: synchronise the clocks",
		float64(ahead)/1_000_000, side)
}

// ErrNoTokensLeft is returned by a node whose counter has no tokens left: see MaxToken.
var ErrNoTokensLeft = errors.New("COUNTER no tokens are left")

// nextTokenBlock promises the next block of tokens, none below least. It returns an error, and changes
// nothing, if a new counter must not start, or no tokens are left.
func (l *Lock) nextTokenBlock(now, clock, least int64) (base int64, err error) {
	base = l.Fence + 1
	if l.Fence <= 0 {
		var ok bool
		if base, ok = Seed(now, clock); !ok {
			l.Fence = 0
			return 0, ClockError{Ahead: now - clock}
		}
	}
	base = max(base, least)
	if base > FirstOfBlock(MaxToken) {
		return 0, ErrNoTokensLeft
	}
	l.Fence = LastOfBlock(base)
	return base, nil
}

func (l *Lock) take(owner string, token, now, ttl int64) {
	l.Owner, l.Token, l.Until = owner, token, now/1000+ttl
}

// prolong keeps the lock for ttl from now on, and never shortens it. A broken connection may still execute a
// request long after a later one of the same owner, and must not end what was promised since (trace C14).
func (l *Lock) prolong(now, ttl int64) { l.Until = max(l.Until, now/1000+ttl) }

func (l *Lock) free() { l.Owner, l.Token, l.Until = "", 0, 0 }

// queueOwner gives owner a place in the queue, or extends the life of its place. An id from which the lock was
// taken gets none, because the lock would be handed to it.
func (l *Lock) queueOwner(owner string, now, stamp int64) {
	if !l.wasTaken(owner) {
		l.Queue = l.Queue.With(Place{Owner: owner, Stamp: stamp, Until: now/1000 + QueueKeep})
	}
}

// Wake is a wake-up. If the holder releases on all nodes, it is all that the waiter needs; otherwise the
// waiter asks.
type Wake struct {
	Owner string // id of the waiter; "": nobody was woken
	Base  int64  // first token of its block; 0: not in the message
	Left  int64  // ms until the lock expires; 0: not in the message
}

// String returns the message for the waiter.
func (w Wake) String() string {
	if w.Base == 0 {
		return w.Owner
	}
	return fmt.Sprintf("%s %d %d", w.Owner, w.Base, w.Left)
}

// ParseWake parses a message of String. The result has no token if the message is malformed, or if no script
// would send it: its number is no token, or its hand-over is too long. Any client with the permission to
// publish can imitate a node, and a receiver must not trust an imitation longer than a real message.
func ParseWake(text string) Wake {
	owner, rest, _ := strings.Cut(text, " ")
	base, left, _ := strings.Cut(rest, " ")
	w := Wake{Owner: owner}
	b, err1 := strconv.ParseInt(base, 10, 64)
	l, err2 := strconv.ParseInt(left, 10, 32)
	if err1 == nil && err2 == nil && b > 0 && b <= FirstOfBlock(MaxToken) && l > 0 && l <= MaxHandOver/ms {
		w.Base, w.Left = b, l
	}
	return w
}

// forcedMark follows the id in the message to a force-released holder.
const forcedMark = " forced "

// Forced returns the message to the client of owner, whose lock Force has taken away for the reason why.
func Forced(owner, why string) string { return owner + forcedMark + why }

// ParseForced parses a message of Forced. ok is false for any other text.
func ParseForced(text string) (owner, why string, ok bool) { return strings.Cut(text, forcedMark) }

// Acquire gives the lock to owner or, with a stamp other than 0, queues owner. If the lock is free and has
// waiters, the first waiter with a listening client gets it, the caller is denied, and the wake-up is for that
// waiter. clock is the client's wall clock in µs, least the lowest token that the client may use. Acquire may
// be repeated. An id from which the lock was taken never gets it again: such a request was sent before, and
// its client may rely on a lease that has ended.
func (l Lock) Acquire(now int64, owner string, ttl, clock, least, stamp int64, hears func(owner string) bool) (Lock, Reply, Wake) {
	l = l.At(now)
	if l.Owner != owner && l.wasTaken(owner) {
		return l, l.deniedReplyAt(now), Wake{}
	}
	switch l.Owner {
	case "":
		base, err := l.nextTokenBlock(now, clock, least)
		if err != nil {
			return l, failedReply(err), Wake{}
		}
		if stamp != 0 && l.Queue != "" {
			l.queueOwner(owner, now, stamp)
		}
		if woken := l.wakeWaiter(owner, hears); woken != "" {
			left := HandOverTime(ttl*ms) / ms
			l.take(woken, base, now, left)
			return l, l.deniedReply(left), Wake{Owner: woken}
		}
		l.take(owner, base, now, ttl)
		l.Queue = l.Queue.Without(owner)
		return l, l.grantedReply(), Wake{}
	case owner:
		l, reply := l.grantAgain(now, ttl, clock, least)
		return l, reply, Wake{}
	}
	if stamp != 0 {
		l.queueOwner(owner, now, stamp)
	}
	return l, l.deniedReplyAt(now), Wake{}
}

// grantAgain grants the owner its lock again, with the same token. If the lock has no token, or one below
// least, the node has gone back to older data, and the owner gets new tokens.
func (l Lock) grantAgain(now, ttl, clock, least int64) (Lock, Reply) {
	if l.Token < max(least, 1) {
		base, err := l.nextTokenBlock(now, clock, least)
		if err != nil {
			return l, failedReply(err)
		}
		l.Token = base
	}
	l.prolong(now, ttl)
	return l, l.grantedReply()
}

// Adopt passes the lock from the owner from to owner, with a new block of tokens, and keeps a note about from
// for at least noted ms. It may be repeated. It denies a free lock and a lock of any other owner. Force also
// takes a lock from its owner, but it compares the token, gives the lock to no owner of its own, and uses no
// client's clock.
func (l Lock) Adopt(now int64, from, owner string, ttl, clock, least, noted int64) (Lock, Reply) {
	switch l = l.At(now); {
	case l.Owner == "", l.wasTaken(owner):
		return l, l.deniedReplyAt(now)
	case l.Owner == owner:
		l, r := l.grantAgain(now, ttl, clock, least)
		if r.Kind == Granted {
			l.noteTaken(from, now, noted)
			l.Queue = l.Queue.Without(from)
		}
		return l, r
	case l.Owner != from:
		return l, l.deniedReplyAt(now)
	}
	base, err := l.nextTokenBlock(now, clock, least)
	if err != nil {
		return l, failedReply(err)
	}
	l.noteTaken(from, now, noted)
	l.take(owner, base, now, ttl)
	l.Queue = l.Queue.Without(from)
	return l, l.grantedReply()
}

// Commit fixes token for owner. It checks the owner, because there may have been another grant in between. It
// checks that the lock has no higher token, because the node may have granted the lock to the owner again,
// with other grants in between. And it needs the counter, which must not start from a token.
func (l Lock) Commit(now int64, owner string, token int64) (Lock, Reply) {
	l = l.At(now)
	if l.Owner != owner || l.Token > token || l.Fence <= 0 {
		return l, replyOf(Refused)
	}
	l.Token, l.Fence = token, max(l.Fence, LastOfBlock(token))
	return l, replyOf(Accepted)
}

// Renew prolongs the lock, and never shortens it. A free lock does not belong to the owner, unless restore is
// set because the owner still has a quorum: then the lock is restored with its token. A lock that Force or
// Adopt took from the owner is not restored. While the note about that exists, the lock cannot be the owner's
// here, so the notes matter only for a free lock.
func (l Lock) Renew(now int64, owner string, ttl, token int64, restore bool) (Lock, Reply) {
	l = l.At(now)
	switch {
	case l.Owner == owner:
		l.prolong(now, ttl)
	case l.Owner == "" && restore && !l.wasTaken(owner):
		l.take(owner, token, now, ttl)
	default:
		return l, replyOf(NotMine)
	}
	return l, l.keptReply()
}

// Release removes owner from the queue or, with a stamp, keeps or gives it its place. A lock of owner passes
// to the first waiter with a listening client, for the time handOver, and Release returns the wake-up; without
// such a waiter the lock is free. The lock is also free if the counter is lost, because no client's clock is
// known here: the woken waiter then acquires it with its own clock. Without a stamp, a free lock passes on as
// well.
func (l Lock) Release(now int64, owner string, least, stamp, handOver int64, hears func(owner string) bool) (Lock, Wake) {
	l = l.At(now)
	if stamp != 0 {
		l.queueOwner(owner, now, stamp)
	} else {
		l.Queue = l.Queue.Without(owner)
	}
	if l.Owner != owner && (l.Owner != "" || stamp != 0) {
		return l, Wake{}
	}
	return l.handOverOrFree(now, owner, least, handOver, stamp == 0, hears)
}

// Keep releases the lock for owner and keeps it held for minHold: it has no owner then, and no request of
// owner changes it any more. A lock of another owner stays as it is.
func (l Lock) Keep(now int64, owner string, minHold int64) Lock {
	l = l.At(now)
	l.Queue = l.Queue.Without(owner)
	if l.Owner == owner {
		l.take(MinHoldID(owner), 0, now, minHold)
	}
	return l
}

// firstWaiter returns the first id in the queue, or "" if that is from, or the queue is empty.
func (l *Lock) firstWaiter(from string) string {
	if head, _ := l.Queue.Head(); head != from {
		return head
	}
	return ""
}

// wakeWaiter removes the first waiter with a listening client from the queue, and the waiters before it. It
// returns "" if from comes before any such waiter, or there is none.
func (l *Lock) wakeWaiter(from string, hears func(owner string) bool) string {
	for owner := range l.Queue.candidates {
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

// handOverOrFree hands the lock over to the first waiter, or frees it. If from is the first in the queue, it
// frees the lock: kept for from, the lock would block all others until from asks again (trace C4). everywhere
// reports that from releases on all nodes. With a handOver of 0 the lock becomes free even if others wait.
func (l Lock) handOverOrFree(now int64, from string, least, handOver int64, everywhere bool, hears func(owner string) bool) (Lock, Wake) {
	if handOver == 0 || l.firstWaiter(from) == "" {
		l.free()
		return l, Wake{}
	}
	base, err := l.nextTokenBlock(now, noClock, least)
	w := Wake{Owner: l.wakeWaiter(from, hears)}
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

// maxNoteEnd bounds the end of a note, in ms since 1970, because another program may have given a lock any
// TTL.
const maxNoteEnd = 100_000_000_000_000

// noteTaken keeps a note that the lock was taken from owner, for noted ms or for the remaining time of the
// lock here, whichever is longer. On another node the owner may have the lock for longer, and still trust it.
func (l *Lock) noteTaken(owner string, now, noted int64) {
	l.Notes = l.Notes.With(owner, min(max(l.Until, now/1000+noted, now/1000+1), maxNoteEnd))
}

// wasTaken reports whether the lock was taken from owner by Force or Adopt.
func (l *Lock) wasTaken(owner string) bool {
	_, ok := l.Notes.Until(owner)
	return ok
}

// Force takes the lock away from owner, and keeps a note about that for at least noted ms. A released lock
// that is kept for its MinHold does not belong to its owner any more.
func (l Lock) Force(now int64, owner string, least, handOver, noted int64, hears func(owner string) bool) (Lock, bool, Wake) {
	l = l.At(now)
	if l.Owner == "" || l.Owner != owner {
		return l, false, Wake{}
	}
	l.Queue = l.Queue.Without(owner)
	l.noteTaken(owner, now, noted)
	l, woken := l.handOverOrFree(now, owner, least, handOver, true, hears)
	return l, true, woken
}
