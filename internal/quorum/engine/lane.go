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
	initialRounds = driverkit.DefaultRoom // initial number of rounds in progress
	minRounds     = 16
	maxRounds     = 1024
	// maxQueueDelay is the time by which requests of this client may delay one another: half of the shortest
	// quorum.RequestTimeout, so that a renewal behind all of them still comes in time.
	maxQueueDelay = int64(25 * time.Millisecond)
	// maxJitter caps the extra time of an answer beyond its usual time at which the lane still admits more rounds.
	// It is well below the time-out of a request, because a busy machine looks like a slow network.
	maxJitter = int64(100 * time.Millisecond)
)

// Lane gives claims their turns to begin rounds. A round lasts from the requests of a claim until the claim
// has its outcome or rests, and all nodes that are not silent have answered. At most as many rounds are in
// progress as the nodes can answer soon; the other claims have sent nothing. So no request waits behind
// thousands of others until its answer is useless. A resting claim is not in the lane.
//
// Releases come before acquires. Renewals, and the confirmation after a wake-up, take no turn, because they
// must be in time: they wait only behind the rounds in progress.
//
// The zero value is ready for use. Engine has one Lane, unless Config.Lane separates the locks of nodes that
// do not answer all locks equally fast.
type Lane struct {
	driverkit.Line
	shrunkAt    int64                         // time of the last reduction of the room; answers to earlier requests do not count. Used by adjustLimit alone
	baseLatency int64                         // time of an answer while few rounds are in progress. Used by adjustLimit alone
	nodeAnswers [quorum.MaxNodes]atomic.Int64 // time of the last answer of each node
}

// isSilent reports whether the node has not answered lately. Once the other nodes have decided, no round waits
// for a silent node. A node without requests counts as silent until its next answer.
func (l *Lane) isSilent(node int, now int64) bool {
	last := l.nodeAnswers[node].Load()
	return last == 0 || now-last > int64(pace.OverdueTime())
}

// roundExit describes the end of a round.
type roundExit struct {
	at       int64 // time of the end
	duration int64 // from its last requests to its end; 0 if it says nothing about the nodes
	answered bool  // an answer ended the round
}

// endRound ends a round, and begins the waiting rounds for which there is room.
func (l *Lane) endRound(e roundExit) {
	l.Leave(e.at, e.answered, func(load driverkit.Load) int { return l.adjustLimit(e, load) })
}

// adjustLimit returns the room after a round: one more if answers come soon and rounds wait, and half of the
// rounds in progress if answers take long. If answers take long even with the smallest room, the network or a
// busy machine causes the delay, and not the client's own requests. The mutex of Line is held.
func (l *Lane) adjustLimit(e roundExit, load driverkit.Load) int {
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

// enterLane blocks until a round may begin in l, which the caller then has to leave, or until ctx ends, or
// Close. It blocks for patience at most, if patience is not 0.
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
		l.endRound(roundExit{})
	}
	return err
}

// crowdedError returns the error of a claim that waits behind others of its client.
func (e *Engine) crowdedError(l *Lane) error {
	load := l.Load(e.clock.Now())
	err := fmt.Errorf("this client has %d requests waiting for their turn", max(load.Waiting, 1))
	if load.Silence > pace.OverdueTime() {
		err = fmt.Errorf("%w, and none of the %d that were sent has been answered for %v", err, load.Out, load.Silence.Round(time.Millisecond))
	}
	return &driver.UnavailableError{Need: quorum.Majority(len(e.nodes)), Err: err}
}

// awaitTurn blocks until begun is closed, but only while the nodes answer other requests and ctx has not
// ended.
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

// releaseInTurn releases c in its turn, or at once if the engine closes. The service keeps the lock for the
// time keep. onOutcome gets the outcome. releaseInTurn returns nil if the turn has come, and otherwise a
// channel that is closed when it comes.
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

// queueRelease is releaseInTurn for a claim that has to wait behind others.
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
