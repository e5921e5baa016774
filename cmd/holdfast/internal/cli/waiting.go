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

// logTimes are the times after which a waiting command logs: once early, then rarely.
var logTimes = []time.Duration{time.Second, time.Minute, 10 * time.Minute}

// changeDelay is the time from a node's change of state to the next report. Further changes within it cause no
// other report.
const changeDelay = 2 * time.Second

// countdownEvery is the interval at which a command reports the time left until new nodes vote.
const countdownEvery = 15 * time.Second

// wait reports on a command's wait for a lock, or for several in turn.
type wait struct {
	log     *slog.Logger
	limit   time.Duration // of the wait; 0: none
	stirred chan struct{} // receives when a node has changed its state

	mu    sync.Mutex // guards the fields below
	name  string     // name of the lock that the command waits for now
	ahead int        // number of waiters when the wait began; -1: unknown
}

func newWait(log *slog.Logger, name string, limit time.Duration) *wait {
	return &wait{log: log, stirred: make(chan struct{}, 1), name: name, limit: limit, ahead: -1}
}

// nodeChanged records that a node has changed its state.
func (w *wait) nodeChanged() {
	select {
	case w.stirred <- struct{}{}:
	default:
	}
}

// lockHeld records the holder of the lock.
func (w *wait) lockHeld(e holdfast.WaitingEvent) {
	w.log.Debug(fmt.Sprintf("waiting: %s, %d waiting", heldBy(e.Lock, e.Held), e.Held.Waiters))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.name, w.ahead = e.Lock, e.Held.Waiters
}

// report logs from time to time what client waits for, and soon after a backend goes down or returns, until
// stop is called. report returns at once; stop waits for the last log line.
func (w *wait) report(client *holdfast.Client) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var told sync.WaitGroup
	told.Go(func() {
		began, due := time.Now(), time.NewTimer(logTimes[0])
		defer due.Stop()
		said := 0
		var down, counting bool // as last reported
		for {
			changed := w.waitForNews(ctx, due.C, said > 0)
			text, quarantineLeft, err := w.describe(ctx, client, time.Since(began))
			switch {
			case ctx.Err() != nil:
				return
			case changed && down == (err != nil):
				continue // one node of several, or over already
			case changed:
				said = 0
			}
			if counting && quarantineLeft > 0 { // the reason was reported before
				text = fmt.Sprintf("waiting for %s: the nodes vote in %s", view.Short(time.Since(began).Round(time.Second)), view.Short(quarantineLeft.Round(time.Second)))
			}
			w.log.Info(text)
			said++
			down, counting = err != nil, quarantineLeft > 0
			pause := logTimes[min(said, len(logTimes)-1)]
			if counting {
				pause = min(pause, countdownEvery)
			}
			due.Reset(pause)
		}
	})
	return func() { cancel(); told.Wait() }
}

// waitForNews waits until a report is due or ctx ends. With changes, a node's change of state also ends the
// wait, and waitForNews returns true.
func (w *wait) waitForNews(ctx context.Context, due <-chan time.Time, changes bool) bool {
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
	case <-time.After(changeDelay):
	}
	return true
}

// describe names the holder that w waits for and the number of waiters ahead. quarantineLeft is the time until
// new nodes vote, if w waits for that. err is the reason why no client can have the lock.
func (w *wait) describe(ctx context.Context, client *holdfast.Client, elapsed time.Duration) (text string, quarantineLeft time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, pace.HintTime())
	defer cancel()
	w.mu.Lock()
	name := w.name
	w.mu.Unlock()
	st, err := client.Inspect(ctx, name)
	text = "waiting for " + view.Short(elapsed.Round(time.Second)) + ": "
	switch {
	case err != nil:
		if e, ok := errors.AsType[*holdfast.Error](err); ok {
			err = e.Err // the text names the operation and the key already
		}
		if q, ok := errors.AsType[quarantined](err); ok {
			quarantineLeft = q.Quarantine()
		}
		return text + oneLine(err) + w.describeLimit(name), quarantineLeft, err
	case !st.Held:
		return text + fmt.Sprintf("nobody holds %q at this moment%s", name, w.describePlace(st)), 0, nil
	}
	held := &holdfast.HeldError{Owner: st.Owner, Holder: st.Holder, Since: st.Since, Remaining: st.Remaining, Kept: st.Kept}
	return text + heldBy(name, held) + w.describePlace(st), 0, nil
}

// describeLimit names the lock, which an error about the backend does not name, and the limit of the wait.
func (w *wait) describeLimit(name string) string {
	if w.limit > 0 {
		return fmt.Sprintf("; the wait for %q ends after %s", name, view.Short(w.limit))
	}
	return fmt.Sprintf("; the wait for %q has no limit", name)
}

// quarantined is the error of a node that does not vote yet.
type quarantined interface {
	error
	Quarantine() time.Duration
}

// describePlace returns the number of waiters ahead, without those that came later.
func (w *wait) describePlace(st holdfast.Status) string {
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
