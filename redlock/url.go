package redlock

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// OpenURL opens the nodes that a URL names; opts may be nil; the URL takes
// precedence over it.
//
//	redis://user:password@host:6379/0       one server; valkey:// means the same
//	rediss://host:6380?ca=/etc/ca.pem       one server, over TLS; or valkeys://
//	unix://user:password@/run/redis.sock    one server, by a unix socket; or redis+unix://
//	redlock://h1:6379,h2:6379,h3:6379       several independent servers
//	redlock://u:p@h1,h2,h3                  all with the same user and password
//	redlock://u:p@h1,v:q@h2,w:r@h3          each with its own
//	redis+cluster://u:p@h1:6379,h2          a Redis Cluster, found by some of its nodes; rediss+cluster:// over TLS
//	redis+sentinel://u:p@s1:26379,s2/NAME/0 the master that Sentinels know as NAME; rediss+sentinel:// over TLS
//	redis+replicas://u:p@h1:6379,h2/0       a master and its replicas, without Sentinels; or rediss+replicas://
//
// Several URLs with blanks between them make one set, each a node of it: so a node may be a
// master that moves. The first has the parameters for all; user and password stand in the
// first for all, or in each:
//
//	redis+sentinel://s1,s2,s3/one redis+sentinel://s4,s5,s6/two redis://h3
//
// Parameters: username and password (in place of those before the host), passwordfile
// (a file with the password of all servers, read at each new connection), prefix, bare
// (true), format (redisson), sentinel_username and sentinel_password (for the Sentinels, which do not get
// those before the hosts), maxttl (60s, 24h for one server alone), counterlife (150s), quarantine (off), timeout (1s), db, tls
// (true: for redlock), ca, cert, key (PEM files), servername (that the certificates of
// all servers must show, instead of the host), name (shown by CLIENT LIST), eviction
// (allow), down (allow). A number without a unit means seconds. Parameters of go-redis,
// rueidis, redis-py and Lettuce for the same things are known too, and those for their
// pools and retries mean nothing here (docs/your-redis.md). In users and passwords,
// write % as %25, a comma as %2C, @ as %40, / as %2F and ? as %3F; a URL that can be
// read in two ways is refused. A password in the URL never appears in an error.
func OpenURL(ctx context.Context, rawURL string, opts *Options) (*Driver, error) {
	nodes, o, err := parseURL(rawURL, opts)
	if err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	return Open(ctx, nodes, &o)
}

// LimitsURL says what the driver that OpenURL opens can do. It asks no node.
func LimitsURL(rawURL string, opts *Options) (driver.Limits, error) {
	nodes, o, err := parseURL(rawURL, opts)
	if err == nil {
		err = o.defaults(nodes)
	}
	if err != nil {
		return driver.Limits{}, fmt.Errorf("redlock: %w", err)
	}
	return o.limits(), nil
}

// parseURL reads rawURL. What it says of a URL that cannot be read does not show
// a password, not even one with a / or ? that was not escaped.
func parseURL(rawURL string, opts *Options) ([]Node, Options, error) {
	if urls := split(rawURL); len(urls) > 1 {
		return readSet(urls, opts)
	}
	nodes, o, err := readURL(rawURL, opts)
	_, rest, _ := strings.Cut(rawURL, "://")
	if at := strings.IndexAny(rest, "/?"); err != nil && at >= 0 && strings.Contains(rest[at:], "@") {
		return nil, o, fmt.Errorf("%w: the URL cannot be read, and an @ comes after its first / or ?; "+
			"in a user or password write / as %%2F and ? as %%3F", driver.ErrInvalid)
	}
	return nodes, o, err
}

// What stands before :// for one server, for one over TLS, and for one by a unix socket.
var (
	plainSchemes  = []string{"redis", "valkey"}
	secureSchemes = []string{"rediss", "valkeys"}
	socketSchemes = []string{"unix", "redis+unix", "valkey+unix", "redis+socket", "redis-socket"}
	// What follows plainSchemes and secureSchemes for a master that moves.
	sentinelSuffix, replicasSuffix = "+sentinel", "+replicas"
	clusterSuffix                  = "+cluster" // and for a cluster
)

