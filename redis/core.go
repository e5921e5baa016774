package redis

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/link"
)

// core is what the parts of a driver share.
type core struct {
	opts     Options
	engine   *engine.Engine
	gate     *gate
	nodes    []*node
	holder   holderCache
	channels *format.Channels
	bare     bareLooks

	set        set
	subscribed atomic.Bool // wake-ups are wanted, of a cluster
	admitted   atomic.Bool // a server has let this client in: what refuses it from now on may pass, as the gap of a rotation does

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // every goroutine of the driver that calls no code of the user
	logs sync.WaitGroup // those that call the Logger

	alert  atomic.Pointer[func(owner, why string)] // nil: none was given
	mu     sync.Mutex                              // guards notify
	notify func(driver.NodeEvent)
}

func (d *core) tell(e driver.NodeEvent) {
	d.mu.Lock()
	fn := d.notify
	d.mu.Unlock()
	if fn != nil {
		fn(e)
	}
}

// set is what the nodes are together: independent ones, each with a vote on every lock, or a Redis Cluster, of which
// one shard has each name.
type set interface {
	// connect makes the first connections, and returns once it is known how many nodes vote.
	connect(ctx context.Context) error
	// members are the servers that the driver is connected to, and need is how many of them have to answer a listing.
	members() []*node
	need(members int) int
	// voters are the nodes that have a vote on a lock, each at its index.
	voters(lock engine.Lock) []*node
	// examined are the nodes for a doctor, and what is wrong with the set as a whole.
	examined(ctx context.Context) ([]*node, look)
	// views asks the voters of each lock what they know of it.
	views(ctx context.Context, locks []engine.Lock) [][]engine.View
	// least is the first token that a grant over s may have.
	least(s *session) (int64, error)
	// spare says whether the others are a quorum without n.
	spare(n *node) bool
	// beside says whether the key of another name may be asked for on the same node.
	beside() bool

	// Of a connection: greeted is told before it carries requests, heard when it is known whether it has the
	// wake-ups, and lost when it has ended or could not be made.
	greeted(s *session)
	heard(s *session, refused error)
	lost(n *node)
	// wakes says whether a wake-up of owner that has come from n counts.
	wakes(n *node, owner string) bool

	// redirected says whether an answer is that n does not carry e out; e then goes where it belongs. over notes that e
	// has its answer otherwise, or never will; done is its request, if n has carried it out.
	redirected(n *node, e link.Entry, v resp.Value) bool
	over(e link.Entry, done *engine.Request)
	// blame adds to why n has failed what people need to know it by.
	blame(n *node, err error) error
	// keeper is the node that gets a release which n owes; inherit is told of those that n could not send.
	keeper(lock *engine.Lock, n *node) *node
	inherit(n *node, due map[string]owed)
}
