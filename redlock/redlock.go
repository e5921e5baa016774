// Package redlock keeps locks on Redis or Valkey: on one server, or, after the
// Redlock algorithm, on several independent ones, of which a majority decides.
//
// # What is not promised
//
// One server that loses its data can give a lock to two: by a failover to a
// replica, or by a restart without an append-only file that is synced always. With
// several, a majority must keep its memory or sit out its quarantine, and their
// clocks must not jump by more than the drift that is allowed for. Even then a
// storage that checks tokens refuses the older holder. The table of promises is in
// docs/protocol.md.
//
// A node may be a master that Sentinels replace when it fails (Failover). A server that takes
// over votes after a quarantine, as it may not know the newest locks. The
// nodes may be a Redis Cluster (Options.Cluster), each shard of which is such a node for
// the names in its hash slots.
package redlock

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/dsn"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redlock/internal/format"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// Node is one server, or a master and the replicas that may take its place.
type Node struct {
	Addr string // host:port, or the path of a unix socket, which begins with /
	// Username and Password take precedence over those in Options.
	Username, Password string
	// Failover, if not nil, says in place of Addr where the server is found that is the
	// master now.
	Failover *Failover
}

// Options configure Open and New. The zero value works.
type Options struct {
	// Prefix goes before each lock's name to make its key. Default "lock:"; with
	// BareKeys there is none.
	Prefix string
	// Cluster says that the nodes are some of a Redis Cluster, by which the others are
	// found. Each shard has one vote, for the names in its hash slots.
	Cluster bool
	// BareKeys makes the name itself the key, as redsync, redislock, redis-py and
	// node-redlock do: all of them then exclude one another.
	BareKeys bool
	// Format is how the locks are kept: FormatRedisson to share them with Redisson.
	Format Format
	// MaxTTL is the longest TTL that any client of these nodes may ask for. A node that
	// may have forgotten locks, one of several or one that fails over, sits out that time,
	// and all clients must agree on it. Default 60 s, and for one server alone, which sits
	// out nothing, 24 h.
	MaxTTL time.Duration
	// NoQuarantine lets nodes vote at once that are new or may have lost their
	// data: for tests, and once for a set that nobody has used before. One server
	// alone is never quarantined.
	NoQuarantine bool
	// ReadOnly is for looking at locks: Open writes nothing on the nodes, needs
	// fewer rights, and succeeds with one node that answers. A node in quarantine
	// may have forgotten locks, and counts as one that does not answer. Taking,
	// renewing, releasing or forcing a lock is driver.ErrInvalid.
	ReadOnly bool
	// NoCheck makes a driver that connects to no node, so that there is one for nodes that
	// refuse this client too: for Limits and Diagnose. It takes no lock, as with ReadOnly, and
	// finds each node down.
	NoCheck bool
	// AllowEviction turns the refusal of a maxmemory-policy other than
	// noeviction into a warning.
	AllowEviction bool
	// AllowDown lets Open succeed while too few nodes can be reached or vote;
	// Acquire then waits until enough do. Open still fails where nodes refuse for a
	// reason that time does not remove.
	AllowDown bool
	// Timeout bounds dialling and checking one connection. Default 1 s.
	Timeout time.Duration
	// Dial, if not nil, opens every connection, for instance through a tunnel or by a
	// resolver of its own. network is "tcp", or "unix" for the path of a socket, and addr
	// the node's Addr or, with a Failover, that of a Sentinel or server; TLS goes on top. It returns when ctx ends, and may be called by many goroutines. Its
	// error counts as a node that cannot be reached, and the node is tried again.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS, if not nil, is used for every connection.
	TLS *tls.Config
	// Username and Password are for servers that ask for them.
	Username, Password string
	// Credentials, if not nil, is called for them at each new connection instead.
	// If it returns an error, the node counts as one that cannot be reached, and is
	// tried again.
	Credentials func(ctx context.Context, addr string) (username, password string, err error)
	// DB is the number of the database.
	DB int
	// ClientName is shown by CLIENT LIST. Default "holdfast".
	ClientName string
	// Logger gets warnings about the set-up. nil is silent.
	Logger *slog.Logger

	secrets []string // files that the URL names
}

