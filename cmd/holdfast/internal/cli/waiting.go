package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// waitTold is when a command says that it waits: the first time soon, and then seldom.
var waitTold = []time.Duration{time.Second, time.Minute, 10 * time.Minute}

// changeTold is how long after a node has changed its state a command looks what that means, and no more often.
const changeTold = 2 * time.Second

// countEvery is how often a command says for how long yet new nodes do not vote.
const countEvery = 15 * time.Second

// wait is what a command says while it waits for a lock, or for one of several after the other.
type wait struct {
	log     *slog.Logger
	stirred chan struct{} // has one value when a node has changed its state

	mu    sync.Mutex // guards what follows
	name  string     // of the lock that it waits for now
	ahead int        // how many waited when the wait began; -1: not known
}

func newWait(log *slog.Logger, name string) *wait {
	return &wait{log: log, stirred: make(chan struct{}, 1), name: name, ahead: -1}
}

// stirs is told that a node has changed its state.
func (w *wait) stirs() {
	select {
	case w.stirred <- struct{}{}:
	default:
	}
}

// begins is told who holds the lock.
func (w *wait) begins(e holdfast.WaitingEvent) {
	w.log.Debug(fmt.Sprintf("waiting: %s, %d waiting", heldBy(e.Lock, e.Held), e.Held.Waiters))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.name, w.ahead = e.Lock, e.Held.Waiters
}

// tell says from time to time what client waits for, and soon when a backend goes down or comes back, until stop is called. It
// returns at once; stop blocks until nothing is said any more.
func (w *wait) tell(client *holdfast.Client) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var told sync.WaitGroup
	told.Go(func() {
		began, due := time.Now(), time.NewTimer(waitTold[0])
		defer due.Stop()
		said := 0
		var down, counting bool // as was said last
		for {
			changed := w.next(ctx, due.C, said > 0)
			text, left, err := w.text(ctx, client, time.Since(began))
			switch {
			case ctx.Err() != nil:
				return
			case changed && down == (err != nil):
				continue // it is one node of several, or over already
			case changed:
				said = 0
			}
			if counting && left > 0 { // why that is has been said
				text = fmt.Sprintf("waiting for %s: the nodes vote in %s", view.Short(time.Since(began).Round(time.Second)), view.Short(left.Round(time.Second)))
			}
			w.log.Info(text)
			said++
			down, counting = err != nil, left > 0
			pause := waitTold[min(said, len(waitTold)-1)]
			if counting {
				pause = min(pause, countEvery)
			}
			due.Reset(pause)
		}
	})
	return func() { cancel(); told.Wait() }
}

// next waits until something is to be said, or ctx ends. It returns true where that is because a node has changed its state, which
// it only looks at where changes is set: else something is said soon.
func (w *wait) next(ctx context.Context, due <-chan time.Time, changes bool) bool {
	news := w.stirred
	if !changes {
		news = nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-due:
		return false
	case <-news:
	}
	select {
	case <-ctx.Done():
	case <-time.After(changeTold):
	}
	return true
}

// text says for whom w has waited, and how many are to have the lock before. left is for how long
// yet new nodes do not vote, if that is what it waits for; err is why nobody can have the lock.
func (w *wait) text(ctx context.Context, client *holdfast.Client, since time.Duration) (text string, left time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, pace.HintTime())
	defer cancel()
	w.mu.Lock()
	name := w.name
	w.mu.Unlock()
	st, err := client.Inspect(ctx, name)
	text = "waiting for " + view.Short(since.Round(time.Second)) + ": "
	switch {
	case err != nil:
		if e, ok := errors.AsType[*holdfast.Error](err); ok {
			err = e.Err // what was done, and to which key, is known
		}
		if q, ok := errors.AsType[quarantined](err); ok {
			left = q.Quarantine()
		}
		return text + explain(err), left, err
	case !st.Held:
		return text + fmt.Sprintf("nobody holds %q at this moment%s", name, w.place(st)), 0, nil
	}
	held := &holdfast.HeldError{Owner: st.Owner, Holder: st.Holder, Since: st.Since, Remaining: st.Remaining, Kept: st.Kept}
	return text + heldBy(name, held) + w.place(st), 0, nil
}

// quarantined is the error of a node that does not vote yet.
type quarantined interface {
	error
	Quarantine() time.Duration
}

// place says how many are ahead: those who waited when this wait began, less those who
// have gone since.
func (w *wait) place(st holdfast.Status) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ahead < 0 {
		return ""
	}
	w.ahead = min(w.ahead, max(st.Waiters-1, 0))
	if w.ahead == 0 {
		return ", this command is next"
	}
	return fmt.Sprintf(", %d ahead of this command", w.ahead)
}