// noScheme says what to write instead of a scheme that is not known.
func noScheme(scheme string) error {
	switch {
	case strings.Contains(scheme, "sentinel"):
		return errSentinels
	case strings.Contains(scheme, "cluster"):
		return fmt.Errorf("%w: the URL names a Redis Cluster in another way than this: redis+cluster://user:password@h1:6379,h2:6379, "+
			"with rediss+cluster for TLS", driver.ErrInvalid)
	}
	return fmt.Errorf("%w: the URL does not begin with redis:// (or valkey://), rediss:// (valkeys://, for TLS), unix://, redlock://, "+
		"redis+cluster://, redis+sentinel:// or redis+replicas://; an example: redis://localhost:6379", driver.ErrInvalid)
}

// errSentinels is for URLs that name Sentinels as other clients have them.
var errSentinels = fmt.Errorf("%w: the URL names Sentinels in another way than this: redis+sentinel://user:password@s1:26379,s2:26379/NAME/0, "+
	"with rediss for TLS, NAME being the name of the master", driver.ErrInvalid)

// readURL reads a URL by hand as far as net/url does not know several hosts.
func readURL(rawURL string, opts *Options) (nodes []Node, o Options, err error) {
	if opts != nil {
		o = *opts
	}
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return nil, o, noScheme("")
	}
	if strings.ContainsFunc(rest, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, o, fmt.Errorf("%w: the URL has control characters", driver.ErrInvalid)
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, path, _ := strings.Cut(rest, "/")
	base := o
	o.Username, o.Password = "", ""
	kind, sentinels := strings.CutSuffix(scheme, sentinelSuffix)
	kind, replicas := strings.CutSuffix(kind, replicasSuffix)
	kind, clustered := strings.CutSuffix(kind, clusterSuffix)
	secure := slices.Contains(secureSchemes, kind)
	moves := (sentinels || replicas) && (secure || slices.Contains(plainSchemes, kind))
	switch {
	case moves && sentinels && !replicas:
		var f *Failover
		f, path, err = o.sentinels(hosts, path)
		nodes = []Node{{Failover: f}}
	case moves && replicas && !sentinels:
		f := new(Failover)
		f.Servers, err = o.list(hosts, "6379")
		nodes = []Node{{Failover: f}}
	case clustered && !moves && (secure || slices.Contains(plainSchemes, kind)):
		o.Cluster = true
		var addrs []string
		addrs, err = o.list(hosts, "6379")
		for _, addr := range addrs {
			nodes = append(nodes, Node{Addr: addr})
		}
	case sentinels || replicas || clustered:
		err = noScheme(scheme)
	case scheme == "redlock":
		nodes, err = o.several(hosts)
	case secure, slices.Contains(plainSchemes, scheme):
		nodes, err = o.single(scheme, hosts)
	case slices.Contains(socketSchemes, scheme):
		nodes, err = o.socket(hosts, "/"+path)
		path = ""
	default:
		err = noScheme(scheme)
	}
	if err != nil {
		return nil, o, err
	}
	if o.database(path) != nil {
		return nil, o, fmt.Errorf("%w: the path of the URL is no database number, as in redis://localhost:6379/0; in a user or password write / as %%2F", driver.ErrInvalid)
	}
	given, err := parameters(query)
	if err != nil {
		return nil, o, err
	}
	if err := sentinelLogin(given, nodes); err != nil {
		return nil, o, err
	}
	own := slices.ContainsFunc(nodes, func(n Node) bool { return n.Password != "" })
	if err := o.identify(given, own, base); err != nil {
		return nil, o, err
	}
	return nodes, o, o.apply(given, secure)
}

// single reads [user:password@]host.
func (o *Options) single(scheme, text string) ([]Node, error) {
	at := strings.LastIndex(text, "@")
	user, host := text[:max(at, 0)], text[at+1:]
	if strings.Contains(host, ",") {
		return nil, fmt.Errorf("%w: %s:// takes one host; for several begin with redlock://", driver.ErrInvalid, scheme)
	}
	if strings.Contains(user, ",") && strings.Contains(user, "@") {
		return nil, fmt.Errorf("%w: %s:// takes one host; for several begin with redlock://; in a password write a comma as %%2C, @ as %%40", driver.ErrInvalid, scheme)
	}
	var node Node
	var err error
	if node.Addr, err = address(host, "what follows ://", "6379"); err != nil || at < 0 {
		return []Node{node}, err
	}
	return []Node{node}, o.login(user)
}

