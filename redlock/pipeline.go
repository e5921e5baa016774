package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/member"
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
	// stallAfter is how long the node may answer nothing, while requests are under way,
	// before those that can do without it are no longer queued there: those
	// that do not wait, and all where the other nodes are a quorum.
	stallAfter = int64(250 * time.Millisecond)
	// breakAfter is for how long it may do so before the link is closed, because its
	// other end may be gone without a message.
	breakAfter = int64(2 * time.Second)
	// loadMost is how often a request is sent again after SCRIPT FLUSH. A release
	// that is dropped leaves its lock for a TTL.
	loadMost = 10
)

var (
	errStalled = errors.New("skipped: it does not answer")
	errBroke   = errors.New("the connection broke before it was sent")
	errHungUp  = errors.New("hung up")
	errSilent  = errors.New("no answer for too long")
	errForgot  = errors.New("its data were lost or replaced while it was connected")
	errServed  = errors.New("its quarantine is over")
)

// link is one checked connection to a node. Requests go out in the order in which
// they were sent and are answered in that order. Where few are under way, or many wait for a
// single node, the goroutine that sends one writes. Otherwise the requests that come while a
// write is under way travel together in the next. The goroutine that reads
// answers delivers them.
type link struct {
	n      *node
	proof  proof
	alone  bool // the set has no other node
	direct int  // bytes that may be under way for a caller to write its request itself
	conn   net.Conn
	in     *resp.Reader
	wake   chan struct{} // for writes
	gone   chan struct{} // closed once everything has been answered or failed

	// Of a node that fails over.
	server string                  // the address at the other end
	run    string                  // its run
	since  string                  // its last promotion
	floor  int64                   // the least token that it may give
	stay   *member.QuarantineError // the node only keeps what it has; nil: it votes
	votes  int64                   // with stay: Engine.Now from which it votes

	// Of a cluster.
	early bool        // it is subscribed before it carries requests
	hears atomic.Bool // the subscription is confirmed

	mu      sync.Mutex // guards what follows; not held while writing
	err     error      // why nothing is sent any more
	writing bool
	held    bool    // nothing is written before what is under way is answered
	queue   []entry // not written yet
	flight  fifo    // written, not answered
	again   []entry // to be sent again once the server knows the scripts
	heard   int64   // when the node answered last

	// The goroutine that writes owns these.
	out  []byte
	text texts
}

// entry is something sent: a request, or else a call.
type entry struct {
	req   *engine.Request
	call  *call
	at    int64 // when it was sent
	size  int   // bytes
	loads int   // how often it was sent before, to a server without the scripts

	// Of a cluster.
	route *route // of its hash slot; nil: it is in none
	turns int    // how often it went to the wrong shard
	asks  bool   // it is for a slot that moves to that shard, which has to be told, and answers that first
}

// release says whether e may free a lock, for which it is never too late.
func (e *entry) release() bool {
	return e.req != nil && e.req.Kind.Frees()
}

// subscribes says whether a push of that kind is the answer to e.
func (e *entry) subscribes(kind string) bool {
	return e.call != nil && strings.EqualFold(e.call.cmds[0][0], kind)
}

// call is commands other than those of locks.
type call struct {
	cmds    [][]string
	replies []any
	err     error
	done    chan struct{} // closed when there are replies or err
	then    func()        // called before, if not nil
}

func newCall(cmds [][]string) *call { return &call{cmds: cmds, done: make(chan struct{})} }

func (c *call) end(err error) {
	c.err = err
	if c.then != nil {
		c.then()
	}
	close(c.done)
}

// fifo is a queue of entries.
type fifo struct {
	list []entry
	head int
	size int // bytes of all
}

func (f *fifo) len() int      { return len(f.list) - f.head }
func (f *fifo) first() *entry { return &f.list[f.head] }
func (f *fifo) rest() []entry { return f.list[f.head:] }

func (f *fifo) push(e entry) {
	f.list = append(f.list, e)
	f.size += e.size
}

func (f *fifo) pop() (e entry) {
	e, f.list[f.head] = f.list[f.head], entry{}
	f.size -= e.size
	if f.head++; f.head == len(f.list) {
		f.list, f.head = f.list[:0], 0
	} else if f.head >= 8*batchMost {
		f.list, f.head = slices.Delete(f.list, 0, f.head), 0
	}
	return e
}

// newLink takes over a connection that the gate has checked.
func newLink(n *node, c *resp.Conn, rep report) *link {
	l := &link{
		n: n, proof: rep.proof, alone: len(n.d.nodes) == 1, conn: c.Conn, in: c.Reader, wake: make(chan struct{}, 1), gone: make(chan struct{}),
		direct: directMost, text: texts{proof: rep.proof, heads: n.d.opts.format().heads},
		server: rep.server, run: rep.run, since: rep.since, floor: rep.floor, stay: rep.stay,
	}
	if len(n.d.nodes) > 1 {
		l.direct = sharedMost
	}
	if l.stay != nil {
		l.votes = n.engine.Now() + int64(l.stay.Left)
	}
	return l
}

// do sends commands and waits for their replies; errors of the server are among
// these.
func (l *link) do(ctx context.Context, cmds ...[]string) ([]any, error) {
	c := newCall(cmds)
	l.send(entry{call: c, at: l.n.engine.Now()})
	select {
	case <-c.done:
		return c.replies, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// tell sends a command without waiting for its reply.
func (l *link) tell(cmd ...string) {
	l.send(entry{call: newCall([][]string{cmd}), at: l.n.engine.Now()})
}

// silence is for how long the node has answered nothing while requests were under way. One that
// works through many of them is not silent, however long the last of them takes. The caller
// holds mu.
func (l *link) silence(now int64) int64 {
	if l.flight.len() == 0 {
		return 0
	}
	return now - max(l.flight.first().at, l.heard)
}

// silent is silence for a caller that does not hold mu.
func (l *link) silent(now int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silence(now)
}

func (l *link) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// hangUp ends the link. What is under way fails when reads notices.
func (l *link) hangUp(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.conn.Close()
}

// end fails everything that is left. Whether what was written has been executed is
// unknown.
func (l *link) end(err error) {
	l.hangUp(fmt.Errorf("the connection broke: %w", err))
	l.mu.Lock()
	err = l.err
	lost, unsent := append(l.again, l.flight.rest()...), l.queue
	l.again, l.flight, l.queue = nil, fifo{}, nil
	l.mu.Unlock()
	l.n.broken(l, err)
	for _, e := range lost {
		l.n.fail(e, engine.Failure{Err: err})
	}
	for _, e := range unsent {
		l.n.fail(e, engine.Failure{Err: errBroke, Unsent: true})
	}
	close(l.gone)
}