// calls are the calls of a Driver that need nothing of this package.
type calls = engine.Calls

// Driver keeps locks on the nodes. It implements driver.Driver; use it through
// holdfast.New.
type Driver struct {
	calls
	opts     Options
	engine   *engine.Engine
	gate     *gate
	nodes    []*node
	holder   holderCache
	channels *format.Channels
	bare     bareLooks

	set        set
	subscribed atomic.Bool // wake-ups are wanted, of a cluster

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	work    sync.WaitGroup // every goroutine of the driver that calls no code of the user
	logs    sync.WaitGroup // those that call the Logger
	closing sync.Once

	alert  atomic.Pointer[func(owner, why string)] // nil: none was given
	mu     sync.Mutex                              // guards notify
	notify func(driver.NodeEvent)
}

// Open opens the nodes that a URL names; opts may be nil, and the URL takes precedence over
// it. Otherwise it does what New does.
//
//	redis://user:password@host:6379/0       one server; valkey:// means the same
//	rediss://host:6380?ca=/etc/ca.pem       one server, over TLS; or valkeys://
//	unix://user:password@/run/redis.sock    one server, by a unix socket
//	redlock://u:p@h1:6379,h2:6379,h3:6379   several independent servers
//	redis+cluster://u:p@h1:6379,h2          a Redis Cluster, found by some of its nodes; rediss+cluster:// over TLS
//	redis+sentinel://u:p@s1:26379,s2/NAME/0 the master that Sentinels know as NAME; rediss+sentinel:// over TLS
//	redis+replicas://u:p@h1:6379,h2/0       a master and its replicas, without Sentinels; or rediss+replicas://
//
// Several URLs with blanks between them make one set, to which each adds its nodes: so a node
// may be a master that moves, and each may have a login of its own. The first has the
// parameters for all. User and password stand in the first for all, or in each:
//
//	redis+sentinel://s1,s2,s3/one redis+sentinel://s4,s5,s6/two redis://h3
//
// Parameters: username and password (in place of those before the host), passwordfile
// (a file with the password of all servers, read at each new connection), prefix, bare
// (true), format (redisson), sentinel_username and sentinel_password (for the Sentinels, which do not get
// those before the hosts), maxttl (60s, 24h for one server alone), quarantine (off), timeout (1s), db, tls
// (true: for redlock), ca, cert, key (PEM files), servername (that the certificates of
// all servers must show, instead of the host), name (shown by CLIENT LIST), eviction
// (allow), down (allow). A number without a unit means seconds. Any other parameter is refused. In users and passwords,
// write % as %25, a comma as %2C, @ as %40, / as %2F, ? as %3F and a blank as %20; a URL that
// can be read in two ways is refused. A password in the URL never appears in an error.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	nodes, o, err := parseURL(url, opts)
	if err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	return New(ctx, nodes, &o)
}

