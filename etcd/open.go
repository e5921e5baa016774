package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/keepalive"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// grammar describes the URLs of a cluster.
var grammar = driverkit.Grammar{Usual: []string{"etcd", "etcds"}, Schemes: map[string]driverkit.Scheme{
	"etcd":  {Example: "etcd://host:2379,host:2379/prefix", Port: "2379"},
	"etcds": {Example: "etcds://user:password@host:2379,host:2379/prefix", Port: "2379", TLS: true},
}}

// Open opens the cluster that url names; opts may be nil, and the URL takes precedence over it. Otherwise it does
// what New does.
//
//	etcd://h1:2379,h2:2379,h3:2379/prefix          keys begin with "prefix/"
//	etcds://user:password@h1,h2,h3/prefix          over TLS
//	etcds://h1,h2,h3/?ca=ca.pem&cert=me.pem&key=me.key
//
// The parameters ca, cert and key name PEM files: the authorities to trust instead of the system's, and the
// certificate of the client with its key. Each new connection reads the files. servername is the name that the
// certificates of the members must have, instead of their hosts. etcd:// with tls=true means etcds://.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	members, o, err := parseURL(url, opts)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return New(ctx, members, &o)
}

// New returns a driver for the cluster with the given members, each as host:port; opts may be
// nil. It asks the cluster once, for five seconds at most, and returns the errors that waiting
// would not fix: ErrAuth for user and permissions, ErrConfig for members of two clusters, and so on. If
// the cluster is down, New returns no error; later calls wait for it or return ErrUnavailable. Invalid
// arguments are ErrInvalid; with NoCheck there is no other error, and New does not block.
func New(ctx context.Context, members []string, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	d, err := newDriver(members, opts)
	if err == nil && opts.NoCheck {
		return d, nil
	}
	return driverkit.OpenChecked(ctx, "etcd", d, err, d.checkCluster)
}

// NewFromConfig returns a driver for the cluster of a client's configuration; opts may be nil, and config takes
// precedence over it. Otherwise it does what New does. It uses these fields of config: endpoints, TLS, user, password,
// DialKeepAliveTime, DialKeepAliveTimeout and PermitWithoutStream. It rejects a Token and DialOptions with ErrInvalid,
// because the cluster may be unreachable without them. It ignores the other fields, which concern the behaviour of
// that client: the driver has its own clients, one for each member, each with its own login.
func NewFromConfig(ctx context.Context, config clientv3.Config, opts *Options) (*Driver, error) {
	members, o, err := parseConfig(config, opts)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return New(ctx, members, &o)
}

func parseConfig(config clientv3.Config, opts *Options) (members []string, o Options, err error) {
	if opts != nil {
		o = *opts
	}
	if config.Token != "" || len(config.DialOptions) > 0 {
		return nil, o, fmt.Errorf("%w: the configuration has a Token or DialOptions, which the driver cannot use; give user and password, or TLS", driver.ErrInvalid)
	}
	if config.Username != "" || config.Password != "" {
		o.Username, o.Password = config.Username, config.Password
	}
	if config.TLS != nil {
		o.TLS = config.TLS
	}
	o.keepAlive = keepalive.ClientParameters{
		Time: config.DialKeepAliveTime, Timeout: config.DialKeepAliveTimeout, PermitWithoutStream: config.PermitWithoutStream,
	}
	secure := 0 // number of endpoints with TLS
	for _, endpoint := range config.Endpoints {
		name, https := strings.CutPrefix(endpoint, "https://")
		name, http := strings.CutPrefix(name, "http://")
		if https || !http && o.TLS != nil {
			secure++
		}
		members = append(members, name)
	}
	switch {
	case secure < len(members) && (secure > 0 || o.TLS != nil):
		return nil, o, fmt.Errorf("%w: some endpoints are http://, although TLS is set or others are https://; write https:// for all", driver.ErrInvalid)
	case secure > 0 && o.TLS == nil:
		o.TLS = &tls.Config{}
	}
	return members, o, nil
}

// checkCluster checks the cluster for the first time.
func (d *Driver) checkCluster(ctx context.Context) error {
	var all sync.WaitGroup
	for _, n := range d.nodes {
		all.Go(func() { n.tryRequest(ctx, pace.CallTime()/2, n.probe) })
	}
	all.Wait()
	if d.union.isMixed() {
		return driverkit.PermanentError{Err: errors.New("the members that are named belong to different clusters, " +
			"so that their locks would not exclude one another; " +
			"name members of one cluster")}
	}
	_, err := d.readQueue(ctx, "holdfast")
	return err
}

func parseURL(text string, opts *Options) (members []string, o Options, err error) {
	if opts != nil {
		o = *opts
	}
	u, err := grammar.Parse(text)
	if err != nil {
		return nil, o, err
	}
	if strings.Trim(u.Path, "/") != "" {
		o.Prefix = strings.TrimRight(u.Path, "/") + "/"
	}
	if u.Username != "" || u.Password != "" {
		o.Username, o.Password = u.Username, u.Password
	}
	o.secrets = u.SecretFiles("key")
	o.TLS, err = u.TLS(o.TLS)
	o.renewTLS = u.FreshTLS
	return u.Hosts, o, err
}
