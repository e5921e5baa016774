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

// lookEvery is how often an observer looks. Some are a little slower, so that many that began
// together do not stay together.
const lookEvery = time.Second

// ErrWentBack says that the service shows a term below one that it has shown: it was restored,
// or has lost its memory. A storage that checks terms refuses such a leader too.
var ErrWentBack = errors.New("election: the term went back")

// Observe yields who leads under name: once at first, and then each change that it sees, by a look
// about once a second. Nobody leads in a zero Leader. What begins and ends between
// two looks is not seen. Terms never fall.
//
// With an error nothing is known about the present leader: ErrUnavailable as an outage begins, after
// which Observe goes on and yields who leads when that is known again, and ErrWentBack,
// likewise. Any other error, such as ErrClosed, is the last that it yields. It ends without an error
// when ctx ends.
func Observe(ctx context.Context, client *holdfast.Client, name string) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var seen observer
		for ctx.Err() == nil {
			st, err := client.Inspect(ctx, name)
			if ctx.Err() != nil {
				return
			}
			leader, err, news := seen.follow(st, err)
			if news && !yield(leader, err) || lasting(err) {
				return
			}
			select {
			case <-time.After(lookEvery + rand.N(lookEvery/16)):
			case <-ctx.Done():
			}
		}
	}
}

// lasting says whether an error is not mended by time.
func lasting(err error) bool {
	return err != nil && !errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, ErrWentBack)
}

// observer is what one Observe has seen. The zero value has seen nothing.
type observer struct {
	leader Leader // the last one
	owner  string // of its lease
	leads  bool   // it did at the last look
	known  bool   // the last look had an answer
	failed bool   // it had none, which was told
}

// follow says what to yield after a look, and whether it is news.
func (o *observer) follow(st holdfast.Status, err error) (_ Leader, _ error, news bool) {
	leader := leaderOf(st)
	leads := leader.Term != 0
	if err == nil && leads && st.Owner != o.owner && leader.Term <= o.leader.Term {
		err = fmt.Errorf("%w: from %d to %d", ErrWentBack, o.leader.Term, leader.Term)
	}
	if err != nil {
		news = !o.failed || lasting(err)
		o.failed, o.known = true, false
		return Leader{}, err, news
	}
	another := leads && st.Owner != o.owner
	news = !o.known || leads != o.leads || another
	if another { // and otherwise its term is as it was, also where nodes that were away show a later one
		o.leader, o.owner = leader, st.Owner
	}
	o.leads, o.known, o.failed = leads, true, false
	if !leads {
		return Leader{}, nil, news
	}
	return o.leader, nil, news
}

// report calls fn with each leader, until the returned function is called, which waits for
// the last call.
func report(ctx context.Context, client *holdfast.Client, name string, fn func(Leader)) (stop func()) {
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
