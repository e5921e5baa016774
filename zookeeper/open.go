package zookeeper

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// defaultPort is that of ZooKeeper.
const defaultPort = "2181"

// openTime bounds the first look at the ensemble.
const openTime = 5 * time.Second

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
// user without rights. An ensemble that is down is none; calls wait for it or return
// ErrUnavailable.
func Open(ctx context.Context, url string, opts *Options) (*Driver, error) {
	d, err := open(url, opts)
	if err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if _, err := d.lookUp(ctx, "holdfast"); lasting(err) || untrusted(err) {
		d.Close()
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	return d, nil
}

func open(text string, opts *Options) (*Driver, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	hosts, u, err := split(text)
	if err != nil {
		return nil, err
	}
	if path := strings.TrimSuffix(u.Path, "/"); path != "" {
		o.Path = path
	}
	if u.User != nil {
		o.Username = u.User.Username()
		o.Password, _ = u.User.Password()
	}
	if o.TLS, err = secure(u, o.TLS); err != nil {
		return nil, err
	}
	return New(hosts, &o)
}

// split takes the hosts out of a URL, as package url knows only URLs with one.
func split(text string) ([]string, *url.URL, error) {
	const form = "write zk://host:2181,host:2181/path, or zks:// for TLS"
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "zk" && scheme != "zks" {
		return nil, nil, fmt.Errorf("%w: this is no URL of a ZooKeeper ensemble; %s", driver.ErrInvalid, form)
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	user := strings.LastIndexByte(rest[:end], '@') + 1
	u, err := url.Parse(scheme + "://" + rest[:user] + "host" + rest[end:])
	if err != nil || u.Fragment != "" {
		return nil, nil, fmt.Errorf("%w: the URL cannot be read, and is not shown as it may have a password; %s, with %%40 for an @ and %%2F for a / "+
			"in a password", driver.ErrInvalid, form)
	}
	var hosts []string
	for host := range strings.SplitSeq(rest[user:end], ",") {
		if !strings.Contains(host, ":") && host != "" {
			host += ":" + defaultPort
		}
		hosts = append(hosts, host)
	}
	return hosts, u, nil
}

// secure is how to speak TLS; nil: not at all.
func secure(u *url.URL, given *tls.Config) (*tls.Config, error) {
	query := u.Query()
	for name := range query {
		if name != "ca" && name != "cert" && name != "key" && name != "tls" {
			return nil, fmt.Errorf("%w: the URL has an unknown parameter %q; there are tls, ca, cert and key", driver.ErrInvalid, name)
		}
	}
	ca, cert, key, wish := query.Get("ca"), query.Get("cert"), query.Get("key"), query.Get("tls")
	safe := u.Scheme == "zks" || wish == "true"
	switch {
	case wish != "" && wish != "true" && wish != "false" || wish == "false" && u.Scheme == "zks":
		return nil, fmt.Errorf("%w: tls=%s means nothing here; write zks:// for TLS, or zk:// to do without", driver.ErrInvalid, wish)
	case !safe && ca+cert+key != "":
		return nil, fmt.Errorf("%w: ca, cert and key are for TLS; write zks:// in place of zk://", driver.ErrInvalid)
	case !safe:
		return given, nil
	case (cert == "") != (key == ""):
		return nil, fmt.Errorf("%w: cert and key belong together; give both or neither", driver.ErrInvalid)
	}
	config := given.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, errors.Join(driver.ErrInvalid, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: %s has no certificate in the form PEM", driver.ErrInvalid, ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, errors.Join(driver.ErrInvalid, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// untrusted says whether all members failed for want of fit certificates. As they may be
// replaced, this ends no wait, but at the start it is a mistake.
func untrusted(err error) bool {
	down, ok := errors.AsType[*driver.UnavailableError](err)
	if !ok || len(down.Nodes) == 0 {
		return false
	}
	for _, n := range down.Nodes {
		if text := n.Err.Error(); !strings.Contains(text, "tls: ") && !strings.Contains(text, "x509: ") {
			return false
		}
	}
	return true
}
