package format

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
)

// Deliver answers r with what the server said. usable is why a token that it has given must not be used.
func Deliver(r *engine.Request, v resp.Value, usable func(lock *engine.Lock, token int64) error) {
	if v.IsError() {
		r.Fail(engine.Failure{Err: damaged(r.Lock, v.Err()), Fatal: fatal(Code(v.Text))})
		return
	}
	number, isNumber := v.Int()
	asks := r.Kind == quorum.AskAcquire || r.Kind == quorum.AskAdopt
	switch {
	case asks && !isNumber:
		denied(r, v)
	case !isNumber:
		r.Fail(engine.Failure{Err: resp.Unexpected(resp.ErrNumber)})
	case asks:
		if err := usable(r.Lock, number); err != nil {
			r.Fail(engine.Failure{Err: err})
		} else if number <= 0 || number > quorum.MaxToken {
			r.Fail(engine.Failure{Err: damaged(r.Lock, errNoToken), Fatal: true})
		} else {
			r.Granted(number)
		}
	case r.Kind == quorum.AskCommit:
		r.Committed(number == 1)
	case r.Kind == quorum.AskRenew && number < 0:
		r.NotMine()
	case r.Kind == quorum.AskRenew:
		r.Kept(int(number))
	default:
		r.Freed()
	}
}

// denied reads {time left, holder, waiters}, and what a format may say beyond that.
func denied(r *engine.Request, v resp.Value) {
	if len(v.Elems) < 3 {
		r.Fail(engine.Failure{Err: resp.Unexpected(resp.ErrShape)})
		return
	}
	left, ok1 := v.Elems[0].Int()
	waiters, ok2 := v.Elems[2].Int()
	holder := v.Elems[1]
	if holder.IsError() { // a value that is too long to be a holder's
		r.Fail(engine.Failure{Err: holder.Err()})
		return
	}
	if !ok1 || !ok2 || holder.Null || holder.Elems != nil {
		r.Fail(engine.Failure{Err: resp.Unexpected(resp.ErrShape)})
		return
	}
	r.Denied(int64(duration(left)), string(holder.Text), int(waiters))
}

// duration returns ms milliseconds, or the longest duration if these are more: another program may give a key any TTL.
func duration(ms int64) time.Duration {
	return time.Duration(min(ms, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

// errNoToken is the cause where a script has answered with a number that is no token.
var errNoToken = resp.Error("COUNTER its number is no token")

// damaged names the key that is not as the scripts leave it, and how to repair it, if err of a script is about that.
func damaged(lock *engine.Lock, err error) error {
	text := err.Error()
	switch {
	case Code([]byte(text)) == "WRONGTYPE":
		return fmt.Errorf("%w; %s has to be a string, and %s a sorted set: DEL the one that TYPE shows to be another", err, lock.Fence, lock.Queue)
	case Code([]byte(text)) == "COUNTER", strings.Contains(text, "not an integer"), strings.Contains(text, "would overflow"):
		return fmt.Errorf("%w; another program has changed the counter of tokens %s: DEL it, upon which tokens begin at the clock; "+
			"a storage that has seen a higher token has to forget it", err, lock.Fence)
	}
	return err
}

// Code is the first word of an error reply, by which servers say what kind it is. A
// script of Redis 6 hides that of a command within its own.
func Code(text []byte) string {
	word, rest, _ := strings.Cut(string(text), " ")
	if word == "ERR" && strings.HasPrefix(rest, "Error running script") {
		if _, inner, ok := strings.Cut(rest, ": -"); ok {
			word, _, _ = strings.Cut(inner, " ")
		}
	}
	return word
}

// fatal says whether a server that refuses with code will do so until an operator
// changes rights, credentials, a key of another type where the queue or the counter
// should be, a counter that is at its end, or a command or script that it should know. The other codes pass: the
// server loads its data, is busy, lacks replicas or memory for the time being,
// cannot save, or is a replica now.
func fatal(code string) bool {
	return slices.Contains([]string{"ERR", "NOPERM", "NOAUTH", "WRONGPASS", "DENIED", "WRONGTYPE", "COUNTER"}, code)
}

// errForgot is why a connection ends over which a script has found another marker than that of the admission.
var errForgot = errors.New("its data were lost or replaced while it was connected")

// Ends is why the checks at the start of a connection hold no more, if v says
// so: the server is a replica now, or no longer in the run in which it was
// admitted.
func Ends(v resp.Value) error {
	if !v.IsError() {
		return nil
	}
	switch Code(v.Text) {
	case "UNADMITTED":
		return errForgot
	case "READONLY", "MASTERDOWN":
		return v.Err()
	}
	return nil
}

// View reads what the script Inspect answers about a lock.
func View(lock *engine.Lock, reply any) engine.View {
	if err, ok := reply.(error); ok {
		return engine.View{Err: damaged(lock, err)}
	}
	list, _ := reply.([]any)
	if len(list) != 4 {
		return engine.View{Err: resp.Unexpected(resp.ErrShape)}
	}
	owner, ok1 := list[0].(string)
	left, ok2 := list[1].(int64)
	text, ok3 := list[2].(string)
	waiters, ok4 := list[3].(int64)
	defect, bad := list[3].(error)
	token, err := strconv.ParseInt(text, 10, 64)
	if !ok1 || !ok2 || !ok3 || !ok4 && !bad || err != nil {
		return engine.View{Err: resp.Unexpected(resp.ErrShape)}
	}
	if left == -2 { // there is no such key; -1 is one without an end
		left = 0
	}
	if engine.Tokenless(owner) {
		token = 0
	}
	v := engine.View{Owner: owner, Left: duration(left), Token: token, Waiters: int(waiters)}
	if bad {
		v.Defect = damaged(lock, defect)
	}
	return v
}