// sentinels reads [user:password@]host,host and NAME/0, and returns the latter's number.
func (o *Options) sentinels(hosts, path string) (_ *Failover, db string, err error) {
	f := &Failover{}
	if f.Sentinels, err = o.list(hosts, "26379"); err != nil {
		return nil, "", err
	}
	name, db, _ := strings.Cut(path, "/")
	if f.Master, err = url.PathUnescape(name); err != nil {
		return nil, "", fmt.Errorf("%w: the name of the master in the URL has a bad %%-escape; write %% as %%25", driver.ErrInvalid)
	}
	return f, db, f.check()
}

// list reads [user:password@]host,host.
func (o *Options) list(text, port string) (addrs []string, err error) {
	at := strings.LastIndex(text, "@")
	user, hosts := text[:max(at, 0)], text[at+1:]
	if strings.ContainsAny(user, ",@") {
		return nil, fmt.Errorf("%w: user and password stand once, before the first host, and are those of the servers; "+
			"in a password write a comma as %%2C, @ as %%40", driver.ErrInvalid)
	}
	list := strings.Split(hosts, ",")
	for i, host := range list {
		addr, err := address(host, fmt.Sprintf("host %d of %d", i+1, len(list)), port)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	if at < 0 {
		return addrs, nil
	}
	return addrs, o.login(user)
}

// socket reads [user:password@] and the path of a unix socket.
func (o *Options) socket(user, path string) ([]Node, error) {
	user, at := strings.CutSuffix(user, "@")
	plain, err := url.PathUnescape(path)
	if err != nil || user != "" && !at || strings.Contains(path, "@") || !server.IsSocket(plain) {
		return nil, fmt.Errorf("%w: what follows :// is not the path of a unix socket; write unix:///run/redis.sock, or unix://user:password@/run/redis.sock; "+
			"in a password write / as %%2F, in a path @ as %%40", driver.ErrInvalid)
	}
	nodes := []Node{{Addr: plain}}
	if !at {
		return nodes, nil
	}
	return nodes, o.login(user)
}

// several reads a list of hosts, of which none, the first, which speaks for all, or
// each has a user:password@ in front. Anything else could drop a host unseen: with
// a comma or an @ that was not escaped, a host and a password look the same.
func (o *Options) several(text string) (nodes []Node, err error) {
	list := strings.Split(text, ",")
	logins := 0
	for i, entry := range list {
		at := strings.LastIndex(entry, "@")
		var node Node
		if node.Addr, err = address(entry[at+1:], fmt.Sprintf("host %d of %d", i+1, len(list)), "6379"); err != nil {
			return nil, err
		}
		if at >= 0 {
			logins++
			if node.Username, node.Password, err = login(entry[:at]); err != nil {
				return nil, err
			}
		}
		nodes = append(nodes, node)
	}
	switch first := &nodes[0]; {
	case logins == 0:
	case logins == 1 && strings.Contains(list[0], "@"):
		o.Credentials, o.Username, o.Password = nil, first.Username, first.Password
		first.Username, first.Password = "", ""
	case logins < len(list) || slices.ContainsFunc(nodes, func(n Node) bool { return n.Password == "" }):
		return nil, fmt.Errorf("%w: some hosts have user:password@ in front and others have not; write it before each, or once before the first; "+
			"a comma in a password is written as %%2C", driver.ErrInvalid)
	default:
		o.Credentials = nil
	}
	return nodes, nil
}

// login takes user:password for every node.
func (o *Options) login(text string) (err error) {
	o.Credentials = nil
	o.Username, o.Password, err = login(text)
	return err
}

// login reads user:password.
func login(text string) (user, pass string, err error) {
	user, pass, _ = strings.Cut(text, ":")
	user, err1 := url.PathUnescape(user)
	pass, err2 := url.PathUnescape(pass)
	if err1 != nil || err2 != nil { // their text would show the password
		return "", "", fmt.Errorf("%w: user or password has a bad %%-escape; write %% as %%25, @ as %%40, / as %%2F", driver.ErrInvalid)
	}
	return user, pass, nil
}

// address completes and checks host:port. Its error does not show s, but says which it
// is: where an @ is missing, what looks like a host is a password.
func address(s, which, usual string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("%w: a host is missing in the URL; an example: redis://localhost:6379", driver.ErrInvalid)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.Trim(s, "[]"), usual
	}
	if !server.Dialable(host, port) {
		return "", fmt.Errorf("%w: %s is not host:port, or user:password@host:port with an @ before the host; "+
			"in a password write a comma as %%2C, @ as %%40", driver.ErrInvalid, which)
	}
	return net.JoinHostPort(host, port), nil
}
