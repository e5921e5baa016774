package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

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
// Several URLs separated by blanks are one set, to which each adds its nodes: a node may be a master that can be
// replaced, and each may have its own login. The parameters of the first URL apply to all. User and password are in
// the first URL, for all nodes, or in each URL:
//
//	redis+sentinel://s1,s2,s3/one redis+sentinel://s4,s5,s6/two redis://h3
//
// Parameters: username and password (in place of those before the host), passwordfile
// (a file with the password of all servers, read at each new connection), prefix, bare
// (true), format (redisson), sentinel_username and sentinel_password (for the Sentinels, which do not get
// those before the hosts), maxttl (60s, 24h for one server alone), quarantine (off), timeout (1s), db, tls
// (true: for redlock), ca, cert, key (PEM files), servername (that the certificates of
// all servers must show, instead of the host), name (shown by CLIENT LIST), eviction
// (allow), down (allow). A number without a unit means seconds. Any other parameter is rejected. In users and passwords,
// write % as %25, a comma as %2C, @ as %40, / as %2F, ? as %3F and a blank as %20; a URL that
// can be read in two ways is rejected. A password in the URL never appears in an error.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	nodes, o, err := parseURL(url, opts)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	return New(ctx, nodes, &o)
}

// Suffixes of the schemes redis, rediss, valkey and valkeys, for a node whose server can be replaced, and for
// a cluster.
const (
	sentinelSuffix = "+sentinel"
	replicasSuffix = "+replicas"
	clusterSuffix  = "+cluster"
)

// socketScheme is the scheme of servers on this machine.
const socketScheme = "unix"

// grammar has the schemes and parameters of the URLs of this package.
var grammar = driverkit.Grammar{
	Schemes: schemes(),
	Usual: []string{
		"redis", "rediss", "valkey", "valkeys", socketScheme, "redlock", "redis" + clusterSuffix, "redis" + sentinelSuffix, "redis" + replicasSuffix,
	},
	Parameters: []string{
		"prefix", "bare", "format", "maxttl", "timeout", "quarantine", "eviction", "down", "db", "name",
		"username", "password", "passwordfile", "sentinel_username", "sentinel_password",
	},
	Instead: map[string]string{
		"database": "write db", "client_name": "write name", "clientName": "write name", "dial_timeout": "write timeout",
		"socket_connect_timeout": "write timeout", "ssl_ca_certs": "write ca", "ssl_certfile": "write cert", "ssl_keyfile": "write key",
		"skip_verify": verifiedConn, "ssl_cert_reqs": verifiedConn, "ssl_check_hostname": verifiedConn,
		"addr":        "write redlock://a:6379,b:6379,c:6379 for several independent servers, redis+cluster://a:6379,b:6379,c:6379 for those of a cluster",
		"master_name": sentinels, "master_set": sentinels, "sentinelMasterId": sentinels,
	},
}

const (
	sentinels    = "write redis+sentinel://user:password@s1:26379,s2:26379/NAME/0, with rediss for TLS, NAME being the name of the master"
	verifiedConn = "certificates are always checked: name the authority by ca, or what the certificate shows by servername (in Go, Options.TLS can do otherwise)"
)

func schemes() map[string]driverkit.Scheme {
	all := map[string]driverkit.Scheme{
		"redlock":    {Example: "redlock://h1:6379,h2:6379,h3:6379", Port: "6379"},
		socketScheme: {Example: "unix:///run/redis.sock", Socket: true},
	}
	for name, secure := range map[string]bool{"redis": false, "rediss": true, "valkey": false, "valkeys": true} {
		for kind, s := range map[string]driverkit.Scheme{
			"":             {Example: "://localhost:6379", Port: "6379", Several: "for several write redlock://, or one URL for each with blanks between them"},
			sentinelSuffix: {Example: "://user:password@s1:26379,s2:26379/NAME/0", Port: "26379"},
			replicasSuffix: {Example: "://user:password@h1:6379,h2:6379/0", Port: "6379"},
			clusterSuffix:  {Example: "://user:password@h1:6379,h2:6379", Port: "6379"},
		} {
			s.Example, s.TLS = name+kind+s.Example, secure
			all[name+kind] = s
		}
	}
	return all
}

