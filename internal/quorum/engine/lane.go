package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

const (
	initialRounds = driverkit.DefaultRoom // rounds under way at first
	minRounds     = 16
	maxRounds     = 1024
	// maxQueueDelay is the time by which requests of this client may delay one another: half of the
	// shortest quorum.RequestTimeout, so that a renewal is in time behind all of them.
	maxQueueDelay = int64(25 * time.Millisecond)
	// maxJitter bounds the time by which the way may take longer than usual, beside its own length: little beside the
	// time of a request, as a busy machine looks like a long way.
	maxJitter = int64(100 * time.Millisecond)
)

// Lane gives claims the turns to begin their rounds. A round is the requests of a claim to
// the nodes until it has its outcome, or rests, and all nodes have answered that are not
// silent. As many rounds are under way as the nodes answer soon; the others have sent nothing. So
// no request waits for its answer behind thousands of others until it is of no use.
// A claim that rests is in no lane.
//
// Releases come before acquires. Renewals, and the confirmation after a wake-up, take no
// turn at all: they have to be in time, and wait for their answers only behind the rounds
// under way.
//
// The zero value is ready for use. Engine has one, unless Config.Lane separates the locks of nodes that do not answer
// all locks alike.
type Lane struct {
	driverkit.Line
	shrunkAt    int64                         // the time at which the room became less; answers to earlier requests do not count. adjustLimit alone uses it
	baseLatency int64                         // the time of an answer while few rounds are under way. adjustLimit alone uses it
	nodeAnswers [quorum.MaxNodes]atomic.Int64 // the time of the last answer of each node
}

// isSilent reports whether the node has not answered lately. No round waits for a silent node once the
// others have decided. A node without a request seems silent until its next answer.
func (l *Lane) isSilent(node int, now int64) bool {
	last := l.nodeAnswers[node].Load()
	return last == 0 || now-last > int64(pace.Overdue())
}

// exit is the end of a round.
type exit struct {
	at       int64 // now
	duration int64 // from its last requests to its end; 0 if that tells nothing about the nodes
	answered bool  // an answer ended the round
}

// endRound ends a round, and begins the waiting rounds that have room then.
func (l *Lane) endRound(e exit) {
	l.Leave(e.at, e.answered, func(load driverkit.Load) int { return l.adjustLimit(e, load) })
}

// adjustLimit returns the room after a round: one more if answers come soon and rounds wait, and half of the
// rounds under way if answers take long. If they do so with the smallest room as well, it is not the
// requests that delay one another but the way, or a machine that is busy. The mutex of Line is held.
func (l *Lane) adjustLimit(e exit, load driverkit.Load) int {
	if e.duration == 0 || e.at-e.duration < l.shrunkAt {
		return load.Room
	}
	if l.baseLatency == 0 {
		l.baseLatency = e.duration
	}
	l.baseLatency -= max(l.baseLatency-e.duration, 0) / 256
	switch {
	case e.duration <= l.baseLatency+min(l.baseLatency, maxJitter)+maxQueueDelay:
		if load.Waiting > 0 {
			return min(load.Room+1, maxRounds)
		}
	case load.Room > minRounds:
		l.shrunkAt = e.at
		return max(min(load.Room, load.Out)/2, minRounds)
	case e.answered:
		l.baseLatency += (e.duration - l.baseLatency) / 8
	}
	return load.Room
}

// enterLane blocks until a round may begin in l, which the caller then has to leave, until ctx ends, or Close. It blocks for
// patience at most, if that is not 0.
func (e *Engine) enterLane(ctx context.Context, l *Lane, patience time.Duration) error {
	if l.Pass(driverkit.Later) {
		return nil
	}
	ready := make(chan struct{})
	t := &driverkit.Turn{Rank: driverkit.Later, Begin: func() { close(ready) }}
	if l.Enter(t, e.clock.Now()) {
		return nil
	}
	var late <-chan time.Time
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	var err error
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		err = driverkit.WithObstacle(ctx.Err(), e.crowdedError(l))
	case <-late:
		err = e.crowdedError(l)
	case <-e.closing:
		err = driver.ErrClosed
	}
	if !l.Withdraw(t) { // its turn has come meanwhile
		l.endRound(exit{})
	}
	return err
}

// crowdedError returns the error of a claim behind others of its client.
func (e *Engine) crowdedError(l *Lane) error {
	load := l.Load(e.clock.Now())
	err := fmt.Errorf("this client has %d requests waiting for their turn", max(load.Waiting, 1))
	if load.Silence > pace.Overdue() {
		err = fmt.Errorf("%w, and none of the %d that were sent has been answered for %v", err, load.Out, load.Silence.Round(time.Millisecond))
	}
	return &driver.UnavailableError{Need: quorum.Majority(len(e.nodes)), Err: err}
}

// awaitTurn blocks until begun is closed, as long as the nodes answer others meanwhile and ctx
// has not ended.
func (c *claim) awaitTurn(ctx context.Context, begun <-chan struct{}) error {
	limit := pace.TurnTime()
	look := time.NewTicker(limit)
	defer look.Stop()
	for {
		select {
		case <-begun:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if c.lane.Load(c.engine.clock.Now()).Silence >= limit {
				return c.engine.crowdedError(c.lane)
			}
		}
	}
}

// releaseInTurn releases c in its turn, or at once if the engine closes, and keeps the lock taken for
// keep. It calls onOutcome with the outcome. It returns nil if the turn has come, and otherwise a
// channel that is closed then.
func (c *claim) releaseInTurn(keep time.Duration, onOutcome func(quorum.Outcome)) <-chan struct{} {
	a := eventAnswer(quorum.Event{Kind: quorum.Release, TTL: int64(keep)})
	a.fromCaller, a.onOutcome = true, onOutcome
	c.mu.Lock()
	inside := c.rounds > 0
	c.mu.Unlock()
	switch {
	case inside:
		c.post(a)
		return nil
	case c.lane.Pass(driverkit.Soon):
		a.entersLane = true
		c.post(a)
		return nil
	}
	return c.queueRelease(a)
}

// queueRelease is releaseInTurn for a claim behind others.
func (c *claim) queueRelease(a answer) <-chan struct{} {
	begun, ready := make(chan struct{}), make(chan struct{})
	t := &driverkit.Turn{Rank: driverkit.Soon, Begin: func() { close(ready) }}
	if c.lane.Enter(t, c.engine.clock.Now()) {
		close(ready)
	}
	waits := c.engine.spawn(func() {
		defer close(begun)
		select {
		case <-ready:
			a.entersLane = true
		case <-c.engine.closing:
		}
		c.post(a)
	})
	if !waits { // the engine is closed
		c.post(a)
		return nil
	}
	return begun
}
