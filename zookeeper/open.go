package zookeeper

import (
	"context"
	"strings"

	"github.com/holdfast-go/holdfast/internal/direct"
)

// form is what URLs look like.
var form = direct.Form{Service: "a ZooKeeper ensemble", Scheme: "zk", Port: "2181", Path: "path"}

// Open returns a driver for the ensemble that url names; opts may be nil, and what the URL
// says goes before it.
//
//	zk://h1:2181,h2:2181,h3:2181/path           locks are nodes below /path
//	zks://user:password@h1:2281,h2:2281/path    over TLS, which has a port of its own
//	zks://h1:2281,h2:2281/path?ca=ca.pem&cert=me.pem&key=me.key
//
// The parameters name files in the form PEM: ca the authorities to trust in place of the
// system's, cert and key what the client shows. The parameter tls=true with zk:// is zks://.
//
// Open asks the ensemble once, so that what time does not mend is an error here, such as a
// user without rights, or members of two ensembles. An ensemble that is down is none; calls wait for it or return
// ErrUnavailable.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	d, err := open(url, opts)
	return direct.Opened(ctx, "zookeeper", d, err, func(ctx context.Context) error {
		if err := d.apart(ctx); err != nil {
			return err
		}
		_, err := d.lookUp(ctx, "holdfast")
		return err
	})
}

func open(text string, opts *Options) (*Driver, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	t, err := form.Parse(text, o.TLS)
	if err != nil {
		return nil, err
	}
	if path := strings.TrimSuffix(t.Path, "/"); path != "" {
		o.Path = path
	}
	if t.Username != "" || t.Password != "" {
		o.Username, o.Password = t.Username, t.Password
	}
	o.TLS = t.TLS
	return New(t.Hosts, &o)
}
