package format

import (
	"strconv"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Proof is the part of a request with which a server checks that it is still the admitted one: the marker that
// the client found, and the marker's key. A single node checks nothing.
type Proof struct{ Set, Marker string }

// Encoder writes requests. It caches arguments that many requests share. One goroutine at a time may use it.
type Encoder struct {
	Proof
	heads *callHeads

	ttlFor int64 // TTL whose text is ttl
	ttl    string
}

// Encode appends the command for r to dst.
func (t *Encoder) Encode(dst []byte, r *engine.Request) []byte {
	if t.ttlFor != r.TTL {
		t.ttlFor, t.ttl = r.TTL, Millis(r.TTL)
	}
	switch r.Kind {
	case quorum.AskAcquire:
		head := &t.heads.acquire
		switch {
		case r.Least != 0:
			head = &t.heads.acquireLeastToken
		case r.Stamp != 0:
			head = &t.heads.acquireStamped
		}
		dst = resp.AppendDecimal(appendAll(t.appendHead(dst, head, r.Lock), r.Owner, t.ttl), r.Clock)
		if r.Stamp != 0 || r.Least != 0 {
			dst = appendOptional(dst, optionalArgument(r.Stamp))
		}
		dst = appendLeastToken(dst, r.Least)
	case quorum.AskAdopt:
		head := &t.heads.adopt
		if r.Least != 0 {
			head = &t.heads.adoptLeastToken
		}
		dst = resp.AppendDecimal(appendAll(t.appendHead(dst, head, r.Lock), r.From, r.Owner, t.ttl), r.Clock)
		dst = appendLeastToken(resp.AppendDecimal(dst, quorum.Millis(r.Noted)), r.Least)
	case quorum.AskCommit:
		dst = resp.AppendDecimal(resp.AppendString(t.appendHead(dst, &t.heads.commit, r.Lock), r.Owner), r.Token)
	case quorum.AskRenew:
		switch {
		case r.Restore:
			dst = resp.AppendDecimal(appendAll(t.appendHead(dst, &t.heads.renewRestoring, r.Lock), r.Owner, t.ttl), r.Token)
		case r.Lock.Moves:
			// While a slot moves, a script runs only where all of its keys are. So a renewal names only the
			// lock's key: it must not depend on a queue or a counter that has moved already, or does not exist.
			return appendAll(append(dst, t.heads.renewAlone...), r.Lock.Key, r.Owner, t.ttl)
		default:
			dst = appendAll(t.appendHead(dst, &t.heads.renew, r.Lock), r.Owner, t.ttl)
		}
	default:
		args, n := releaseArgs(&r.Ask)
		dst = resp.AppendString(t.appendHead(dst, &t.heads.release[n], r.Lock), r.Owner)
		for _, arg := range args[:n] {
			dst = appendOptional(dst, arg)
		}
	}
	if t.Set != "" {
		dst = resp.AppendString(dst, t.Marker)
	}
	return dst
}

// noArgument marks an argument that is the empty string.
const noArgument = -1

// optionalArgument returns n, or for 0 the empty argument.
func optionalArgument(n int64) int64 {
	if n == 0 {
		return noArgument
	}
	return n
}

// releaseArgs returns the arguments of a release or a give-back after the owner, and the number of arguments
// to send: defaults at the end are left out.
func releaseArgs(r *quorum.Ask) (args [4]int64, n int) {
	args = [...]int64{optionalArgument(r.Least), optionalArgument(r.Stamp), quorum.Millis(r.HandOver), optionalArgument(quorum.Millis(r.MinHold))}
	usual := [...]int64{noArgument, noArgument, quorum.Millis(quorum.MaxHandOver), noArgument}
	for n = len(args); n > 0 && args[n-1] == usual[n-1]; n-- {
	}
	return args, n
}

// ReleaseArgs returns the arguments of a release or a give-back.
func ReleaseArgs(r *quorum.Ask) []string {
	texts := []string{r.Owner}
	args, n := releaseArgs(r)
	for _, arg := range args[:n] {
		texts = append(texts, "")
		if arg != noArgument {
			texts[len(texts)-1] = Decimal(arg)
		}
	}
	return texts
}

// Call returns a call, for rare use, of a script that compares the marker.
func (p Proof) Call(s *wire.Script, lock engine.Lock, args ...string) []string {
	cmd := []string{"EVALSHA", s.SHA, "3", lock.Key, lock.Fence, lock.Queue}
	if p.Set == "" {
		return append(cmd, args...)
	}
	cmd[2] = "4"
	return append(append(append(cmd, p.Set), args...), p.Marker)
}

// appendHead appends the head of a call and its keys.
func (t *Encoder) appendHead(dst []byte, h *callHead, l *engine.Lock) []byte {
	if t.Set == "" {
		return appendAll(append(dst, h.alone...), l.Key, l.Fence, l.Queue)
	}
	return appendAll(append(dst, h.member...), l.Key, l.Fence, l.Queue, t.Set)
}

// callHeads holds the encoded beginnings of the calls of a format's scripts.
type callHeads struct {
	acquire, acquireStamped, acquireLeastToken callHead
	adopt, adoptLeastToken                     callHead
	commit                                     callHead
	renew, renewRestoring                      callHead
	renewAlone                                 []byte      // with only the key of the lock
	release                                    [5]callHead // by the number of arguments after the owner
}

func newHeads(f *wire.Format) *callHeads {
	h := &callHeads{
		acquire: newHead(f.Acquire, 3), acquireStamped: newHead(f.Acquire, 4), acquireLeastToken: newHead(f.Acquire, 5),
		adopt: newHead(f.Adopt, 5), adoptLeastToken: newHead(f.Adopt, 6), commit: newHead(f.Commit, 2),
		renew: newHead(f.Renew, 2), renewRestoring: newHead(f.Renew, 3), renewAlone: encodeHead(f.Renew, 1, 2),
	}
	for args := range h.release {
		h.release[args] = newHead(f.Release, 1+args)
	}
	return h
}

// callHead is the encoded beginning of all calls of a script with the same number of arguments: alone without a
// marker, and member with the key of the set and a marker after the arguments.
type callHead struct{ alone, member []byte }

func newHead(s *wire.Script, args int) callHead {
	return callHead{alone: encodeHead(s, 3, args), member: encodeHead(s, 4, args+1)}
}

// encodeHead returns the beginning of a call of s with the given numbers of keys and arguments.
func encodeHead(s *wire.Script, keys, args int) []byte {
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
	if arg == noArgument {
		return resp.AppendString(dst, "")
	}
	return resp.AppendDecimal(dst, arg)
}

// appendLeastToken appends the lowest token, if there is one.
func appendLeastToken(dst []byte, least int64) []byte {
	if least == 0 {
		return dst
	}
	return resp.AppendDecimal(dst, least)
}

// Decimal returns n as an argument.
func Decimal(n int64) string { return strconv.FormatInt(n, 10) }

// Millis returns ns in milliseconds.
func Millis(ns int64) string { return Decimal(quorum.Millis(ns)) }
