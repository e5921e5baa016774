package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/internal/direct"
)

// form is what URLs look like.
var form = direct.Form{Service: "an etcd cluster", Scheme: "etcd", Port: "2379", Path: "prefix"}

// Open returns a driver for the cluster that url names; opts may be nil, and what the URL
// says goes before it.
//
//	etcd://h1:2379,h2:2379,h3:2379/prefix          keys begin with "prefix/"
//	etcds://user:password@h1,h2,h3/prefix          over TLS
//	etcds://h1,h2,h3/?ca=ca.pem&cert=me.pem&key=me.key
//
// The parameters name files in the form PEM: ca the authorities to trust in place of the
// system's, cert and key what the client shows. The parameter tls=true with etcd:// is etcds://.
//
// Open asks the cluster once, so that what time does not mend is an error here, such as a
// wrong password. A cluster that is down is none; calls wait for it or return
// ErrUnavailable.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	d, err := open(url, opts)
	return direct.Opened(ctx, "etcd", d, err, d.first)
}

// first looks at the cluster for the first time.
func (d *Driver) first(ctx context.Context) error {
	var all sync.WaitGroup
	for _, n := range d.nodes {
		all.Go(func() { n.try(ctx, callTime/2, n.probe) })
	}
	all.Wait()
	if d.union.mixed() {
		return direct.Refusal{Err: errors.New("the members that are named belong to different clusters, so that their locks would not exclude one another; " +
			"name members of one cluster")}
	}
	_, err := d.look(ctx, "holdfast")
	return err
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
	if strings.Trim(t.Path, "/") != "" {
		o.Prefix = strings.TrimRight(strings.TrimPrefix(t.Path, "/"), "/") + "/"
	}
	if t.Username != "" || t.Password != "" {
		o.Username, o.Password = t.Username, t.Password
	}
	o.TLS = t.TLS
	return New(t.Hosts, &o)
}
