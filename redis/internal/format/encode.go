package format

import (
	"strconv"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Proof is what a node compares before it does anything for a client: the marker with
// which the client found it admitted, and its key. One node alone compares nothing.
type Proof struct{ Set, Marker string }

// Encoder writes requests. It keeps the arguments that many of them share, and is for one goroutine at a time.
type Encoder struct {
	Proof
	heads *heads

	of  int64 // the TTL that ttl is for
	ttl string
}

// Encode appends the call of r's script to dst.
func (t *Encoder) Encode(dst []byte, r *engine.Request) []byte {
	if t.of != r.TTL {
		t.of, t.ttl = r.TTL, Millis(r.TTL)
	}
	switch r.Kind {
	case quorum.AskAcquire:
		head := &t.heads.acquire
		switch {
		case r.Least != 0:
			head = &t.heads.acquireLeast
		case r.Stamp != 0:
			head = &t.heads.acquireStamped
		}
		dst = resp.AppendDecimal(appendAll(t.begin(dst, head, r.Lock), r.Owner, t.ttl), r.Clock)
		if r.Stamp != 0 || r.Least != 0 {
			dst = appendOptional(dst, optional(r.Stamp))
		}
		dst = appendLeast(dst, r.Least)
	case quorum.AskAdopt:
		head := &t.heads.adopt
		if r.Least != 0 {
			head = &t.heads.adoptLeast
		}
		dst = resp.AppendDecimal(appendAll(t.begin(dst, head, r.Lock), r.From, r.Owner, t.ttl), r.Clock)
		dst = appendLeast(resp.AppendDecimal(dst, quorum.Millis(r.Noted)), r.Least)
	case quorum.AskCommit:
		dst = resp.AppendDecimal(resp.AppendString(t.begin(dst, &t.heads.commit, r.Lock), r.Owner), r.Token)
	case quorum.AskRenew:
		switch {
		case r.Anew:
			dst = resp.AppendDecimal(appendAll(t.begin(dst, &t.heads.renewAnew, r.Lock), r.Owner, t.ttl), r.Token)
		case r.Lock.Moves:
			// While the keys are on two servers, a script is executed where all of its own are: a lease must not
			// depend on a queue or a counter that has gone ahead, or is not there.
			return appendAll(append(dst, t.heads.renewAlone...), r.Lock.Key, r.Owner, t.ttl)
		default:
			dst = appendAll(t.begin(dst, &t.heads.renew, r.Lock), r.Owner, t.ttl)
		}
	default:
		args, n := releaseArgs(&r.Ask)
		dst = resp.AppendString(t.begin(dst, &t.heads.release[n], r.Lock), r.Owner)
		for _, arg := range args[:n] {
			dst = appendOptional(dst, arg)
		}
	}
	if t.Set != "" {
		dst = resp.AppendString(dst, t.Marker)
	}
	return dst
}

// none is an argument that is the empty text.
const none = -1

// optional is n as an argument, which 0 is not.
func optional(n int64) int64 {
	if n == 0 {
		return none
	}
	return n
}

// releaseArgs are the arguments of a release, or of a give-back, behind the owner, and how many of them are
// sent: those at the end are not that are the usual ones.
func releaseArgs(r *quorum.Ask) (args [4]int64, n int) {
	args = [...]int64{optional(r.Least), optional(r.Stamp), quorum.Millis(r.HandOver), optional(quorum.Millis(r.MinHold))}
	usual := [...]int64{none, none, quorum.Millis(quorum.HandOverMost), none}
	for n = len(args); n > 0 && args[n-1] == usual[n-1]; n-- {
	}
	return args, n
}

// ReleaseArgs are the arguments of a release, or of a give-back.
func ReleaseArgs(r *quorum.Ask) []string {
	texts := []string{r.Owner}
	args, n := releaseArgs(r)
	for _, arg := range args[:n] {
		texts = append(texts, "")
		if arg != none {
			texts[len(texts)-1] = Decimal(arg)
		}
	}
	return texts
}

// Call is the call of a script that compares the marker, for calls that are few.
func (p Proof) Call(s *wire.Script, lock engine.Lock, args ...string) []string {
	cmd := []string{"EVALSHA", s.SHA, "3", lock.Key, lock.Fence, lock.Queue}
	if p.Set == "" {
		return append(cmd, args...)
	}
	cmd[2] = "4"
	return append(append(append(cmd, p.Set), args...), p.Marker)
}

// begin appends the head of a call, and its keys.
func (t *Encoder) begin(dst []byte, h *head, l *engine.Lock) []byte {
	if t.Set == "" {
		return appendAll(append(dst, h.alone...), l.Key, l.Fence, l.Queue)
	}
	return appendAll(append(dst, h.member...), l.Key, l.Fence, l.Queue, t.Set)
}

// heads are how the calls of the scripts of a format begin.
type heads struct {
	acquire, acquireStamped, acquireLeast head
	adopt, adoptLeast                     head
	commit                                head
	renew, renewAnew                      head
	renewAlone                            []byte  // with the key of the lock and no other
	release                               [5]head // by how many arguments follow the owner
}

func headsOf(f *wire.Format) *heads {
	h := &heads{
		acquire: headOf(f.Acquire, 3), acquireStamped: headOf(f.Acquire, 4), acquireLeast: headOf(f.Acquire, 5),
		adopt: headOf(f.Adopt, 5), adoptLeast: headOf(f.Adopt, 6), commit: headOf(f.Commit, 2),
		renew: headOf(f.Renew, 2), renewAnew: headOf(f.Renew, 3), renewAlone: callOf(f.Renew, 1, 2),
	}
	for args := range h.release {
		h.release[args] = headOf(f.Release, 1+args)
	}
	return h
}

// head is how every call of a script with so many arguments begins: without the key of the
// set, and with it, where a marker follows the arguments.
type head struct{ alone, member []byte }

func headOf(s *wire.Script, args int) head {
	return head{alone: callOf(s, 3, args), member: callOf(s, 4, args+1)}
}

// callOf returns how a call of s with so many keys and arguments begins.
func callOf(s *wire.Script, keys, args int) []byte {
	dst := resp.AppendArray(nil, 3+keys+args)
	return resp.AppendDecimal(appendAll(dst, "EVALSHA", s.SHA), int64(keys))
}

func appendAll(dst []byte, texts ...string) []byte {
	for _, t := range texts {
		dst = resp.AppendString(dst, t)
	}
	return dst
}

func appendOptional(dst []byte, arg int64) []byte {
	if arg == none {
		return resp.AppendString(dst, "")
	}
	return resp.AppendDecimal(dst, arg)
}

// appendLeast appends the least token, if there is one.
func appendLeast(dst []byte, least int64) []byte {
	if least == 0 {
		return dst
	}
	return resp.AppendDecimal(dst, least)
}

// Decimal is n as an argument.
func Decimal(n int64) string { return strconv.FormatInt(n, 10) }

// Millis is ns in milliseconds.
func Millis(ns int64) string { return Decimal(quorum.Millis(ns)) }
