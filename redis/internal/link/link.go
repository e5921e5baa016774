// Package link carries requests to a server of Redis and its answers back, in order, over one connection.
// It knows bytes and requests, and tells a Sink what comes: neither what a node is nor who votes.
package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
)

const (
	// directMost is how many bytes, about four requests, may be under way for the
	// caller of another request to write it itself.
	directMost = 1200
	// sharedMost is the same, about one request, where each goes to several nodes: the client has
	// enough to do meanwhile, and requests that travel together cost each node less.
	sharedMost = 300
	// groupMost is how many requests to a single node wait at most until one of their callers
	// writes them, unless groupRoom bytes are under way: the node works on them while the
	// client puts the next together. Where there are several nodes, the client has enough to
	// do with the others, and larger batches are cheaper. A batch ends at groupRoom, too:
	// Linux takes twice as much and more before the other end has taken anything.
	groupMost = 12
	groupRoom = 16 << 10
	// batchMost is how many requests travel in one write: few enough that the node
	// has something to do while the next are put together.
	batchMost = 32
	// loadMost is how often a request is sent again after SCRIPT FLUSH. A release
	// that is dropped leaves its lock for a TTL.
	loadMost = 10
)

var (
	// ErrStalled is why a request was not sent: the node does not answer those before it.
	ErrStalled = errors.New("skipped: it does not answer")
	// errBroke is why a request was not sent: the connection ended first.
	errBroke = errors.New("the connection broke before it was sent")
)

// Sink hears what comes over a link. Answer, Push and Broken are called by the goroutine that reads, which holds no lock: one that
// blocks keeps all answers waiting. Fail and Spare are called by those who send as well, Spare while the link is locked.
type Sink interface {
	// Answer takes the answer to a request. v is valid until Answer returns.
	Answer(e Entry, v resp.Value)
	// Fail takes a request that the link has not had an answer to, and never will.
	Fail(e Entry, f engine.Failure)
	// Push takes a message that is no answer. v is valid until Push returns.
	Push(v resp.Value)
	// Broken hears that nothing is sent any more, before what is left fails.
	Broken(err error)
	// Spare says whether the other nodes are a quorum without this one, so that it is skipped while it does not answer.
	Spare() bool
}

// Config is what a link is made of.
type Config struct {
	Conn *resp.Conn
	Now  func() int64 // the engine's clock
	Sole bool         // the set has no other node
	// Shared says that each request goes to other nodes, too. In a Redis Cluster it goes to one shard.
	Shared bool
	// Encode appends the command of a request to dst.
	Encode func(dst []byte, r *engine.Request) []byte
	// Loads are the commands that make the server know the scripts again, after SCRIPT FLUSH.
	Loads func() [][]string
	// Ends returns why no request may follow one that was answered so; nil for most answers.
	Ends func(v resp.Value) error
}

// Link is one checked connection to a node. Requests go out in the order in which
// they were sent and are answered in that order. Where few are under way, or many wait for a
// single node, the goroutine that sends one writes. Otherwise the requests that come while a
// write is under way travel together in the next. The goroutine that reads
// answers delivers them.
type Link struct {
	cfg    Config
	sink   Sink
	direct int           // bytes that may be under way for a caller to write its request itself
	pipe   bool          // a write waits for the other end to read: the goroutine that reads would wait for itself
	wake   chan struct{} // for writes
	gone   chan struct{} // closed once everything has been answered or failed

	mu      sync.Mutex // guards what follows; not held while writing
	err     error      // why nothing is sent any more
	writing bool
	held    bool    // nothing is written before what is under way is answered
	queue   []Entry // not written yet
	flight  fifo    // written, not answered
	again   []Entry // to be sent again once the server knows the scripts
	heard   int64   // when the node answered last

	out []byte // of the goroutine that writes
}

// Entry is something sent: a request, or else a call.
type Entry struct {
	Req  *engine.Request
	Call *Call
	At   int64 // when it was sent
	// Asking has ASKING go before it, which is answered first: the slot of its key moves to this server. Once that is
	// answered it is false.
	Asking bool
	// Route and Turns are the Sink's own: in which order it came there, and how often it was sent elsewhere.
	Route any
	Turns int

	size  int // bytes
	loads int // how often it was sent before, to a server without the scripts
}

// Frees says whether e may free a lock, for which it is never too late.
func (e *Entry) Frees() bool { return e.Req != nil && e.Req.Kind.Frees() }

// Repeated says whether e was sent before, to a server that did not know its script.
func (e *Entry) Repeated() bool { return e.loads > 0 }

