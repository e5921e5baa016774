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

// core is the state that the parts of a driver share.
type core struct {
	opts     Options
	engine   *engine.Engine
	gate     *gate
	nodes    []*node
	holder   holderCache
	channels *format.Channels
	bare     bareKeySearch

	set        set
	subscribed atomic.Bool // of a cluster: wake-ups are wanted
	admitted   atomic.Bool // a server has accepted this client, so a later rejection may be temporary, as during a rotation of credentials

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // all goroutines of the driver that call no code of the user
	logs sync.WaitGroup // goroutines that call the Logger

	alert  atomic.Pointer[func(owner, why string)] // nil: not set
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

// set is the set of nodes: independent nodes that each vote on every lock, or the shards of a Redis Cluster,
// each for the names in its slots.
type set interface {
	// connect opens the first connections. It returns once it is known how many nodes vote.
	connect(ctx context.Context) error
	// members returns the servers that the driver is connected to. neededAnswers returns how many of them must
	// answer a listing.
	members() []*node
	neededAnswers(members int) int
	// votersOf returns the nodes that vote on a lock, each at its index.
	votersOf(lock engine.Lock) []*node
	// nodesToExamine returns the nodes for a diagnosis, and the findings about the set as a whole.
	nodesToExamine(ctx context.Context) ([]*node, nodeExam)
	// fetchViews asks the voters of each lock for its state.
	fetchViews(ctx context.Context, locks []engine.Lock) [][]engine.View
	// leastToken returns the lowest token that a grant over s may have.
	leastToken(s *connection) (int64, error)
	// canSpare reports whether the other nodes form a quorum without n.
	canSpare(n *node) bool
	// hasEveryName reports whether each node may store every lock.
	hasEveryName() bool

	// A connection calls prepareConnection before it carries requests, noteSubscription when its subscription
	// to wake-ups is confirmed or rejected, and noteLoss when it has ended or could not be opened.
	prepareConnection(s *connection)
	noteSubscription(s *connection, refused error)
	noteLoss(n *node)
	// acceptsWakeUp reports whether a wake-up of owner from n counts.
	acceptsWakeUp(n *node, owner string) bool

	// takeRedirection reports whether the answer v redirects e to another node, and sends e there.
	// noteAnswered records that e got an answer that is no redirection, or can get no answer any more. done is
	// the request of e if n has executed it, and nil otherwise.
	takeRedirection(n *node, e link.Entry, v resp.Value) bool
	noteAnswered(e link.Entry, done *engine.Request)
	// blameNode adds the name of n to an error.
	blameNode(n *node, err error) error
	// nodeForRelease returns the node that executes a release for n. takeOverDebts takes over the releases that
	// could not be sent to n.
	nodeForRelease(lock *engine.Lock, n *node) *node
	takeOverDebts(n *node, debts []debt)
}
