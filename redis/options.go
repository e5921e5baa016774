package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/place"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// Node is one server, or a master and the replicas that may take its place.
type Node struct {
	Addr string // host:port, or the path of a unix socket, which begins with /
	// Username and Password take precedence over those in Options.
	Username, Password string
	// Failover, if not nil, locates the present master in place of Addr.
	Failover *Failover
}

// Options configure Open and New. The zero value works.
type Options struct {
	// Prefix goes before each lock's name to make its key. Default "lock:"; with
	// BareKeys there is none.
	Prefix string
	// Cluster is for nodes of a Redis Cluster. Some suffice: they name the others. Each shard
	// has one vote, for the names in its hash slots.
	Cluster bool
	// BareKeys makes the name itself the key, as redsync, redislock, redis-py and
	// node-redlock do: all of them then exclude one another.
	BareKeys bool
	// Format selects the keys and scripts of the locks: FormatRedisson shares them with Redisson.
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
	// fewer permissions, and succeeds with one node that answers. A node in quarantine
	// may have forgotten locks, and counts as one that does not answer. Taking,
	// renewing, releasing or forcing a lock is driver.ErrInvalid.
	ReadOnly bool
	// NoCheck makes a driver that connects to no node, so that there is one for nodes that
	// reject this client too: for Limits and Diagnose. It takes no lock, as with ReadOnly, and
	// finds each node down.
	NoCheck bool
	// AllowEviction turns the refusal of a maxmemory-policy other than
	// noeviction into a warning.
	AllowEviction bool
	// AllowDown lets Open succeed while too few nodes can be reached or vote;
	// Acquire then waits until enough do. Open still fails where nodes reject for a
	// reason that time does not remove.
	AllowDown bool
	// Timeout bounds dialling, and then the wait for each of the answers, a dozen or so, by which a new connection
	// is checked. Default 1 s.
	Timeout time.Duration
	// Dial, if not nil, opens every connection, for instance through a tunnel or by a resolver of its own. network is "tcp",
	// or "unix" for the path of a socket. addr is the node's Addr or, with a Failover, the address of a Sentinel or server.
	// TLS goes on top. It returns when ctx ends, and may be called by many goroutines. Its error counts as a node that cannot
	// be reached, and the node is tried again.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS, if not nil, is used for every connection.
	TLS *tls.Config
	// Username and Password are for servers that ask for them.
	Username, Password string
	// Credentials, if not nil, is called for them at each new connection instead.
	// If it returns an error, the node counts as one that cannot be reached, and is
	// tried again.
	Credentials func(ctx context.Context, addr string) (username, password string, err error)
	// DB is the number of the database. A cluster has others than 0 with Valkey 9 and newer alone (cluster-databases).
	DB int
	// ClientName is shown by CLIENT LIST. Default "holdfast".
	ClientName string
	// Logger gets warnings about the set-up. nil: they go to slog's default; a logger over
	// slog.DiscardHandler is silent.
	Logger *slog.Logger

	secrets  []string                               // files that the URL names
	freshTLS func(*tls.Config) (*tls.Config, error) // reads again what TLS has of them; nil: it has nothing
}

// isSingleServer reports whether the nodes are one server that no other replaces.
func isSingleServer(nodes []Node) bool { return len(nodes) == 1 && nodes[0].Failover == nil }

func (o *Options) setDefaults(nodes []Node) error {
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
	case isSingleServer(nodes) && !o.Cluster:
		o.MaxTTL = 24 * time.Hour
	default:
		o.MaxTTL = time.Minute
	}
	if o.Timeout == 0 {
		o.Timeout = pace.DialTime()
	}
	if o.ClientName == "" {
		o.ClientName = "holdfast"
	}
	o.Logger = driver.LoggerOrDefault(o.Logger)
	switch {
	case strings.HasPrefix(o.Prefix, wire.Companion):
		return fmt.Errorf("%w: prefix %q: keys that begin with %q are kept for Holdfast itself", driver.ErrInvalid, o.Prefix, wire.Companion)
	case o.MaxTTL < 10*time.Millisecond:
		return fmt.Errorf("%w: maxttl %v is too short; give at least 10ms", driver.ErrInvalid, o.MaxTTL)
	case o.Timeout < 0 || o.DB < 0:
		return fmt.Errorf("%w: timeout %v, db %d: neither may be negative", driver.ErrInvalid, o.Timeout, o.DB)
	}
	return nil
}

