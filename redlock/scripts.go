package redlock

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

func noScript(v resp.Value) bool { return v.IsError() && bytes.HasPrefix(v.Text, []byte("NOSCRIPT")) }

// says says whether a reply that was decoded is an error of that code: NOSCRIPT, or
// UNADMITTED, with which a script refuses where the node is not the one that was admitted.
func says(reply any, code string) bool {
	err, ok := reply.(error)
	return ok && strings.HasPrefix(err.Error(), code)
}

// loads are the commands that make a server know the scripts, after SCRIPT FLUSH.
func (f *format) loads() (cmds [][]string) {
	for _, s := range f.scripts {
		cmds = append(cmds, []string{"SCRIPT", "LOAD", s.Text})
	}
	return cmds
}

// proof is what a node compares before it does anything for a client: the marker with
// which the client found it admitted, and its key. One node alone compares nothing.
type proof struct{ set, marker string }

// texts are the arguments that many requests share.
type texts struct {
	proof
	heads *heads

	of                  int64 // the TTL that the others are for; Ask.Life is one for a client
	ttl, keep, handOver string
	usual               bool // keep and handOver have their defaults
}

func (t *texts) use(r *engine.Request) {
	if t.of != r.TTL {
		t.of, t.ttl, t.keep, t.handOver = r.TTL, millis(r.TTL), decimal(r.Keep()), millis(quorum.HandOver(r.TTL))
		t.usual = t.keep == usualKeep && t.handOver == usualHandOver
	}
}

// What the scripts take where the argument is missing.
var usualKeep, usualHandOver = millis(quorum.CounterLife), millis(quorum.HandOverMost)

// append appends the call of r's script to dst.
func (t *texts) append(dst []byte, r *engine.Request) []byte {
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
		head, args := &t.heads.release, releaseArgs(r)
		if len(args) == keepArgs {
			head = &t.heads.keep
		}
		dst = appendAll(t.begin(dst, head, r.Lock), args...)
	}
	if t.set != "" {
		dst = resp.AppendString(dst, t.marker)
	}
	return dst
}

// keepArgs is how many arguments a release has that lets the lock stand.
const keepArgs = 5

// releaseArgs are the arguments of a release, or of a give-back.
func releaseArgs(r *engine.Request) []string {
	args := []string{r.Owner, "", millis(r.HandOver), decimal(r.Keep())}
	if r.Stamp != 0 {
		args[1] = decimal(r.Stamp)
	}
	if r.MinHold > 0 {
		args = append(args, millis(r.MinHold))
	}
	return args
}

// call is the call of a script that compares the marker, for calls that are few.
func (m proof) call(s *wire.Script, lock engine.Lock, args ...string) []string {
	cmd := []string{"EVALSHA", s.SHA, "3", lock.Key, lock.Fence, lock.Queue}
	if m.set == "" {
		return append(cmd, args...)
	}
	cmd[2] = "4"
	return append(append(append(cmd, m.set), args...), m.marker)
}

// begin appends the head of a call, and its keys.
func (t *texts) begin(dst []byte, h *head, l *engine.Lock) []byte {
	if t.set == "" {
		return appendAll(append(dst, h.alone...), l.Key, l.Fence, l.Queue)
	}
	return appendAll(append(dst, h.member...), l.Key, l.Fence, l.Queue, t.set)
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

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// millis is ns in milliseconds.
func millis(ns int64) string { return decimal(quorum.Millis(ns)) }

var (
	errShape   = errors.New("not what the script answers")
	errNumber  = errors.New("not a number")
	errCounter = errors.New("the lock's counter of tokens is not above 0, as if somebody had set it")
)

// deliver answers r with what the server said over l.
func deliver(r *engine.Request, v resp.Value, l *link) {
	if v.IsError() {
		r.Fail(engine.Failure{Err: serverError(v), Fatal: fatal(code(v.Text))})
		return
	}
	number, isNumber := v.Int()
	asks := r.Kind == quorum.AskAcquire || r.Kind == quorum.AskAdopt
	switch {
	case asks && !isNumber:
		denied(r, v)
	case !isNumber:
		r.Fail(engine.Failure{Err: unexpected(errNumber)})
	case asks && number <= 0:
		r.Fail(engine.Failure{Err: fmt.Errorf("%w: DEL %s once the lock is free", errCounter, r.Lock.Fence), Fatal: true})
	case asks:
		floor, err := l.least()
		if err != nil {
			r.Fail(engine.Failure{Err: err})
			return
		}
		r.Granted(number, floor)
	case r.Kind == quorum.AskCommit:
		r.Committed(number == 1)
	case (r.Kind == quorum.AskRenew || r.Kind == quorum.AskReclaim) && number == -1:
		r.NotMine()
	case r.Kind == quorum.AskRenew && number < 0:
		r.Superseded(-number)
	case r.Kind == quorum.AskRenew, r.Kind == quorum.AskReclaim:
		r.Kept(int(number))
	default:
		r.Freed()
	}
}

// denied reads {time left, holder, waiters}, and what a format may say beyond that.
func denied(r *engine.Request, v resp.Value) {
	if len(v.Elems) < 3 {
		r.Fail(engine.Failure{Err: unexpected(errShape)})
		return
	}
	left, ok1 := v.Elems[0].Int()
	waiters, ok2 := v.Elems[2].Int()
	holder := v.Elems[1]
	if !ok1 || !ok2 || holder.Null || holder.IsError() || holder.Elems != nil {
		r.Fail(engine.Failure{Err: unexpected(errShape)})
		return
	}
	r.Denied(left*int64(time.Millisecond), string(holder.Text), int(waiters))
}

func unexpected(err error) error { return fmt.Errorf("unexpected reply: %w", err) }

// decode is v as calls have it.
func decode(v resp.Value) any {
	if v.IsError() {
		return serverError(v)
	}
	return v.Decode()
}

// serverError is an error reply without its meaningless ERR.
func serverError(v resp.Value) error {
	return resp.Error(strings.TrimPrefix(string(v.Text), "ERR "))
}
