package redlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/engine"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
)

const (
	// senders is how many batches can be under way to one node. With one alone
	// the wait doubles on a slow network, for a request that just misses a batch
	// waits for that batch and then for its own.
	senders   = 4
	batchMost = 256
	// stallAfter is how long a batch may be under way before requests that can
	// do without this node are no longer queued behind it.
	stallAfter = int64(250 * time.Millisecond)
	// loadMost is how often a batch is sent again after SCRIPT FLUSH. A release
	// that is given up leaves its lock standing for a TTL.
	loadMost = 10
)

// sender carries requests to one node, in order: what arrives while a batch is
// away travels in the next. A key always has the same sender.
type sender struct {
	n     *node
	wake  chan struct{}
	quit  chan struct{}
	ended chan struct{}
	away  atomic.Int64 // when the batch under way was sent; 0: none is

	mu    sync.Mutex // guards queue
	queue []queued

	// The rest belongs to loop.
	batch []queued
	sent  []*engine.Request
	cmds  []rueidis.Completed
	text  texts
}

// queued is a request in a queue. One from before a break does not go out after
// it: its id may have been released meanwhile, by what was owed.
type queued struct {
	*engine.Request
	breaks int64 // node.breaks before it was queued
}

func newSender(n *node) *sender {
	return &sender{n: n, wake: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{})}
}

// push queues r.
func (s *sender) push(r *engine.Request, breaks int64) {
	s.mu.Lock()
	s.queue = append(s.queue, queued{r, breaks})
	s.mu.Unlock()
	s.nudge()
}

func (s *sender) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sender) stalled(now int64) bool {
	sent := s.away.Load()
	return sent != 0 && now-sent > stallAfter
}

// loop sends batch after batch until finish is called and the queue is empty.
func (s *sender) loop() {
	defer close(s.ended)
	for {
		for s.take() {
			s.run()
			runtime.Gosched() // whoever was just answered may ask again: one batch, not two
		}
		select {
		case <-s.wake:
			runtime.Gosched() // the first request is seldom alone
		case <-s.quit:
			for s.take() {
				s.run()
			}
			return
		}
	}
}

// finish ends loop once the queue is empty, and waits for that until ctx ends.
func (s *sender) finish(ctx context.Context) {
	close(s.quit)
	select {
	case <-s.ended:
	case <-ctx.Done():
	}
}

// take moves the next batch out of the queue; it says whether there is one.
func (s *sender) take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) <= batchMost {
		s.batch, s.queue = s.queue, s.batch[:0]
	} else {
		s.batch = append(s.batch[:0], s.queue[:batchMost]...)
		s.queue = append(s.queue[:0], s.queue[batchMost:]...)
	}
	return len(s.batch) > 0
}

// run sends one batch and delivers the answers.
func (s *sender) run() {
	now := s.n.engine.Now()
	sent := s.sent[:0]
	s.cmds = s.cmds[:0]
	for _, r := range s.batch {
		switch {
		case !s.n.usable.Load():
			s.n.refuse(r.Request)
		case r.breaks != s.n.breaks.Load() && r.Kind != quorum.AskRelease:
			r.Fail(engine.Failure{Err: errBroke, Unsent: true})
		case now > r.Deadline && r.Kind != quorum.AskRelease && r.Kind != quorum.AskGiveBack:
			r.Fail(engine.Failure{Err: errStalled, Unsent: true})
		default:
			sent = append(sent, r.Request)
			s.cmds = append(s.cmds, s.command(r.Request))
		}
	}
	clear(s.batch)
	s.sent = sent
	if len(sent) == 0 {
		return
	}
	s.away.Store(now)
	results := s.send()
	s.again(results, sent)
	s.away.Store(0)
	for i, r := range sent {
		s.deliver(r, results[i])
	}
	clear(sent)
}

// again repeats a batch from its first script that the server did not know on:
// all scripts may be repeated, and so their order is kept. The scripts travel with
// it, so that another SCRIPT FLUSH has to come between to matter.
func (s *sender) again(results []rueidis.RedisResult, sent []*engine.Request) {
	for range loadMost {
		i := slices.IndexFunc(results, noScript)
		if i < 0 {
			return
		}
		results, sent = results[i:], sent[i:]
		s.cmds = s.n.loads(s.cmds[:0])
		for _, r := range sent {
			s.cmds = append(s.cmds, s.command(r))
		}
		copy(results, s.send()[len(wire.Scripts):])
	}
}

// send sends cmds. When the connection breaks, the library may still be reading
// them after it has returned: then they are not used again.
func (s *sender) send() []rueidis.RedisResult {
	results := s.n.client.DoMulti(context.Background(), s.cmds...)
	if slices.ContainsFunc(results, broken) {
		s.cmds = nil
	}
	return results
}

