// Package link carries requests to a Redis server and its answers back, in order, over one connection. It
// knows bytes and requests, but neither kinds of nodes nor votes: it passes everything that arrives to a Sink.
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
	// maxDirectBytes bounds the pending bytes, about four requests, while callers write their requests
	// themselves.
	maxDirectBytes = 1200
	// maxSharedBytes is maxDirectBytes for requests to several nodes, about one request: the client is busy
	// with the other nodes, and a batch of requests costs each node less.
	maxSharedBytes = 300
	// maxGroup bounds the requests to a single node that wait for one of their callers to write them, unless
	// maxBatchBytes are pending: the node works on them while the client prepares the next. With several nodes,
	// the client is busy with the others, and larger batches are cheaper. A batch also ends at maxBatchBytes.
	// Linux buffers more than twice as much before the other end has read anything.
	maxGroup      = 12
	maxBatchBytes = 16 << 10
	// maxBatch bounds the requests in one write, so that the node has work while the next ones are prepared.
	maxBatch = 32
	// maxLoads bounds how often a request is sent again after SCRIPT FLUSH. A dropped release keeps its lock
	// held for a TTL.
	maxLoads = 10
)

var (
	// ErrStalled is returned for a request that was not sent because the node does not answer earlier ones.
	ErrStalled = errors.New("skipped: it does not answer")
	// errUnsent is returned for a request that was not sent before the connection ended.
	errUnsent = errors.New("the connection broke before it was sent")
)

// Sink receives the events of a link. The reading goroutine calls Answer, Push and Broken, and holds no mutex:
// a call that blocks delays all answers. Senders call Fail and CanBeSpared as well, CanBeSpared while the link
// is locked.
type Sink interface {
	// Answer receives the answer to a request. v is valid until Answer returns.
	Answer(e Entry, v resp.Value)
	// Fail receives a request that will never be answered.
	Fail(e Entry, f engine.Failure)
	// Push receives a message that is not an answer. v is valid until Push returns.
	Push(v resp.Value)
	// Broken reports, before the remaining requests fail, that nothing is sent any more.
	Broken(err error)
	// CanBeSpared reports whether the other nodes are a quorum without this one. Such a node is skipped while
	// it does not answer.
	CanBeSpared() bool
}

// Config configures a Link.
type Config struct {
	Conn *resp.Conn
	Now  func() int64 // the engine's clock
	Sole bool         // the set has no other node
	// Shared reports that each request also goes to other nodes. In a Redis Cluster it goes to one shard only.
	Shared bool
	// Encode appends the command of a request to dst.
	Encode func(dst []byte, r *engine.Request) []byte
	// Loads returns the commands that load the scripts again after SCRIPT FLUSH.
	Loads func() [][]string
	// SessionError returns an error if no request may follow one with this answer; nil for most answers.
	SessionError func(v resp.Value) error
}

// Link is one checked connection to a node. It sends requests in order, and they are answered in that order.
// While few are pending, or many wait for a single node, the sending goroutine writes. Otherwise the requests
// that come during a write travel together in the next one. The reading goroutine delivers the answers.
type Link struct {
	cfg       Config
	sink      Sink
	maxDirect int           // pending bytes up to which a caller writes its request itself
	pipe      bool          // a write blocks until the other end reads, so the reading goroutine must not write
	wake      chan struct{} // starts a write
	gone      chan struct{} // closed once all requests have been answered or failed

	mu         sync.Mutex // guards the fields below; not held while writing
	err        error      // reason why nothing is sent any more
	writing    bool
	paused     bool       // nothing is written until the pending requests are answered
	queue      []Entry    // not written yet
	pending    entryQueue // written, not answered
	resend     []Entry    // to send again once the server has the scripts
	lastAnswer int64      // time of the node's last answer

	out []byte // buffer of the writing goroutine
}

// Entry is a request or call that is queued or sent.
type Entry struct {
	Req  *engine.Request
	Call *Call
	At   int64 // time of sending
	// Asking sends ASKING before the request, because the slot of the key moves to this server. It is reset
	// when ASKING is answered.
	Asking bool
	// Route and Turns belong to the Sink: the order of arrival there, and how often the entry was redirected.
	Route any
	Turns int

	size  int // bytes
	loads int // how often it was sent before to a server without the scripts
}

// Frees reports whether e may free a lock. Such an entry is sent even if it is late.
func (e *Entry) Frees() bool { return e.Req != nil && e.Req.Kind.Frees() }