// parseURL parses one URL, or several separated by blanks, each of which adds its nodes to the set. A field of
// opts keeps its value if no URL sets it.
func parseURL(text string, opts *Options) (nodes []Node, o Options, err error) {
	if opts != nil {
		o = *opts
	}
	urls := strings.Fields(text)
	if len(urls) == 0 {
		urls = []string{""}
	}
	given, logins := o.TLS, make([]nodeLogin, len(urls))
	for i, text := range urls {
		u, some, err := o.readURL(text, &logins[i])
		switch {
		case err != nil:
		case i == 0:
			err = o.applyURL(u)
		default:
			err = o.checkFurtherURL(u, given)
		}
		if err == nil && o.Cluster && len(urls) > 1 {
			err = invalidError("a Redis Cluster cannot be a node of a set; give its URL alone")
		}
		if err != nil && len(urls) > 1 {
			err = fmt.Errorf("URL %d of %d of one set: %w", i+1, len(urls), err)
		}
		if err != nil {
			return nil, o, err
		}
		for _, n := range some {
			n.Username, n.Password = logins[i].user, logins[i].password
			nodes = append(nodes, n)
		}
	}
	return nodes, o, o.setLogins(logins, nodes)
}

func invalidError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{driver.ErrInvalid}, args...)...)
}

// readURL parses the nodes of one URL and their login. It leaves the number of the database in Path.
func (o *Options) readURL(text string, login *nodeLogin) (u *driverkit.URL, nodes []Node, err error) {
	if u, err = grammar.Parse(text); err != nil {
		return nil, nil, err
	}
	switch {
	case strings.HasSuffix(u.Scheme, sentinelSuffix):
		f := &Failover{Sentinels: u.Hosts, Username: u.Parameters["sentinel_username"], Password: u.Parameters["sentinel_password"]}
		f.Master, u.Path, _ = strings.Cut(u.RawPath, "/")
		f.Master, _ = url.PathUnescape(f.Master) // the grammar has checked it
		nodes, err = []Node{{Failover: f}}, f.checkAddrs()
	case u.Parameters["sentinel_username"]+u.Parameters["sentinel_password"] != "":
		err = invalidError("the URL has a user or password for Sentinels, and names none; write redis+sentinel://")
	case strings.HasSuffix(u.Scheme, replicasSuffix):
		nodes = []Node{{Failover: &Failover{Servers: u.Hosts}}}
	case u.Scheme == socketScheme:
		nodes, u.Path = []Node{{Addr: u.Path}}, ""
	default:
		o.Cluster = o.Cluster || strings.HasSuffix(u.Scheme, clusterSuffix)
		for _, addr := range u.Hosts {
			nodes = append(nodes, Node{Addr: addr})
		}
	}
	if err == nil {
		err = login.readLogin(u)
	}
	return u, nodes, err
}

// nodeParameters are the parameters that each URL may set for its own nodes.
var nodeParameters = []string{"username", "password", "sentinel_username", "sentinel_password"}

// checkFurtherURL rejects parameters that would make the nodes of a further URL differ from those of the first. given
// is the TLS of the caller's options.
func (o *Options) checkFurtherURL(u *driverkit.URL, given *tls.Config) error {
	for name := range u.Parameters {
		if !slices.Contains(nodeParameters, name) {
			return invalidError("parameter %s is for all nodes: give it in the first URL alone", name)
		}
	}
	secure, err := u.TLS(given)
	var own Options
	switch {
	case err != nil:
		return err
	case own.setDatabase(u.Path) != nil:
		return errPath
	case (secure == nil) != (o.TLS == nil):
		return invalidError("some URLs are with TLS and others without; begin all with rediss (rediss://, rediss+sentinel://, rediss+replicas://), or none")
	case own.DB != o.DB && u.Scheme != socketScheme:
		return invalidError("it has database %d and the first URL %d; give all nodes the same", own.DB, o.DB)
	}
	return nil
}

// nodeLogin holds the user and the password for the nodes of one URL.
type nodeLogin struct{ user, password, file string }