// New connects to the nodes and checks them. It blocks until all have answered
// or ctx or opts.Timeout is over; opts may be nil. While a majority is fit,
// New reports a node that is unfit or cannot be reached by a warning and a
// node event, not by an error, and tries it again. Errors: ErrInvalid,
// ErrConfig, ErrAuth and ErrUnavailable of package holdfast, each of which names the node and
// says what to change. With NoCheck it does not block, and there is only ErrInvalid.
func New(ctx context.Context, nodes []Node, opts *Options) (*Driver, error) {
	d, err := prepare(nodes, opts)
	if err == nil && !d.opts.NoCheck {
		if err = d.set.connect(ctx); err == nil {
			d.warnOfSet(ctx)
		} else {
			d.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	return d, nil
}

// alone says that the nodes are one server, which no other replaces.
func alone(nodes []Node) bool { return len(nodes) == 1 && nodes[0].Failover == nil }

func (o *Options) defaults(nodes []Node) error {
	if err := o.formatFits(nodes); err != nil {
		return err
	}
	switch {
	case o.BareKeys && o.Prefix != "":
		return fmt.Errorf("%w: bare and prefix %q: with bare=true the name is the whole key; give one of them", driver.ErrInvalid, o.Prefix)
	case !o.BareKeys && o.Prefix == "":
		o.Prefix = o.format().DefaultPrefix()
	}
	switch {
	case o.MaxTTL != 0:
	case alone(nodes) && !o.Cluster:
		o.MaxTTL = 24 * time.Hour
	default:
		o.MaxTTL = time.Minute
	}
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	if o.ClientName == "" {
		o.ClientName = "holdfast"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case strings.HasPrefix(o.Prefix, wire.Companion):
		return fmt.Errorf("%w: prefix %q: keys that begin with %q are kept for Holdfast itself", driver.ErrInvalid, o.Prefix, wire.Companion)
	case o.MaxTTL < 10*time.Millisecond:
		return fmt.Errorf("%w: maxttl %v is too short; give at least 10ms", driver.ErrInvalid, o.MaxTTL)
	case o.Cluster && o.DB != 0:
		return fmt.Errorf("%w: db %d: a Redis Cluster has database 0 alone; leave it out", driver.ErrInvalid, o.DB)
	case o.Timeout < 0 || o.DB < 0:
		return fmt.Errorf("%w: timeout %v, db %d: neither may be negative", driver.ErrInvalid, o.Timeout, o.DB)
	}
	return nil
}

// checkNode finds what is wrong with a node, before anything is dialled, and names one that fails over. number tells people
// which of the nodes it is.
func (o *Options) checkNode(n *Node, number string) error {
	if o.Cluster && (n.Failover != nil || server.IsSocket(n.Addr) || n.Username != "" || n.Password != "") {
		return fmt.Errorf("%w: node %s: a node of a Redis Cluster is named by its address, host:port; Username and Password are those of Options",
			driver.ErrInvalid, number)
	}
	if f := n.Failover; f != nil {
		if err := f.check(); err != nil {
			return err
		}
		if n.Addr != "" {
			return fmt.Errorf("%w: node %s has Addr and Failover; give one of them", driver.ErrInvalid, number)
		}
		n.Addr = f.place(nil).Name()
		return nil
	}
	if !server.IsSocket(n.Addr) {
		// A text that is no address is not shown: it may be a URL, with a password.
		if host, port, err := net.SplitHostPort(n.Addr); err != nil || !dsn.Dialable(cmp.Or(host, "localhost"), port) {
			return fmt.Errorf("%w: the address of node %s is not host:port, such as localhost:6379, nor the path of a socket; Open takes URLs",
				driver.ErrInvalid, number)
		}
	} else if cfg := o.TLS; cfg != nil && cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		return fmt.Errorf("%w: TLS over the unix socket %s needs the name that the certificate shows: give servername, or no TLS",
			driver.ErrInvalid, n.Addr)
	}
	return nil
}

// prepare checks the arguments and makes a driver that is not connected.
func prepare(nodes []Node, opts *Options) (*Driver, error) {
	d := &Driver{}
	if opts != nil {
		d.opts = *opts
	}
	if err := d.opts.defaults(nodes); err != nil {
		return nil, err
	}
	d.opts.ReadOnly = d.opts.ReadOnly || d.opts.NoCheck
	if len(nodes) == 0 {
		return nil, fmt.Errorf("%w: no node; give the address of at least one Redis server", driver.ErrInvalid)
	}
	if len(nodes) > quorum.MaxNodes && !d.opts.Cluster {
		return nil, fmt.Errorf("%w: %d nodes; give at most %d", driver.ErrInvalid, len(nodes), quorum.MaxNodes)
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.gate = newGate(&d.opts, len(nodes))
	for i, n := range nodes {
		if err := d.opts.checkNode(&n, fmt.Sprintf("%d of %d", i+1, len(nodes))); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(d.nodes, func(m *node) bool { return m.addr == n.Addr }) {
			return nil, fmt.Errorf("%w: node %s is listed twice and would vote twice; list every server once", driver.ErrInvalid, n.Addr)
		}
		d.nodes = append(d.nodes, newNode(d, i, n))
	}
	all := make([]engine.Node, len(d.nodes))
	for i, n := range d.nodes {
		all[i] = n
	}
	d.set = &independent{d}
	cfg := engine.Config{Nodes: all, Keys: d.opts.keys, Shared: d.opts.BareKeys}
	if d.opts.Cluster || !alone(nodes) {
		cfg.Noted = time.Duration(quorum.Noted(int64(d.opts.MaxTTL)))
	}
	if d.opts.Cluster {
		c := &cluster{d: d, seeds: slices.Clone(nodes), doubt: make(chan struct{}, 1)}
		d.set, d.nodes, cfg.Nodes, cfg.Lane = c, nil, []engine.Node{c}, c.lane
	}
	d.opts.format().Configure(&cfg)
	d.channels = d.opts.format().Channels()
	d.engine = engine.New(cfg)
	var refusal error
	if d.opts.ReadOnly {
		refusal = errReadOnly
	}
	d.calls = engine.NewCalls(d.engine, refusal, d.describe)
	for _, n := range d.nodes {
		n.engine = d.engine
	}
	return d, nil
}

// Alert implements driver.Alerter.
func (d *Driver) Alert(fn func(owner, why string)) { d.alert.Store(&fn) }

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) {
	d.mu.Lock()
	d.notify = fn
	d.mu.Unlock()
	for _, e := range d.Nodes() {
		if e.State != driver.NodeUp {
			fn(e)
		}
	}
}

// Nodes implements driver.Notifier.
func (d *Driver) Nodes() (all []driver.NodeEvent) {
	for _, n := range d.set.members() {
		all = append(all, n.event())
	}
	return all
}

func (d *Driver) tell(e driver.NodeEvent) {
	d.mu.Lock()
	fn := d.notify
	d.mu.Unlock()
	if fn != nil {
		fn(e)
	}
}

// errReadOnly is returned by methods that would write, where the driver was opened
// with ReadOnly or NoCheck.
var errReadOnly = fmt.Errorf("%w: the driver was opened with ReadOnly or NoCheck, and takes no locks", driver.ErrInvalid)

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if d.opts.ReadOnly {
		return driver.Grant{}, errReadOnly
	}
	d.holder.introduce(d, req.Holder)
	if !req.NoWait && d.channels != nil {
		defer d.channels.Await(d.opts.keys(req.Key).Key)()
	}
	d.bare.note(req.Key)
	return d.calls.Acquire(ctx, req)
}

