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
	// lookEvery is the interval at which an observer asks for the leader. Jitter spreads observers that began
	// together.
	lookEvery = time.Second
	// lookAgain is the pause before an observer confirms a leader that it has not seen before. After maxDoubt
	// answers that differ from one another the leader is unknown.
	lookAgain = 100 * time.Millisecond
	maxDoubt  = 10
)

// ErrTermDecreased means that the service shows a lower term than before: it was restored from a backup, or has
// lost its memory. A storage that checks terms rejects such a leader.
var ErrTermDecreased = errors.New("election: the term went back")

// Observe yields the leader under name, first the present one and then each change that it sees. It asks about
// once a second, and a second time to confirm a new leader. A zero Leader means that nobody leads. Changes
// between two requests are not seen. Terms never fall.
//
// With an error the present leader is unknown. At the start of an outage Observe yields ErrUnavailable,
// continues, and yields the leader once it is known again; the same holds for ErrTermDecreased. ErrUnavailable also
// means that the nodes do not agree on the leader's term, as after some have lost their memory. After any
// other error, such as ErrClosed, Observe ends. It ends without an error when ctx ends.
func Observe(ctx context.Context, client *holdfast.Client, name string) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var seen observer
		for ctx.Err() == nil {
			st, err := client.Inspect(ctx, name)
			if ctx.Err() != nil {
				return
			}
			leader, news, again, err := seen.applyStatus(st, err)
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

// isLasting reports whether Observe ends with err.
func isLasting(err error) bool {
	return err != nil && !errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, ErrTermDecreased)
}

// observer holds the terms that one Observe has seen. The zero value has seen none.
type observer struct {
	leader Leader // the last leader
	owner  string // owner id of its lease
	leads  bool   // it led at the last look
	known  bool   // the last look had an answer
	failed bool   // the last look had none, and that was reported

	doubt leaderSight // another leader, seen once
	looks int         // number of looks at leaders that were not confirmed
}

// leaderSight is the result of one look at a leader.
type leaderSight struct {
	owner string
	term  holdfast.Token // 0: the nodes do not agree
}

// errTermUnclear is the error while the nodes disagree about a term for a long time.
var errTermUnclear error = &holdfast.UnavailableError{Err: errors.New("the nodes do not agree on the term of the leader")}

// applyStatus returns the leader to yield after a look, whether it is news, and whether to look again soon. A
// leader counts once two looks agree. During an election, and after nodes have lost their memory, some nodes
// show another term than the leader will have.
func (o *observer) applyStatus(st holdfast.Status, err error) (_ Leader, news, again bool, _ error) {
	leader := leaderOf(st)
	leads := leader.Term != 0
	another := leads && st.Owner != o.owner
	if err == nil && another {
		last := o.doubt
		o.doubt = leaderSight{st.Owner, agreedToken(st)}
		if o.looks++; o.doubt != last || o.doubt.term == 0 {
			if o.looks < maxDoubt {
				return Leader{}, false, true, nil
			}
			err = errTermUnclear
		} else if leader.Term <= o.leader.Term {
			err = fmt.Errorf("%w: from %d to %d", ErrTermDecreased, o.leader.Term, leader.Term)
		}
	}
	if err != nil {
		news = !o.failed || isLasting(err)
		o.failed, o.known = true, false
		return Leader{}, news, false, err
	}
	o.doubt, o.looks = leaderSight{}, 0
	news = !o.known || leads != o.leads || another
	if another { // otherwise the leader keeps its term, even if nodes that were down show another one
		o.leader, o.owner = leader, st.Owner
	}
	o.leads, o.known, o.failed = leads, true, false
	if !leads {
		return Leader{}, news, false, nil
	}
	return o.leader, news, false, nil
}

// agreedToken returns the token of the lease in st if most nodes show it, or all nodes that know the lease,
// and otherwise 0.
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

// reportLeaders calls fn with each leader until stop is called, which waits for the last call.
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