func (id *nodeLogin) readLogin(u *driverkit.URL) error {
	user, password, file := u.Parameters["username"], u.Parameters["password"], u.Parameters["passwordfile"]
	switch {
	case u.Password != "" && password != "", file != "" && u.Password+password != "":
		return invalidError("the URL has more than one password: before the host, as password or by passwordfile; leave one of them")
	case u.Username != "" && user != "":
		return invalidError("the URL has a user before the host and another as username; leave out one of them")
	}
	*id = nodeLogin{cmp.Or(u.Username, user), cmp.Or(u.Password, password), file}
	return nil
}

// setLogins sets the logins: the login of the first URL at all nodes, or the login of each URL at its own
// nodes, or else the login in the options.
func (o *Options) setLogins(logins []nodeLogin, nodes []Node) error {
	first, named := logins[0], 0
	for _, id := range logins {
		if id != (nodeLogin{}) {
			named++
		}
	}
	each := len(logins) > 1 && named == len(logins)
	switch {
	case named == 0:
		return nil
	case !each && (named > 1 || first == nodeLogin{}), each && first.file != "":
		return invalidError("some of the URLs have a user or password and others have not, or a passwordfile beside them; " +
			"give them in the first URL, for all nodes, or in each, without passwordfile")
	case each:
		o.Username, o.Password, o.Credentials = "", "", nil
		return nil
	}
	for i := range nodes {
		nodes[i].Username, nodes[i].Password = "", ""
	}
	o.Username, o.Password, o.Credentials = first.user, first.password, nil
	if first.file == "" {
		return nil
	}
	// The file is read for each connection, because a secret store may have replaced it meanwhile.
	o.Credentials = func(context.Context, string) (string, string, error) {
		text, err := os.ReadFile(first.file)
		return first.user, strings.TrimRight(string(text), "\r\n"), err
	}
	if _, err := os.Stat(first.file); err != nil {
		return invalidError("parameter passwordfile: %w", err)
	}
	return nil
}

var errPath = invalidError("the path of the URL is not a database number, as in redis://localhost:6379/0; in a user or password write / as %%2F")

// applyURL takes the settings of the whole set from a URL.
func (o *Options) applyURL(u *driverkit.URL) (err error) {
	if o.setDatabase(u.Path) != nil {
		return errPath
	}
	for name, v := range u.Parameters {
		var err error
		switch name {
		case "prefix":
			o.Prefix = v
		case "bare":
			if o.BareKeys, err = strconv.ParseBool(v); err != nil {
				err = fmt.Errorf("%q is neither true nor false", v)
			}
		case "format":
			o.Format = Format(v)
		case "maxttl":
			o.MaxTTL, err = parseDuration(v)
		case "timeout":
			o.Timeout, err = parseDuration(v)
		case "quarantine":
			o.NoQuarantine, err = parseChoice(v, "off", "on")
		case "down":
			o.AllowDown, err = parseChoice(v, "allow", "refuse")
		case "eviction":
			o.AllowEviction, err = parseChoice(v, "allow", "refuse")
		case "db":
			if u.Path != "" {
				return invalidError("the URL names a database in its path and by db; leave out one of them")
			}
			err = o.setDatabase(v)
		case "name":
			o.ClientName = v
		} // the other parameters are about TLS and the login
		if err != nil {
			return invalidError("parameter %s: %w", name, err)
		}
	}
	o.secrets = u.SecretFiles("key", "passwordfile")
	if u.Parameters["ca"]+u.Parameters["cert"] != "" {
		o.freshTLS = u.FreshTLS
	}
	o.TLS, err = u.TLS(o.TLS)
	return err
}

// setDatabase sets the number of the database, unless that is empty.
func (o *Options) setDatabase(number string) error {
	if number == "" {
		return nil
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return errors.New("it is not a database number")
	}
	o.DB = n
	return nil
}

// parseDuration parses a duration as the flags of the command do: in Go's notation, or as a number of seconds.
func parseDuration(s string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil && seconds >= 0 && seconds < 1e9 {
		return time.Duration(seconds * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; write 90s, 1m30s, 250ms or a number of seconds", s)
	}
	return d, nil
}

// parseChoice parses yes or no. It returns an error for any other value.
func parseChoice(v, yes, no string) (bool, error) {
	if v != yes && v != no {
		return false, fmt.Errorf("%q is neither %s nor %s", v, yes, no)
	}
	return v == yes, nil
}
