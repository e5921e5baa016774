package election

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

const (
	// lookEvery is the interval of an observer's looks. Some are a little slower, so that many that
	// began together do not stay together.
	lookEvery = time.Second
	// lookAgain is the time until the second look at a leader that it has not seen before. After
	// maxDoubt looks that differ from one another the leader is unknown.
	lookAgain = 100 * time.Millisecond
	maxDoubt  = 10
)

// ErrWentBack means that the service shows a lower term than before: it was restored,
// or has lost its memory. A storage that checks terms refuses such a leader too.
var ErrWentBack = errors.New("election: the term went back")

// Observe yields who leads under name: once at first, and then each change that it sees, by a look
// about once a second, and a second one at a leader that is new. Nobody leads in a zero Leader. What
// begins and ends between two looks is not seen. Terms never fall.
//
// With an error nothing is known about the present leader: ErrUnavailable as an outage begins, after
// which Observe goes on and yields who leads when that is known again, and ErrWentBack,
// likewise. ErrUnavailable also means that the nodes do not agree on the term of the leader, as
// may be after some have lost their memory. Any other error, such as ErrClosed, is the last that
// it yields. It ends without an error when ctx ends.
func Observe(ctx context.Context, client *holdfast.Client, name string) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var seen observer
		for ctx.Err() == nil {
			st, err := client.Inspect(ctx, name)
			if ctx.Err() != nil {
				return
			}
			leader, news, again, err := seen.follow(st, err)
			if news && !yield(leader, err) || isLasting(err) {
				return
			}
			pause := lookEvery + rand.N(lookEvery/16)
			if again {
				pause = lookAgain
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}
}

// isLasting reports whether time does not remove an error.
func isLasting(err error) bool {
	return err != nil && !errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, ErrWentBack)
}

// observer remembers the terms that one Observe has seen. The zero value has seen nothing.
type observer struct {
	leader Leader // the last one
	owner  string // of its lease
	leads  bool   // it did at the last look
	known  bool   // the last look had an answer
	failed bool   // it had none, which was told

	doubt sight // of another leader, not seen twice yet
	looks int   // since there was no doubt
}

// sight is the result of one look at a leader.
type sight struct {
	owner string
	term  holdfast.Token // 0: the nodes do not agree
}

// errUnsure is the error while the nodes disagree about a term for long.
var errUnsure error = &holdfast.UnavailableError{Err: errors.New("the nodes do not agree on the term of the leader")}

// follow returns the leader to yield after a look, and whether it is news, or whether to look again soon. A
// leader is believed when two looks have shown the same: while one is elected, and where
// nodes have lost their memory, some show another term than the leader will have.
func (o *observer) follow(st holdfast.Status, err error) (_ Leader, news, again bool, _ error) {
	leader := leaderOf(st)
	leads := leader.Term != 0
	another := leads && st.Owner != o.owner
	if err == nil && another {
		last := o.doubt
		o.doubt = sight{st.Owner, agreedToken(st)}
		if o.looks++; o.doubt != last || o.doubt.term == 0 {
			if o.looks < maxDoubt {
				return Leader{}, false, true, nil
			}
			err = errUnsure
		} else if leader.Term <= o.leader.Term {
			err = fmt.Errorf("%w: from %d to %d", ErrWentBack, o.leader.Term, leader.Term)
		}
	}
	if err != nil {
		news = !o.failed || isLasting(err)
		o.failed, o.known = true, false
		return Leader{}, news, false, err
	}
	o.doubt, o.looks = sight{}, 0
	news = !o.known || leads != o.leads || another
	if another { // and otherwise its term is as it was, also where nodes that were away show another one
		o.leader, o.owner = leader, st.Owner
	}
	o.leads, o.known, o.failed = leads, true, false
	if !leads {
		return Leader{}, news, false, nil
	}
	return o.leader, news, false, nil
}

// agreedToken returns the token of the lease in st if most nodes show it, or all that know the lease, and otherwise 0.
func agreedToken(st holdfast.Status) holdfast.Token {
	same, others := 0, 0
	for _, n := range st.Nodes {
		switch {
		case n.Err != nil || n.Owner != st.Owner:
		case n.Token == st.Token:
			same++
		default:
			others++
		}
	}
	if others > 0 && same <= len(st.Nodes)/2 {
		return 0
	}
	return st.Token
}

// reportLeaders calls fn with each leader, until the returned function is called, which waits for
// the last call.
func reportLeaders(ctx context.Context, client *holdfast.Client, name string, fn func(Leader)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() {
		for leader, err := range Observe(ctx, client, name) {
			if err == nil && leader.Term != 0 {
				fn(leader)
			}
		}
	})
	return func() { cancel(); told.Wait() }
}
