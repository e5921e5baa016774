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

// Deliver answers r with the server's reply v. usable returns an error if a token of that reply must not be
// used.
func Deliver(r *engine.Request, v resp.Value, usable func(lock *engine.Lock, token int64) error) {
	if v.IsError() {
		r.Fail(engine.Failure{Err: explainDamage(r.Lock, v.Err()), Fatal: isLasting(ErrorCode(v.Text))})
		return
	}
	number, isNumber := v.Int()
	asks := r.Kind == quorum.AskAcquire || r.Kind == quorum.AskAdopt
	switch {
	case asks && !isNumber:
		deliverDenial(r, v)
	case !isNumber:
		r.Fail(engine.Failure{Err: resp.Unexpected(resp.ErrNumber)})
	case asks:
		if err := usable(r.Lock, number); err != nil {
			r.Fail(engine.Failure{Err: err})
		} else if number <= 0 || number > quorum.MaxToken {
			r.Fail(engine.Failure{Err: explainDamage(r.Lock, errNoToken), Fatal: true})
		} else {
			r.Granted(number)
		}
	case r.Kind == quorum.AskCommit:
		r.Committed(number == 1)
	case r.Kind == quorum.AskRenew && number < 0:
		r.NotOwner()
	case r.Kind == quorum.AskRenew:
		r.Kept(int(number))
	default:
		r.Freed()
	}
}

// deliverDenial parses {time left, holder, waiters}; a format may add more.
func deliverDenial(r *engine.Request, v resp.Value) {
	if len(v.Elems) < 3 {
		r.Fail(engine.Failure{Err: resp.Unexpected(resp.ErrShape)})
		return
	}
	left, ok1 := v.Elems[0].Int()
	waiters, ok2 := v.Elems[2].Int()
	holder := v.Elems[1]
	if holder.IsError() { // a value that is too long for a holder
		r.Fail(engine.Failure{Err: holder.Err()})
		return
	}
	if !ok1 || !ok2 || holder.Null || holder.Elems != nil {
		r.Fail(engine.Failure{Err: resp.Unexpected(resp.ErrShape)})
		return
	}
	r.Denied(int64(millisDuration(left)), string(holder.Text), int(waiters))
}

// millisDuration converts ms milliseconds to a duration, bounded by the longest one: another program may have
// given a key any TTL.
func millisDuration(ms int64) time.Duration {
	return time.Duration(min(ms, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

// errNoToken is the cause if a script replies with a number that is no token.
var errNoToken = resp.Error("COUNTER its number is no token")

// explainDamage adds the name of a damaged key, and the repair, to an error of a script about such a key.
func explainDamage(lock *engine.Lock, err error) error {
	text := err.Error()
	switch {
	case ErrorCode([]byte(text)) == "WRONGTYPE":
		return fmt.Errorf("%w; %s has to be a string, and %s a sorted set: check both with TYPE, and DEL the one of another type", err, lock.Fence, lock.Queue)
	case ErrorCode([]byte(text)) == "COUNTER", strings.Contains(text, "not an integer"), strings.Contains(text, "would overflow"):
		return fmt.Errorf("%w; another program has changed the counter of tokens %s: DEL it, and tokens start at the clock again; "+
			"a storage that has seen a higher token has to forget it", err, lock.Fence)
	}
	return err
}

// ErrorCode returns the first word of an error reply, which names its kind. Redis 6 wraps an error of a command in
// a script in another error.
func ErrorCode(text []byte) string {
	word, rest, _ := strings.Cut(string(text), " ")
	if word == "ERR" && strings.HasPrefix(rest, "Error running script") {
		if _, inner, ok := strings.Cut(rest, ": -"); ok {
			word, _, _ = strings.Cut(inner, " ")
		}
	}
	return word
}

// isLasting reports whether a server repeats an error with this code until an operator changes permissions,
// credentials, a key of another type in place of the queue or the counter, an exhausted counter, or a missing
// command or script. Errors with other codes pass: the server loads its data, is busy, lacks replicas or
// memory for a while, cannot save, or is a replica now.
func isLasting(code string) bool {
	return slices.Contains([]string{"ERR", "NOPERM", "NOAUTH", "WRONGPASS", "DENIED", "WRONGTYPE", "COUNTER"}, code)
}

// errLostData ends a connection over which a script has found another marker than the admitted one.
var errLostData = errors.New("its data were lost or replaced while it was connected")

// SessionError returns an error if v shows that the checks at the start of a connection are no longer valid:
// the server is a replica now, or no longer in the run in which it was admitted.
func SessionError(v resp.Value) error {
	if !v.IsError() {
		return nil
	}
	switch ErrorCode(v.Text) {
	case "UNADMITTED":
		return errLostData
	case "READONLY", "MASTERDOWN":
		return v.Err()
	}
	return nil
}

// View parses the reply of the script Inspect.
func View(lock *engine.Lock, reply any) engine.View {
	if err, ok := reply.(error); ok {
		return engine.View{Err: explainDamage(lock, err)}
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
	if left == -2 { // no such key; -1 is a key without a TTL
		left = 0
	}
	if engine.IsTokenless(owner) {
		token = 0
	}
	v := engine.View{Owner: owner, Left: millisDuration(left), Token: token, Waiters: int(waiters)}
	if bad {
		v.Defect = explainDamage(lock, defect)
	}
	return v
}
