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
	// Prefix is put before each lock's name to form its key. Default "lock:"; with BareKeys there is none.
	Prefix string
	// Cluster is set for nodes of a Redis Cluster. Name some of them; they report the others. Each shard has
	// one vote, for the names in its hash slots.
	Cluster bool
	// BareKeys uses the name itself as the key, as redsync, redislock, redis-py and node-redlock do, so that
	// these libraries and Holdfast exclude one another.
	BareKeys bool
	// Format selects the keys and scripts of the locks: FormatRedisson shares them with Redisson.
	Format Format
	// MaxTTL is the longest TTL that any client of these nodes may ask for. A node of several, or one that
	// fails over, waits that long in quarantine if it may have forgotten locks, so all clients must give the
	// same MaxTTL. Default 60 s; for a single server, which has no quarantine, 24 h.
	MaxTTL time.Duration
	// NoQuarantine lets nodes vote at once that are new or may have lost their data. Use it for tests, and
	// once for a set that nobody has used before. A single server has no quarantine.
	NoQuarantine bool
	// ReadOnly is for inspecting locks: Open writes nothing to the nodes, needs fewer permissions, and
	// succeeds if one node answers. A node in quarantine may have forgotten locks, so it counts as a node that
	// does not answer. Acquiring, renewing, releasing or forcing a lock returns driver.ErrInvalid.
	ReadOnly bool
	// NoCheck creates the driver without a connection to any node, so that Limits and Diagnose work even if the
	// nodes reject this client. As with ReadOnly, the driver acquires no locks. It reports each node as down.
	NoCheck bool
	// AllowEviction accepts a maxmemory-policy other than noeviction, with a warning.
	AllowEviction bool
	// AllowDown lets Open succeed while too few nodes can be reached or vote; Acquire then waits until enough
	// do. Open still fails if nodes reject the client for a reason that waiting does not fix.
	AllowDown bool
	// Timeout bounds the dialing of a new connection, and then the wait for each of the dozen answers by which
	// the connection is checked. Default 1 s.
	Timeout time.Duration
	// Dial, if not nil, opens every connection, for example through a tunnel or with another resolver. network
	// is "tcp", or "unix" for the path of a socket. addr is the node's Addr or, with a Failover, the address
	// of a Sentinel or server. TLS is added to the connection. Dial must return when ctx ends, and be safe for
	// concurrent use. If it fails, the node counts as unreachable and is tried again.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS, if not nil, is used for every connection.
	TLS *tls.Config
	// Username and Password are for servers that ask for them.
	Username, Password string
	// Credentials, if not nil, is called for each new connection and replaces Username and Password. If it
	// fails, the node counts as unreachable and is tried again.
	Credentials func(ctx context.Context, addr string) (username, password string, err error)
	// DB is the number of the database. Only Valkey 9 and newer has other databases than 0 in a cluster
	// (cluster-databases).
	DB int
	// ClientName is the name that CLIENT LIST shows. Default "holdfast".
	ClientName string
	// Logger logs warnings about the set-up. nil: warnings go to slog's default logger. To silence them, use a
	// logger with slog.DiscardHandler.
	Logger *slog.Logger

	secrets  []string                               // files that the URL names
	freshTLS func(*tls.Config) (*tls.Config, error) // reads the files of TLS again; nil: it has none
}

// isSingleServer reports whether the nodes are one server that no other replaces.
func isSingleServer(nodes []Node) bool { return len(nodes) == 1 && nodes[0].Failover == nil }

