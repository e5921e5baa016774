package redlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// OpenURL opens the nodes that a URL names; opts may be nil, and what the URL
// says goes before it.
//
//	redis://user:password@host:6379/0       one server
//	rediss://host:6380?ca=/etc/ca.pem       one server, over TLS
//	redlock://h1:6379,h2:6379,h3:6379       several independent servers
//
// Parameters: prefix, bare (true), maxttl (60s), quarantine (off), timeout (1s),
// db, tls (true: for redlock), ca, cert, key (PEM files), name (shown by CLIENT
// LIST), eviction (allow). A password in the URL never appears in an error.
func OpenURL(ctx context.Context, rawURL string, opts *Options) (*Driver, error) {
	nodes, o, err := parseURL(rawURL, opts)
	if err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	return Open(ctx, nodes, &o)
}

// parseURL reads rawURL. What it says of a URL that cannot be read does not show
// a password, not even one with a / or ? that was not escaped.
func parseURL(rawURL string, opts *Options) ([]Node, Options, error) {
	nodes, o, err := readURL(rawURL, opts)
	_, rest, _ := strings.Cut(rawURL, "://")
	if at := strings.IndexAny(rest, "/?"); err != nil && at >= 0 && strings.Contains(rest[at:], "@") {
		return nil, o, fmt.Errorf("%w: the URL cannot be read, and an @ stands behind its first / or ?; in a user or password write / as %%2F and ? as %%3F", ErrInvalid)
	}
	return nodes, o, err
}

// readURL reads a URL by hand as far as net/url does not know several hosts.
func readURL(rawURL string, opts *Options) (nodes []Node, o Options, err error) {
	if opts != nil {
		o = *opts
	}
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok || !slices.Contains([]string{"redis", "rediss", "redlock"}, scheme) {
		return nil, o, fmt.Errorf("%w: the URL does not begin with redis://, rediss:// or redlock://; an example: redis://localhost:6379", ErrInvalid)
	}
	if strings.ContainsFunc(rest, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, o, fmt.Errorf("%w: the URL has control characters", ErrInvalid)
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, path, _ := strings.Cut(rest, "/")
	if err := o.user(&hosts); err != nil {
		return nil, o, err
	}
	list := strings.Split(hosts, ",")
	if scheme != "redlock" && len(list) > 1 {
		return nil, o, fmt.Errorf("%w: %s:// takes one host; for several write redlock://%s", ErrInvalid, scheme, hosts)
	}
	for _, h := range list {
		addr, err := address(h)
		if err != nil {
			return nil, o, err
		}
		nodes = append(nodes, Node{Addr: addr})
	}
	if err := o.database(path); err != nil {
		return nil, o, err
	}
	return nodes, o, o.query(query, scheme == "rediss")
}

// user takes user:password@ off the front of hosts.
func (o *Options) user(hosts *string) error {
	at := strings.LastIndex(*hosts, "@")
	if at < 0 {
		return nil
	}
	name, pass, _ := strings.Cut((*hosts)[:at], ":")
	*hosts = (*hosts)[at+1:]
	var err1, err2 error
	o.Username, err1 = url.PathUnescape(name)
	o.Password, err2 = url.PathUnescape(pass)
	if err1 != nil || err2 != nil { // their text would show the password
		return fmt.Errorf("%w: user or password has a bad %%-escape; write %% as %%25, @ as %%40, / as %%2F", ErrInvalid)
	}
	return nil
}

// address completes and checks host:port.
func address(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("%w: a host is missing in the URL; an example: redis://localhost:6379", ErrInvalid)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.Trim(s, "[]"), "6379"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || host == "" || strings.ContainsAny(host, "[]") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
		return "", fmt.Errorf("%w: %q is not host:port", ErrInvalid, s)
	}
	return net.JoinHostPort(host, port), nil
}

func (o *Options) database(path string) error {
	if path == "" {
		return nil
	}
	n, err := strconv.Atoi(path)
	if err != nil || n < 0 {
		return fmt.Errorf("%w: %q is no database number; the path of the URL is one, as in redis://localhost:6379/0", ErrInvalid, path)
	}
	o.DB = n
	return nil
}

// query applies the parameters.
func (o *Options) query(query string, useTLS bool) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("%w: the parameters after ? cannot be read: %w", ErrInvalid, err)
	}
	var files tlsFiles
	for name, list := range values {
		v := list[len(list)-1]
		var err error
		switch name {
		case "prefix":
			o.Prefix = v
		case "bare":
			o.BareKeys, err = strconv.ParseBool(v)
		case "maxttl":
			o.MaxTTL, err = time.ParseDuration(v)
		case "timeout":
			o.Timeout, err = time.ParseDuration(v)
		case "quarantine":
			o.NoQuarantine, err = oneOf(v, "off", "on")
		case "eviction":
			o.AllowEviction, err = oneOf(v, "allow", "refuse")
		case "db":
			err = o.database(v)
		case "name":
			o.ClientName = v
		case "tls":
			useTLS, err = strconv.ParseBool(v)
		case "ca":
			files.ca = v
		case "cert":
			files.cert = v
		case "key":
			files.key = v
		default:
			return fmt.Errorf("%w: unknown parameter %q; known are prefix, bare, maxttl, timeout, quarantine, eviction, db, name, tls, ca, cert, key", ErrInvalid, name)
		}
		if err != nil {
			return fmt.Errorf("%w: parameter %s: %w", ErrInvalid, name, err)
		}
	}
	if files == (tlsFiles{}) && !useTLS {
		return nil
	}
	return files.apply(o)
}

// oneOf tells yes from no, and both from anything else.
func oneOf(v, yes, no string) (bool, error) {
	if v != yes && v != no {
		return false, fmt.Errorf("%q is neither %s nor %s", v, yes, no)
	}
	return v == yes, nil
}

// tlsFiles are the names of PEM files.
type tlsFiles struct{ ca, cert, key string }

func (f tlsFiles) apply(o *Options) error {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		cfg = o.TLS.Clone()
	}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return fmt.Errorf("%w: parameter ca: %w", ErrInvalid, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%w: parameter ca: %s holds no PEM certificate", ErrInvalid, f.ca)
		}
	}
	if (f.cert == "") != (f.key == "") {
		return fmt.Errorf("%w: cert and key go together", ErrInvalid)
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return fmt.Errorf("%w: cert and key: %w", ErrInvalid, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	o.TLS = cfg
	return nil
}
