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

// Open opens the cluster that url names; opts may be nil, and what the URL says goes before it.
// Otherwise it does what New does.
//
//	etcd://h1:2379,h2:2379,h3:2379/prefix          keys begin with "prefix/"
//	etcds://user:password@h1,h2,h3/prefix          over TLS
//	etcds://h1,h2,h3/?ca=ca.pem&cert=me.pem&key=me.key
//
// The parameters name files in the form PEM: ca the authorities to trust in place of the
// system's, cert and key what the client shows. servername is what the members' certificates
// have to show in place of their hosts. Each connection reads the files. The parameter tls=true with etcd:// is etcds://.
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
	return driverkit.Opened(ctx, "etcd", d, err, d.checkCluster)
}

// NewFromConfig returns a driver for the cluster of a client's configuration; opts may be nil, and what the configuration says goes
// before it. Otherwise it does what New does. Of the configuration it takes endpoints, TLS, user, password, DialKeepAliveTime,
// DialKeepAliveTimeout and PermitWithoutStream; with a Token or DialOptions, without which the cluster may not be reached, it is
// ErrInvalid. The rest of it is about the behaviour of that client, and the driver has clients of its own: one for each member,
// with a login for itself.
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

// checkCluster asks the cluster for the first time.
func (d *Driver) checkCluster(ctx context.Context) error {
	var all sync.WaitGroup
	for _, n := range d.nodes {
		all.Go(func() { n.tryRequest(ctx, pace.CallTime()/2, n.probe) })
	}
	all.Wait()
	if d.union.isMixed() {
		return driverkit.Refusal{Err: errors.New("the members that are named belong to different clusters, so that their locks would not exclude one another; " +
			"name members of one cluster")}
	}
	_, err := d.readLine(ctx, "holdfast")
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
	o.secrets = u.Secrets("key")
	o.TLS, err = u.TLS(o.TLS)
	o.renewTLS = u.FreshTLS
	return u.Hosts, o, err
}
