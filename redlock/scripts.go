package redlock

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/engine"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

func noScript(v resp.Value) bool { return v.IsError() && bytes.HasPrefix(v.Text, []byte("NOSCRIPT")) }

// unknownScript is noScript for a reply that was decoded.
func unknownScript(reply any) bool {
	err, ok := reply.(error)
	return ok && strings.HasPrefix(err.Error(), "NOSCRIPT")
}

// loads are the commands that make a server know the scripts, after SCRIPT FLUSH.
func loads() (cmds [][]string) {
	for _, s := range wire.Scripts {
		cmds = append(cmds, []string{"SCRIPT", "LOAD", s.Text})
	}
	return cmds
}

// texts are the arguments that many requests share.
type texts struct {
	of                  int64 // the TTL that the others are for
	ttl, keep, handOver string
}

func (t *texts) use(ttl int64) {
	if t.of != ttl {
		t.of, t.ttl, t.keep, t.handOver = ttl, millis(ttl), keep(ttl), millis(quorum.HandOver(ttl))
	}
}

// append appends the call of r's script to dst.
func (t *texts) append(dst []byte, r *engine.Request) []byte {
	t.use(r.TTL)
	l := r.Lock
	switch r.Kind {
	case quorum.AskAcquire:
		dst = appendAll(append(dst, acquireHead...), l.Key, l.Fence, l.Queue, r.Owner, t.ttl, r.Clock)
		return resp.AppendString(appendStamp(dst, r.Stamp), t.keep)
	case quorum.AskAdopt:
		dst = appendAll(append(dst, adoptHead...), l.Key, l.Fence, l.Queue, r.From, r.Owner)
		return appendAll(dst, t.ttl, r.Clock, t.keep)
	case quorum.AskCommit:
		dst = appendAll(append(dst, commitHead...), l.Key, l.Fence, r.Owner)
		return resp.AppendString(appendTop(dst, r.Token), t.keep)
	case quorum.AskRenew:
		dst = appendAll(append(dst, renewHead...), l.Key, l.Fence, l.Queue, r.Owner, t.ttl)
		return appendAll(appendTop(dst, r.Token), r.Clock, t.keep)
	case quorum.AskReclaim:
		dst = appendAll(append(dst, reclaimHead...), l.Key, l.Fence, l.Queue, r.Owner, t.ttl)
		return resp.AppendString(resp.AppendDecimal(dst, r.Token), t.keep)
	default:
		dst = appendAll(append(dst, releaseHead...), l.Key, l.Fence, l.Queue, r.Owner)
		handOver := t.handOver
		if r.HandOver == 0 {
			handOver = "0"
		}
		return appendAll(appendStamp(dst, r.Stamp), handOver, t.keep)
	}
}

var (
	acquireHead = head(wire.Acquire, 3, 5)
	adoptHead   = head(wire.Adopt, 3, 5)
	commitHead  = head(wire.Commit, 2, 3)
	renewHead   = head(wire.Renew, 3, 5)
	reclaimHead = head(wire.Reclaim, 3, 4)
	releaseHead = head(wire.Release, 3, 4)
)

// head is how every call of s begins.
func head(s *wire.Script, keys, args int) []byte {
	dst := resp.AppendArray(nil, 3+keys+args)
	return resp.AppendDecimal(appendAll(dst, "EVALSHA", s.SHA), int64(keys))
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
	return resp.AppendDecimal(dst, token+quorum.Block-1)
}

// millis rounds up: a node keeps a lock no shorter than its holder trusts it.
func millis(ns int64) string { return strconv.FormatInt((ns+999_999)/1_000_000, 10) }

// keep is how long a node keeps the counter of a lock with that TTL.
func keep(ttl int64) string {
	return strconv.FormatInt(quorum.FenceKeep((ttl+999_999)/1_000_000), 10)
}

var (
	errShape   = errors.New("not what the script answers")
	errNumber  = errors.New("not a number")
	errCounter = errors.New("the lock's counter of tokens is not above 0, as if somebody had set it")
)

// deliver answers r with what the server said.
func deliver(r *engine.Request, v resp.Value) {
	if v.IsError() {
		err := serverError(v)
		r.Fail(engine.Failure{Err: err, Fatal: fatal(err)})
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
		r.Granted(number)
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

// denied reads {time left, holder, waiters}.
func denied(r *engine.Request, v resp.Value) {
	if len(v.Elems) != 3 {
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

// serverError is an error reply without the ERR that says no more than that.
func serverError(v resp.Value) error {
	return resp.Error(strings.TrimPrefix(string(v.Text), "ERR "))
}