// broken says whether there is no answer: the connection broke.
func broken(res rueidis.RedisResult) bool {
	err := res.Error()
	_, answered := rueidis.IsRedisErr(err)
	return err != nil && !answered
}

func noScript(res rueidis.RedisResult) bool {
	re, ok := rueidis.IsRedisErr(res.Error())
	return ok && re.IsNoScript()
}

// loads appends what makes the server know the scripts, after SCRIPT FLUSH.
func (n *node) loads(cmds []rueidis.Completed) []rueidis.Completed {
	for _, s := range wire.Scripts {
		cmds = append(cmds, n.client.B().ScriptLoad().Script(s.Text).Build())
	}
	return cmds
}

// command turns a request into a call of its script.
func (s *sender) command(r *engine.Request) rueidis.Completed {
	b, l := s.n.client.B(), r.Lock
	s.text.use(r.TTL)
	switch r.Kind {
	case quorum.AskAcquire:
		return b.Evalsha().Sha1(wire.Acquire.SHA).Numkeys(3).Key(l.Key, l.Fence, l.Queue).
			Arg(r.Owner, s.text.ttl, r.Clock, stamp(r.Stamp), s.text.keep).Build()
	case quorum.AskCommit:
		return b.Evalsha().Sha1(wire.Commit.SHA).Numkeys(2).Key(l.Key, l.Fence).
			Arg(r.Owner, top(r.Token), s.text.keep).Build()
	case quorum.AskRenew:
		return b.Evalsha().Sha1(wire.Renew.SHA).Numkeys(3).Key(l.Key, l.Fence, l.Queue).
			Arg(r.Owner, s.text.ttl, top(r.Token), s.text.keep).Build()
	default:
		return b.Evalsha().Sha1(wire.Release.SHA).Numkeys(3).Key(l.Key, l.Fence, l.Queue).
			Arg(r.Owner, stamp(r.Stamp), s.text.handOver, s.text.keep).Build()
	}
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

// millis rounds up: a node keeps a lock no shorter than its holder trusts it.
func millis(ns int64) string { return strconv.FormatInt((ns+999_999)/1_000_000, 10) }

// keep is how long a node keeps the counter of a lock with that TTL.
func keep(ttl int64) string {
	return strconv.FormatInt(quorum.FenceKeep((ttl+999_999)/1_000_000), 10)
}

// top is the last token of the block that begins at token.
func top(token int64) string { return strconv.FormatInt(token+quorum.Block-1, 10) }

func stamp(s int64) string {
	if s == 0 {
		return ""
	}
	return strconv.FormatInt(s, 10)
}

// deliver answers r with what the server said.
func (s *sender) deliver(r *engine.Request, res rueidis.RedisResult) {
	msg, err := res.ToMessage()
	if err != nil {
		s.fail(r, err)
		return
	}
	number, err := msg.AsInt64()
	isNumber := err == nil && msg.IsInt64()
	switch {
	case r.Kind == quorum.AskAcquire && !isNumber:
		s.denied(r, msg)
	case !isNumber:
		r.Fail(engine.Failure{Err: fmt.Errorf("unexpected reply: %w", errors.Join(err, errNumber))})
	case r.Kind == quorum.AskAcquire && number <= 0:
		r.Fail(engine.Failure{Err: fmt.Errorf("%w: DEL %s once the lock is free", errCounter, r.Lock.Fence), Fatal: true})
	case r.Kind == quorum.AskAcquire:
		r.Granted(number)
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

// denied reads {time left, holder, waiters}.
func (s *sender) denied(r *engine.Request, msg rueidis.RedisMessage) {
	list, err := msg.ToArray()
	if err != nil || len(list) != 3 {
		r.Fail(engine.Failure{Err: fmt.Errorf("unexpected reply: %w", errors.Join(err, errShape))})
		return
	}
	left, err1 := list[0].AsInt64()
	holder, err2 := list[1].ToString()
	waiters, err3 := list[2].AsInt64()
	if err := errors.Join(err1, err2, err3); err != nil {
		r.Fail(engine.Failure{Err: fmt.Errorf("unexpected reply: %w", err)})
		return
	}
	r.Denied(left*int64(time.Millisecond), holder, int(waiters))
}

var (
	errShape   = errors.New("not a list of three")
	errNumber  = errors.New("not a number")
	errCounter = errors.New("the lock's counter of tokens is not above 0, as if somebody had set it")
)

// fail answers r with an error: the server's own, or that of a connection that
// broke, after which it is unknown whether r was executed.
func (s *sender) fail(r *engine.Request, err error) {
	if _, ok := rueidis.IsRedisErr(err); ok {
		r.Fail(engine.Failure{Err: err, Fatal: fatal(err)})
		return
	}
	s.n.owe(r)
	s.n.broken(err)
	r.Fail(engine.Failure{Err: err})
}