// Limits implements driver.Driver.
func (d *Driver) Limits() driver.Limits { return d.opts.limits() }

func (o *Options) limits() driver.Limits {
	l := driver.Limits{
		MinTTL: 10 * time.Millisecond, MaxTTL: o.MaxTTL, Token: true, Order: true, MinHold: true, ChangeTTL: true,
		Longer: "raise maxttl, the same for all clients; a node that restarts without its data stays silent for as long",
	}
	if o.Format == FormatRedisson {
		l.NoReaders = "with format=redisson the names are Java's, whose RReadWriteLock of a name keeps its readers in another way; " +
			"use a client without the format, and other names"
	}
	return l
}

// Close implements driver.Driver. It blocks until what was sent is answered, and the
// Logger has taken its last lines, each for about a second at most; a second Close does
// nothing.
func (d *Driver) Close() error {
	d.closing.Do(func() {
		d.engine.Close()
		var all sync.WaitGroup
		for _, n := range d.set.members() {
			all.Go(n.drain)
		}
		all.Wait()
		d.stop()
		d.work.Wait()
		logged := make(chan struct{})
		go func() { d.logs.Wait(); close(logged) }() // it stays for as long as a Logger hangs
		select {
		case <-logged:
		case <-time.After(askTime):
		}
	})
	return nil
}