// checkNode finds what is wrong with a node, before anything is dialed, and names one that fails over. number tells people
// which of the nodes it is.
func (o *Options) checkNode(n *Node, number string) error {
	if o.Cluster && (n.Failover != nil || server.IsSocket(n.Addr) || n.Username != "" || n.Password != "") {
		return fmt.Errorf("%w: node %s: a node of a Redis Cluster is named by its address, host:port; Username and Password are those of Options",
			driver.ErrInvalid, number)
	}
	if f := n.Failover; f != nil {
		if err := f.checkAddrs(); err != nil {
			return err
		}
		if n.Addr != "" {
			return fmt.Errorf("%w: node %s has Addr and Failover; give one of them", driver.ErrInvalid, number)
		}
		n.Addr = f.makePlace(nil).Name()
		return nil
	}
	if !server.IsSocket(n.Addr) {
		// A text that is no address is not shown: it may be a URL, with a password.
		if host, port, err := net.SplitHostPort(n.Addr); err != nil || !driverkit.Dialable(cmp.Or(host, "localhost"), port) {
			return fmt.Errorf("%w: the address of node %s is not host:port, such as localhost:6379, nor the path of a socket; Open takes URLs",
				driver.ErrInvalid, number)
		}
	} else if cfg := o.TLS; cfg != nil && cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		return fmt.Errorf("%w: TLS over the unix socket %s needs the name that the certificate shows: give servername, or no TLS",
			driver.ErrInvalid, n.Addr)
	}
	return nil
}

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

// format returns the format of the locks; setDefaults has rejected unknown ones.
func (o *Options) format() *format.Format { return formats[o.Format] }

// formatFits rejects a format that does not fit the nodes.
func (o *Options) formatFits(nodes []Node) error {
	f := formats[o.Format]
	if f == nil {
		return fmt.Errorf("%w: format %q is not known; give redisson, or none for Holdfast's own", driver.ErrInvalid, o.Format)
	}
	if err := f.Fits(format.Set{Nodes: len(nodes), Cluster: o.Cluster, Replaced: !isSingleServer(nodes)}); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	if f.DefaultPrefix() == "" {
		o.BareKeys = o.BareKeys && o.Prefix != "" // no prefix already means bare keys; with a prefix setDefaults rejects both
	}
	return nil
}

// lockKeys names the keys of a lock.
func (o *Options) lockKeys(name string) engine.Lock {
	return o.format().Lock(o.Prefix, name, o.Cluster)
}

// setKey names the marker of the set.
func (o *Options) setKey() string { return o.format().SetKey(o.Prefix) }

// probeName begins the names of the locks on which a client tries a server. Nobody holds them.
const probeName = "~probe:"

// probeKeys returns the keys on which permissions and scripts are tried. With bare keys only the
// operator knows for which keys there are permissions; the probe then uses the pattern
// of the companion keys.
func (o *Options) probeKeys(client string) engine.Lock {
	name := probeName + client
	if o.Prefix == "" {
		name = wire.Companion + name
	}
	return o.lockKeys(name)
}

// nameOf returns the name of the lock that has a key; ok is false if it belongs to none, or to a probe.
func (o *Options) nameOf(key string) (name string, ok bool) {
	if strings.HasPrefix(key, wire.Companion) {
		return "", false
	}
	name, ok = strings.CutPrefix(key, o.Prefix)
	return name, ok && !strings.HasPrefix(name, probeName)
}

// Failover locates the master of a node whose place another server may take. Give either Sentinels and Master, or Servers.
type Failover struct {
	// Sentinels are the addresses, host:port, of Sentinels. They are asked at each new
	// connection, and every few seconds, which server is the master.
	Sentinels []string
	// Master is the name that the Sentinels have for it, such as mymaster.
	Master string
	// Username and Password are for Sentinels that ask for them. Those of the servers
	// are in Node or Options. TLS of Options is for both.
	Username, Password string
	// Servers, host:port, are a master and its replicas where no Sentinel looks after
	// them: the one whose role is master is the node.
	Servers []string
}

// checkAddrs finds what is wrong with f, before anything is dialed.
func (f *Failover) checkAddrs() error {
	addrs := slices.Concat(f.Sentinels, f.Servers)
	switch {
	case len(f.Sentinels) > 0 && len(f.Servers) > 0:
		return fmt.Errorf("%w: Failover has Sentinels and Servers; give one of them", driver.ErrInvalid)
	case len(addrs) == 0:
		return fmt.Errorf("%w: Failover has neither Sentinels nor Servers; give the addresses of one of them", driver.ErrInvalid)
	case len(f.Sentinels) > 0 && !nameOfMaster.MatchString(f.Master): // it is not shown, as it may be part of a password
		return fmt.Errorf("%w: the name of the master is missing, or has more than letters, digits, dots, dashes and underscores; "+
			"give the one that the Sentinels have, as in redis+sentinel://host:26379/mymaster", driver.ErrInvalid)
	}
	for i, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		switch {
		case err != nil || !driverkit.Dialable(cmp.Or(host, "localhost"), port):
			return fmt.Errorf("%w: address %d of %d of the Sentinels or servers is not host:port, such as localhost:26379", driver.ErrInvalid, i+1, len(addrs))
		case slices.Contains(addrs[:i], addr):
			return fmt.Errorf("%w: %s is listed twice; list each once", driver.ErrInvalid, addr)
		}
	}
	return nil
}

// nameOfMaster matches the names that Sentinels accept.
var nameOfMaster = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// makePlace returns the place where the master is found.
func (f *Failover) makePlace(net *place.Net) *place.Master {
	return &place.Master{
		Fixed: place.Fixed{Net: net}, Sentinels: f.Sentinels, Watched: f.Master, Username: f.Username, Password: f.Password, Servers: f.Servers,
	}
}
