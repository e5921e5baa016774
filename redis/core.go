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

// core has the state that the parts of a driver share.
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
	admitted   atomic.Bool // a server has accepted this client: a later refusal may pass, as the gap of a rotation does

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // every goroutine of the driver that calls no code of the user
	logs sync.WaitGroup // goroutines that call the Logger

	alert  atomic.Pointer[func(owner, why string)] // nil: none was given
	mu     sync.Mutex                              // guards notify
	notify func(driver.NodeEvent)
}

func (d *core) notifyNode(e driver.NodeEvent) {
	d.mu.Lock()
	fn := d.notify
	d.mu.Unlock()
	if fn != nil {
		fn(e)
	}
}

// set is the set of nodes: independent ones, each with a vote on every lock, or the shards of a Redis Cluster, each with the
// names in its slots.
type set interface {
	// connect makes the first connections, and returns once it is known how many nodes vote.
	connect(ctx context.Context) error
	// members returns the servers that the driver is connected to, and neededAnswers the number of answers that a listing of
	// them needs.
	members() []*node
	neededAnswers(members int) int
	// votersOf returns the nodes that have a vote on a lock, each at its index.
	votersOf(lock engine.Lock) []*node
	// nodesToExamine returns the nodes for a doctor, and the findings about the set as a whole.
	nodesToExamine(ctx context.Context) ([]*node, exam)
	// askViews asks the voters of each lock for its state.
	askViews(ctx context.Context, locks []engine.Lock) [][]engine.View
	// leastToken returns the first token that a grant over s may have.
	leastToken(s *connection) (int64, error)
	// canSpare reports whether the other nodes are a quorum without n.
	canSpare(n *node) bool
	// hasEveryName reports whether each node has the keys of all names.
	hasEveryName() bool

	// A connection calls prepareConnection before it carries requests, noteSubscription once it is subscribed to wake-ups or was
	// rejected that, and noteLoss when it has ended or could not be made.
	prepareConnection(s *connection)
	noteSubscription(s *connection, refused error)
	noteLoss(n *node)
	// acceptsWakeUp reports whether a wake-up of owner from n counts.
	acceptsWakeUp(n *node, owner string) bool

	// takeRedirection reports whether the answer v sends e to another node, and sends it there. noteAnswered notes that e has
	// another answer, or never gets one; done is its request, if n has carried it out.
	takeRedirection(n *node, e link.Entry, v resp.Value) bool
	noteAnswered(e link.Entry, done *engine.Request)
	// blameNode adds to an error the name by which people know n.
	blameNode(n *node, err error) error
	// nodeForRelease returns the node that gets a release which n owes; inheritDebts takes over the releases that n
	// could not send.
	nodeForRelease(lock *engine.Lock, n *node) *node
	inheritDebts(n *node, debts []debt)
}
