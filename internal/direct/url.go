package direct

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Form is what the URLs of a service look like that has several members:
// <scheme>://user:password@host:port,host:port/path?ca=&cert=&key=. With an s behind the
// scheme, or tls=true, the members speak TLS.
type Form struct {
	Service string // "an etcd cluster"
	Scheme  string
	Port    string // where a host has none
	Path    string // what the path is, for people
}

// Target is what a URL says.
type Target struct {
	Hosts              []string
	Path               string
	Username, Password string
	TLS                *tls.Config // nil: none
}

// Parse reads a URL. What it does not say of TLS is as given.
func (f Form) Parse(text string, given *tls.Config) (t Target, err error) {
	example := fmt.Sprintf("write %s://host:%s,host:%[2]s/%[3]s, or %[1]ss:// for TLS", f.Scheme, f.Port, f.Path)
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != f.Scheme && scheme != f.Scheme+"s" {
		return t, fmt.Errorf("%w: this is no URL of %s; %s", driver.ErrInvalid, f.Service, example)
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	user := strings.LastIndexByte(rest[:end], '@') + 1
	u, err := url.Parse(scheme + "://" + rest[:user] + "host" + rest[end:]) // which knows one host only
	if err != nil || u.Fragment != "" {
		return t, fmt.Errorf("%w: the URL cannot be read, and is not shown as it may have a password; %s, with %%40 for an @ and %%2F for a / "+
			"in a password", driver.ErrInvalid, example)
	}
	for host := range strings.SplitSeq(rest[user:end], ",") {
		if !strings.Contains(host, ":") && host != "" {
			host += ":" + f.Port
		}
		t.Hosts = append(t.Hosts, host)
	}
	t.Path = u.Path
	if u.User != nil {
		t.Username = u.User.Username()
		t.Password, _ = u.User.Password()
	}
	t.TLS, err = f.secure(u, given)
	return t, err
}

// secure is how to speak TLS; nil: not at all.
func (f Form) secure(u *url.URL, given *tls.Config) (*tls.Config, error) {
	query := u.Query()
	for name := range query {
		if !slices.Contains([]string{"tls", "ca", "cert", "key"}, name) {
			return nil, fmt.Errorf("%w: the URL has an unknown parameter %q; there are tls, ca, cert and key", driver.ErrInvalid, name)
		}
	}
	ca, cert, key, wish := query.Get("ca"), query.Get("cert"), query.Get("key"), query.Get("tls")
	named := u.Scheme != f.Scheme
	switch {
	case wish != "" && wish != "true" && wish != "false" || wish == "false" && named:
		return nil, fmt.Errorf("%w: tls=%s means nothing here; write %ss:// for TLS, or %[3]s:// to do without", driver.ErrInvalid, wish, f.Scheme)
	case !named && wish != "true" && ca+cert+key != "":
		return nil, fmt.Errorf("%w: ca, cert and key are for TLS; write %ss:// in place of %[2]s://", driver.ErrInvalid, f.Scheme)
	case !named && wish != "true":
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

// MendTLS is what mends an error of TLS, with a semicolon before it; empty: it is no such
// error.
func MendTLS(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "x509: "):
		return "; name the authority of the members by ca, or Options.TLS"
	case strings.Contains(text, "remote error: tls: "):
		return "; name a certificate that the members accept by cert and key, or Options.TLS"
	}
	return ""
}

// openTime bounds the first look at a service.
const openTime = 5 * time.Second

// Opened returns d, unless it could not be made or the first look shows that it cannot work.
// A service that is down is no mistake.
func Opened[D io.Closer](ctx context.Context, service string, d D, err error, look func(context.Context) error) (D, error) {
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, openTime)
		defer cancel()
		if err = look(ctx); !mistaken(err) {
			return d, nil
		}
		d.Close()
	}
	var none D
	return none, fmt.Errorf("%s: %w", service, err)
}

// Diagnosed is what the doctor of d finds, which is closed then, unless it could not be made.
func Diagnosed[D interface {
	driver.Doctor
	io.Closer
}](ctx context.Context, service string, d D, err error, ttl time.Duration) ([]driver.Finding, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", service, err)
	}
	defer d.Close()
	return d.Diagnose(ctx, ttl), nil
}

// mistaken says whether err is a mistake where a driver has just been opened: one that lasts,
// or that all members failed for want of fit certificates. As these may be replaced, they end
// no wait.
func mistaken(err error) bool {
	down, ok := errors.AsType[*driver.UnavailableError](err)
	return Lasts(err) || ok && len(down.Nodes) > 0 && !slices.ContainsFunc(down.Nodes, func(n driver.NodeError) bool {
		text := n.Err.Error()
		return !strings.Contains(text, "tls: ") && !strings.Contains(text, "x509: ")
	})
}
