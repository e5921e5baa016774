package zookeeper

import (
	"context"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// grammar describes the URLs of an ensemble.
var grammar = driverkit.Grammar{Usual: []string{"zk", "zks"}, Schemes: map[string]driverkit.Scheme{
	"zk":  {Example: "zk://host:2181,host:2181/path", Port: "2181"},
	"zks": {Example: "zks://user:password@host:2281,host:2281/path", Port: "2181", TLS: true},
}}

// Open opens the ensemble that url names; opts may be nil, and the URL takes precedence over it. Otherwise it does
// what New does.
//
//	zk://h1:2181,h2:2181,h3:2181/path           locks are nodes below /path
//	zks://user:password@h1:2281,h2:2281/path    over TLS, which has a port of its own
//	zks://h1:2281,h2:2281/path?ca=ca.pem&cert=me.pem&key=me.key
//
// The parameters ca, cert and key name PEM files: the authorities to trust instead of the system's, and the
// certificate of the client with its key. servername is the name that the certificates of the members must have,
// instead of their hosts. zk:// with tls=true means zks://.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	members, o, err := parseURL(url, opts)
	if err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	return New(ctx, members, &o)
}

// New returns a driver for the ensemble with the given members, each as host:port; opts may be
// nil. It asks the ensemble once, for five seconds at most, and returns the errors that
// waiting would not fix: ErrAuth for a user without permissions, ErrConfig for members of two
// ensembles, and so on. If the ensemble is down, New returns no error; later calls wait for it or
// return ErrUnavailable. Invalid arguments are ErrInvalid; with NoCheck there is no other error, and
// New does not block.
func New(ctx context.Context, members []string, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	d, err := newDriver(members, opts)
	if err == nil && opts.NoCheck {
		return d, nil
	}
	return driverkit.OpenChecked(ctx, "zookeeper", d, err, func(ctx context.Context) error {
		if err := d.checkOneEnsemble(ctx); err != nil {
			return err
		}
		_, err := d.lookUp(ctx, "holdfast")
		return err
	})
}

func parseURL(text string, opts *Options) (members []string, o Options, err error) {
	if opts != nil {
		o = *opts
	}
	u, err := grammar.Parse(text)
	if err != nil {
		return nil, o, err
	}
	if path := strings.TrimSuffix(u.Path, "/"); path != "" {
		o.Path = "/" + path
	}
	if u.Username != "" || u.Password != "" {
		o.Username, o.Password = u.Username, u.Password
	}
	o.secrets = u.SecretFiles("key")
	o.TLS, err = u.TLS(o.TLS)
	o.renewTLS = u.FreshTLS
	return u.Hosts, o, err
}