// Repeated reports whether e was sent before, to a server that did not have its script.
func (e *Entry) Repeated() bool { return e.loads > 0 }

// confirmedBy reports whether a push of that kind is the answer to e.
func (e *Entry) confirmedBy(kind string) bool {
	return e.Call != nil && strings.EqualFold(e.Call.cmds[0][0], kind)
}

// Call is a list of commands that are not lock requests.
type Call struct {
	Replies []any // include errors of the server
	Err     error // reason why there are no replies

	cmds [][]string
	room int           // memory for the remaining replies
	done chan struct{} // closed when there are replies or err
	then func()        // called before done is closed, if not nil
}

// NewCall returns a call of commands. If then is not nil, the reading goroutine calls it once there are
// Replies or Err.
func NewCall(cmds [][]string, then func(*Call)) *Call {
	c := &Call{cmds: cmds, room: resp.ReplyMemory(cmds), done: make(chan struct{})}
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

// entryQueue is a queue of entries.
type entryQueue struct {
	list []Entry
	head int
	size int // bytes of all entries
}

func (f *entryQueue) len() int      { return len(f.list) - f.head }
func (f *entryQueue) first() *Entry { return &f.list[f.head] }
func (f *entryQueue) rest() []Entry { return f.list[f.head:] }

func (f *entryQueue) push(e Entry) {
	f.list = append(f.list, e)
	f.size += e.size
}

func (f *entryQueue) pop() (e Entry) {
	e, f.list[f.head] = f.list[f.head], Entry{}
	f.size -= e.size
	if f.head++; f.head == len(f.list) {
		f.list, f.head = f.list[:0], 0
	} else if f.head >= 8*maxBatch {
		f.list, f.head = slices.Delete(f.list, 0, f.head), 0
	}
	return e
}

// New returns a link over a checked connection. It sends nothing before Start.
func New(cfg Config, sink Sink) *Link {
	l := &Link{cfg: cfg, sink: sink, maxDirect: maxDirectBytes, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	cfg.Conn.Room = l.replyRoom
	if at := cfg.Conn.LocalAddr(); at != nil {
		l.pipe = at.Network() == "pipe" // in memory, as in tests
	}
	if cfg.Shared {
		l.maxDirect = maxSharedBytes
	}
	return l
}

// Start starts to read and write, in goroutines that end with the link.
func (l *Link) Start(run func(func())) {
	run(l.readLoop)
	run(l.writeLoop)
}

// Gone returns a channel that is closed once all requests have been answered or failed.
func (l *Link) Gone() <-chan struct{} { return l.gone }

// Do sends commands and waits for their replies, which may be errors of the server.
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

// SendCommand sends a command without waiting for its reply.
func (l *Link) SendCommand(cmd ...string) { l.Call(NewCall([][]string{cmd}, nil)) }

// Call sends a call without waiting for its replies.
func (l *Link) Call(c *Call) { l.Send(Entry{Call: c, At: l.cfg.Now()}) }

// silentForLocked returns how long the node has answered nothing while requests are pending. A node that works
// through many of them is not silent, however long the last of them takes. The caller holds mu.
func (l *Link) silentForLocked(now int64) int64 {
	if l.pending.len() == 0 {
		return 0
	}
	return now - max(l.pending.first().At, l.lastAnswer)
}

// SilentFor is silentForLocked for a caller that does not hold mu.
func (l *Link) SilentFor(now int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silentForLocked(now)
}

// EachPending calls visit for each request that was sent and not answered. visit must not call the Link.
func (l *Link) EachPending(visit func(*engine.Request)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.pending.rest() {
		if e.Req != nil {
			visit(e.Req)
		}
	}
}

// Ended reports whether the link sends nothing any more.
func (l *Link) Ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// HangUp ends the link. Pending requests fail when readLoop notices it.
func (l *Link) HangUp(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.cfg.Conn.Close()
}

// failAll fails all remaining requests. The written ones may or may not have been executed.
func (l *Link) failAll(err error) {
	l.HangUp(fmt.Errorf("the connection broke: %w", err))
	l.mu.Lock()
	err = l.err
	lost, unsent := append(l.resend, l.pending.rest()...), l.queue
	l.resend, l.pending, l.queue = nil, entryQueue{}, nil
	l.mu.Unlock()
	l.sink.Broken(err)
	for _, e := range lost {
		l.sink.Fail(e, engine.Failure{Err: err})
	}
	for _, e := range unsent {
		l.sink.Fail(e, engine.Failure{Err: errUnsent, Unsent: true})
	}
	close(l.gone)
}