func (o *Options) setDefaults(nodes []Node) error {
	if err := o.checkFormat(nodes); err != nil {
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

// checkNode checks a node before anything is dialed, and fills in the options of one that fails over. number
// identifies the node in errors.
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
		// An invalid address is not shown, because it may be a URL with a password.
		if host, port, err := net.SplitHostPort(n.Addr); err != nil || !driverkit.IsDialable(cmp.Or(host, "localhost"), port) {
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
		MaxTTLHint: "raise maxttl, the same for all clients; a node that restarts without its data stays silent for as long",
	}
	if o.Format == FormatRedisson {
		l.NoRWLock = "with format=redisson the names are Java's, whose RReadWriteLock of a name keeps its readers in another way; " +
			"use a client without the format, and other names"
	}
	return l
}

// format returns the format of the locks; setDefaults has rejected unknown ones.
func (o *Options) format() *format.Format { return formats[o.Format] }

// checkFormat rejects a format that does not fit the nodes, and drops BareKeys where the format implies it.
func (o *Options) checkFormat(nodes []Node) error {
	f := formats[o.Format]
	if f == nil {
		return fmt.Errorf("%w: format %q is not known; give redisson, or none for Holdfast's own", driver.ErrInvalid, o.Format)
	}
	if err := f.CheckFits(format.Set{Nodes: len(nodes), Cluster: o.Cluster, Replaced: !isSingleServer(nodes)}); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	if f.DefaultPrefix() == "" {
		o.BareKeys = o.BareKeys && o.Prefix != "" // no prefix already means bare keys; with a prefix, setDefaults rejects both
	}
	return nil
}

// lockKeys returns the keys of a lock.
func (o *Options) lockKeys(name string) engine.Lock {
	return o.format().Lock(o.Prefix, name, o.Cluster)
}

// setKey returns the key of the set's marker.
func (o *Options) setKey() string { return o.format().SetKey(o.Prefix) }

// probeName is the prefix of the lock names with which a client checks a server. No client holds these locks.
const probeName = "~probe:"

// probeKeys returns the keys on which permissions and scripts are tried. With bare keys only the operator
// knows for which keys there are permissions, so the probe uses the pattern of Holdfast's other keys.
func (o *Options) probeKeys(client string) engine.Lock {
	name := probeName + client
	if o.Prefix == "" {
		name = wire.Companion + name
	}
	return o.lockKeys(name)
}

// nameOf returns the name of the lock that has a key. ok is false if the key belongs to no lock, or to a
// probe.
func (o *Options) nameOf(key string) (name string, ok bool) {
	if strings.HasPrefix(key, wire.Companion) {
		return "", false
	}
	name, ok = strings.CutPrefix(key, o.Prefix)
	return name, ok && !strings.HasPrefix(name, probeName)
}

// Failover locates the master of a node whose server can be replaced. Give either Sentinels and Master, or
// Servers.
type Failover struct {
	// Sentinels are the addresses, host:port, of Sentinels. At each new connection, and every few seconds,
	// they are asked for the master.
	Sentinels []string
	// Master is the Sentinels' name for the master, such as mymaster.
	Master string
	// Username and Password are for Sentinels that ask for them. The servers use those in Node or Options. TLS
	// in Options applies to both.
	Username, Password string
	// Servers, host:port, are a master and its replicas that no Sentinel watches: the server whose role is
	// master is the node.
	Servers []string
}

// checkAddrs checks f before anything is dialed.
func (f *Failover) checkAddrs() error {
	addrs := slices.Concat(f.Sentinels, f.Servers)
	switch {
	case len(f.Sentinels) > 0 && len(f.Servers) > 0:
		return fmt.Errorf("%w: Failover has Sentinels and Servers; give one of them", driver.ErrInvalid)
	case len(addrs) == 0:
		return fmt.Errorf("%w: Failover has neither Sentinels nor Servers; give the addresses of one of them", driver.ErrInvalid)
	case len(f.Sentinels) > 0 && !nameOfMaster.MatchString(f.Master): // the name is not shown, as it may be part of a password
		return fmt.Errorf("%w: the name of the master is missing, or has more than letters, digits, dots, dashes and underscores; "+
			"give the one that the Sentinels have, as in redis+sentinel://host:26379/mymaster", driver.ErrInvalid)
	}
	for i, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		switch {
		case err != nil || !driverkit.IsDialable(cmp.Or(host, "localhost"), port):
			return fmt.Errorf("%w: address %d of %d of the Sentinels or servers is not host:port, such as localhost:26379", driver.ErrInvalid, i+1, len(addrs))
		case slices.Contains(addrs[:i], addr):
			return fmt.Errorf("%w: %s is listed twice; list each once", driver.ErrInvalid, addr)
		}
	}
	return nil
}

// nameOfMaster matches the names that Sentinels accept.
var nameOfMaster = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// makePlace returns the place that finds the master.
func (f *Failover) makePlace(net *place.Net) *place.Master {
	return &place.Master{
		Fixed: place.Fixed{Net: net}, Sentinels: f.Sentinels, Watched: f.Master, Username: f.Username, Password: f.Password, Servers: f.Servers,
	}
}