// subscribes says whether a push of that kind is the answer to e.
func (e *Entry) subscribes(kind string) bool {
	return e.Call != nil && strings.EqualFold(e.Call.cmds[0][0], kind)
}

// Call is commands other than those of locks.
type Call struct {
	Replies []any // errors of the server are among them
	Err     error // why there are no replies

	cmds [][]string
	room int           // for the replies that are still to come
	done chan struct{} // closed when there are replies or err
	then func()        // called before, if not nil
}

// NewCall is a call of commands. then, if not nil, is called by the goroutine that reads answers, once there are Replies or Err.
func NewCall(cmds [][]string, then func(*Call)) *Call {
	c := &Call{cmds: cmds, room: resp.RoomFor(cmds), done: make(chan struct{})}
	if then != nil {
		c.then = func() { then(c) }
	}
	return c
}

// End ends c without replies.
func (c *Call) End(err error) {
	c.Err = err
	if c.then != nil {
		c.then()
	}
	close(c.done)
}

// fifo is a queue of entries.
type fifo struct {
	list []Entry
	head int
	size int // bytes of all
}

func (f *fifo) len() int      { return len(f.list) - f.head }
func (f *fifo) first() *Entry { return &f.list[f.head] }
func (f *fifo) rest() []Entry { return f.list[f.head:] }

func (f *fifo) push(e Entry) {
	f.list = append(f.list, e)
	f.size += e.size
}

func (f *fifo) pop() (e Entry) {
	e, f.list[f.head] = f.list[f.head], Entry{}
	f.size -= e.size
	if f.head++; f.head == len(f.list) {
		f.list, f.head = f.list[:0], 0
	} else if f.head >= 8*batchMost {
		f.list, f.head = slices.Delete(f.list, 0, f.head), 0
	}
	return e
}

// New takes over a connection that was checked. Nothing is sent before Start.
func New(cfg Config, sink Sink) *Link {
	l := &Link{cfg: cfg, sink: sink, direct: directMost, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	cfg.Conn.Room = l.room
	if at := cfg.Conn.LocalAddr(); at != nil {
		l.pipe = at.Network() == "pipe" // as tests have it, in memory
	}
	if cfg.Shared {
		l.direct = sharedMost
	}
	return l
}

// Start begins to read and write, on goroutines that end with the link.
func (l *Link) Start(run func(func())) {
	run(l.reads)
	run(l.writes)
}

// Gone is closed once everything has been answered or failed.
func (l *Link) Gone() <-chan struct{} { return l.gone }

// Do sends commands and waits for their replies; errors of the server are among
// these.
func (l *Link) Do(ctx context.Context, cmds ...[]string) ([]any, error) {
	c := NewCall(cmds, nil)
	l.Call(c)
	select {
	case <-c.done:
		return c.Replies, c.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Tell sends a command without waiting for its reply.
func (l *Link) Tell(cmd ...string) { l.Call(NewCall([][]string{cmd}, nil)) }

// Call sends a call without waiting for its replies.
func (l *Link) Call(c *Call) { l.Send(Entry{Call: c, At: l.cfg.Now()}) }

// silence is for how long the node has answered nothing while requests were under way. One that
// works through many of them is not silent, however long the last of them takes. The caller
// holds mu.
func (l *Link) silence(now int64) int64 {
	if l.flight.len() == 0 {
		return 0
	}
	return now - max(l.flight.first().At, l.heard)
}

// Silent is silence for a caller that does not hold mu.
func (l *Link) Silent(now int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silence(now)
}

// EachUnderWay calls visit for each request that was sent and not answered, which must not call the Link.
func (l *Link) EachUnderWay(visit func(*engine.Request)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.flight.rest() {
		if e.Req != nil {
			visit(e.Req)
		}
	}
}

// Ended says whether nothing is sent any more.
func (l *Link) Ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// HangUp ends the link. What is under way fails when reads notices.
func (l *Link) HangUp(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.cfg.Conn.Close()
}

// end fails everything that is left. Whether what was written has been executed is
// unknown.
func (l *Link) end(err error) {
	l.HangUp(fmt.Errorf("the connection broke: %w", err))
	l.mu.Lock()
	err = l.err
	lost, unsent := append(l.again, l.flight.rest()...), l.queue
	l.again, l.flight, l.queue = nil, fifo{}, nil
	l.mu.Unlock()
	l.sink.Broken(err)
	for _, e := range lost {
		l.sink.Fail(e, engine.Failure{Err: err})
	}
	for _, e := range unsent {
		l.sink.Fail(e, engine.Failure{Err: errBroke, Unsent: true})
	}
	close(l.gone)
}
