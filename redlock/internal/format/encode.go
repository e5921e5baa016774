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

	of                  int64 // the TTL that the others are for; Ask.Life is one for a client
	ttl, keep, handOver string
	usual               bool // keep and handOver have their defaults
}

func (t *Encoder) use(r *engine.Request) {
	if t.of != r.TTL {
		t.of, t.ttl, t.keep, t.handOver = r.TTL, Millis(r.TTL), Decimal(r.Keep()), Millis(quorum.HandOver(r.TTL))
		t.usual = t.keep == usualKeep && t.handOver == usualHandOver
	}
}

// What the scripts take where the argument is missing.
var usualKeep, usualHandOver = Millis(quorum.CounterLife), Millis(quorum.HandOverMost)

// Encode appends the call of r's script to dst.
func (t *Encoder) Encode(dst []byte, r *engine.Request) []byte {
	t.use(r)
	short := t.usual && r.Stamp == 0 && r.MinHold == 0
	switch r.Kind {
	case quorum.AskAcquire:
		head := &t.heads.acquire
		if short {
			head = &t.heads.acquireShort
		}
		dst = resp.AppendDecimal(appendAll(t.begin(dst, head, r.Lock), r.Owner, t.ttl), r.Clock)
		if !short {
			dst = resp.AppendString(appendStamp(dst, r.Stamp), t.keep)
		}
	case quorum.AskAdopt:
		dst = resp.AppendDecimal(appendAll(t.begin(dst, &t.heads.adopt, r.Lock), r.From, r.Owner, t.ttl), r.Clock)
		dst = resp.AppendString(dst, t.keep)
	case quorum.AskCommit:
		dst = resp.AppendString(t.begin(dst, &t.heads.commit, r.Lock), r.Owner)
		dst = resp.AppendString(appendTop(dst, r.Token), t.keep)
	case quorum.AskRenew:
		dst = appendAll(t.begin(dst, &t.heads.renew, r.Lock), r.Owner, t.ttl)
		dst = resp.AppendString(resp.AppendDecimal(appendTop(dst, r.Token), r.Clock), t.keep)
	case quorum.AskReclaim:
		dst = appendAll(t.begin(dst, &t.heads.reclaim, r.Lock), r.Owner, t.ttl)
		dst = resp.AppendString(resp.AppendDecimal(dst, r.Token), t.keep)
	default:
		if short && r.HandOver != 0 {
			dst = resp.AppendString(t.begin(dst, &t.heads.releaseShort, r.Lock), r.Owner)
			break
		}
		head, args := &t.heads.release, ReleaseArgs(r)
		if len(args) == keepArgs {
			head = &t.heads.keep
		}
		dst = appendAll(t.begin(dst, head, r.Lock), args...)
	}
	if t.Set != "" {
		dst = resp.AppendString(dst, t.Marker)
	}
	return dst
}

// keepArgs is how many arguments a release has that lets the lock stand.
const keepArgs = 5

// ReleaseArgs are the arguments of a release, or of a give-back.
func ReleaseArgs(r *engine.Request) []string {
	args := []string{r.Owner, "", Millis(r.HandOver), Decimal(r.Keep())}
	if r.Stamp != 0 {
		args[1] = Decimal(r.Stamp)
	}
	if r.MinHold > 0 {
		args = append(args, Millis(r.MinHold))
	}
	return args
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
	acquire, adopt, commit, renew, reclaim, release head
	keep                                            head // a release that lets the lock stand
	acquireShort                                    head // stamp and keep have their defaults
	releaseShort                                    head // all but the owner have their defaults
}

func headsOf(f *wire.Format) *heads {
	return &heads{
		acquire: headOf(f.Acquire, 5), acquireShort: headOf(f.Acquire, 3), adopt: headOf(f.Adopt, 5), commit: headOf(f.Commit, 3),
		renew: headOf(f.Renew, 5), reclaim: headOf(f.Reclaim, 4), release: headOf(f.Release, 4),
		keep: headOf(f.Release, keepArgs), releaseShort: headOf(f.Release, 1),
	}
}

// head is how every call of a script with so many arguments begins: without the key of the
// set, and with it, where a marker follows the arguments.
type head struct{ alone, member []byte }

func headOf(s *wire.Script, args int) head {
	with := func(keys, args int) []byte {
		dst := resp.AppendArray(nil, 3+keys+args)
		return resp.AppendDecimal(appendAll(dst, "EVALSHA", s.SHA), int64(keys))
	}
	return head{alone: with(3, args), member: with(4, args+1)}
}

func appendAll(dst []byte, texts ...string) []byte {
	for _, t := range texts {
		dst = resp.AppendString(dst, t)
	}
	return dst
}

func appendStamp(dst []byte, stamp int64) []byte {
	if stamp == 0 {
		return resp.AppendString(dst, "")
	}
	return resp.AppendDecimal(dst, stamp)
}

// appendTop appends the last token of the block that begins at token; nothing for none.
func appendTop(dst []byte, token int64) []byte {
	if token == 0 {
		return resp.AppendString(dst, "")
	}
	return resp.AppendDecimal(dst, quorum.Top(token))
}

// Decimal is n as an argument.
func Decimal(n int64) string { return strconv.FormatInt(n, 10) }

// Millis is ns in milliseconds.
func Millis(ns int64) string { return Decimal(quorum.Millis(ns)) }
