package redlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// OpenURL opens the nodes that a URL names; opts may be nil; the URL takes
// precedence over it.
//
//	redis://user:password@host:6379/0       one server
//	rediss://host:6380?ca=/etc/ca.pem       one server, over TLS
//	redlock://h1:6379,h2:6379,h3:6379       several independent servers
//	redlock://u:p@h1,h2,h3                  all with the same user and password
//	redlock://u:p@h1,v:q@h2,w:r@h3          each with its own
//
// Parameters: passwordfile (a file with the password of all servers, read at each
// new connection, in place of one in the URL), prefix, bare (true), maxttl (60s), counterlife (150s), quarantine (off), timeout (1s),
// db, tls (true: for redlock), ca, cert, key (PEM files), servername (that the
// certificates of all servers must show, instead of the host), name (shown by
// CLIENT LIST), eviction (allow), down (allow). A number without a unit means seconds. In users
// and passwords, write % as %25, a comma as %2C, @ as %40, / as %2F and ? as %3F;
// a URL that can be read in two ways is refused. A password in the URL never
// appears in an error.
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
		return nil, o, fmt.Errorf("%w: the URL cannot be read, and an @ comes after its first / or ?; "+
			"in a user or password write / as %%2F and ? as %%3F", ErrInvalid)
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
	if scheme == "redlock" {
		nodes, err = o.several(hosts)
	} else {
		nodes, err = o.single(scheme, hosts)
	}
	if err != nil {
		return nil, o, err
	}
	if o.database(path) != nil {
		return nil, o, fmt.Errorf("%w: the path of the URL is no database number, as in redis://localhost:6379/0; in a user or password write / as %%2F", ErrInvalid)
	}
	own := slices.ContainsFunc(nodes, func(n Node) bool { return n.Password != "" })
	return nodes, o, o.query(query, scheme == "rediss", own || o.Password != "")
}

// single reads [user:password@]host.
func (o *Options) single(scheme, text string) ([]Node, error) {
	at := strings.LastIndex(text, "@")
	user, host := text[:max(at, 0)], text[at+1:]
	if strings.Contains(host, ",") {
		return nil, fmt.Errorf("%w: %s:// takes one host; for several begin with redlock://", ErrInvalid, scheme)
	}
	if strings.Contains(user, ",") && strings.Contains(user, "@") {
		return nil, fmt.Errorf("%w: %s:// takes one host; for several begin with redlock://; in a password write a comma as %%2C, @ as %%40", ErrInvalid, scheme)
	}
	var node Node
	var err error
	if node.Addr, err = address(host, "what follows ://"); err != nil || at < 0 {
		return []Node{node}, err
	}
	return []Node{node}, o.login(user)
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
		if node.Addr, err = address(entry[at+1:], fmt.Sprintf("host %d of %d", i+1, len(list))); err != nil {
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
			"a comma in a password is written as %%2C", ErrInvalid)
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
		return "", "", fmt.Errorf("%w: user or password has a bad %%-escape; write %% as %%25, @ as %%40, / as %%2F", ErrInvalid)
	}
	return user, pass, nil
}

// address completes and checks host:port. Its error does not show s, but says which it
// is: where an @ is missing, what looks like a host is a password.
func address(s, which string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("%w: a host is missing in the URL; an example: redis://localhost:6379", ErrInvalid)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.Trim(s, "[]"), "6379"
	}
	if !dialable(host, port) {
		return "", fmt.Errorf("%w: %s is not host:port, or user:password@host:port with an @ before the host; "+
			"in a password write a comma as %%2C, @ as %%40", ErrInvalid, which)
	}
	return net.JoinHostPort(host, port), nil
}

// dialable says whether host and port can be those of a server. Others are not
// looked up: the error of a look-up would show them.
func dialable(host, port string) bool {
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host != "" && !strings.ContainsFunc(host, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-._", r)
	})
}

func (o *Options) database(number string) error {
	if number == "" {
		return nil
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return errors.New("it is no database number")
	}
	o.DB = n
	return nil
}

// parameters are what may stand behind the ? of a URL.
var parameters = []string{
	"prefix", "bare", "maxttl", "counterlife", "timeout", "quarantine", "eviction", "down", "db", "name", "tls", "ca", "cert", "key", "servername", "passwordfile",
}

// query applies the parameters. Errors do not show an unknown one: it may be part
// of a password.
func (o *Options) query(query string, secure, password bool) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("%w: the parameters after ? cannot be read; write %% as %%25, & as %%26, ; as %%3B, and ? in a user or password as %%3F", ErrInvalid)
	}
	t := tlsParams{ca: values.Get("ca"), cert: values.Get("cert"), key: values.Get("key"), serverName: values.Get("servername")}
	var on, off bool // what the parameter tls says, if it is there
	for name, list := range values {
		if !slices.Contains(parameters, name) {
			return fmt.Errorf("%w: unknown parameter after ?; known are %s; in a user or password write ? as %%3F", ErrInvalid, strings.Join(parameters, ", "))
		}
		if len(list) > 1 {
			return fmt.Errorf("%w: parameter %s is given %d times; give it once", ErrInvalid, name, len(list))
		}
		v := list[0]
		var err error
		switch name {
		case "passwordfile":
			if password {
				return fmt.Errorf("%w: the URL has both a password and passwordfile; leave out one of them", ErrInvalid)
			}
			err = o.passwordFile(v)
		case "prefix":
			o.Prefix = v
		case "bare":
			o.BareKeys, err = strconv.ParseBool(v)
		case "maxttl":
			o.MaxTTL, err = duration(v)
		case "counterlife":
			o.CounterLife, err = duration(v)
		case "timeout":
			o.Timeout, err = duration(v)
		case "quarantine":
			o.NoQuarantine, err = oneOf(v, "off", "on")
		case "down":
			o.AllowDown, err = oneOf(v, "allow", "refuse")
		case "eviction":
			o.AllowEviction, err = oneOf(v, "allow", "refuse")
		case "db":
			err = o.database(v)
		case "name":
			o.ClientName = v
		case "tls":
			on, err = strconv.ParseBool(v)
			off = !on
		} // the other parameters are those of t
		if err != nil {
			return fmt.Errorf("%w: parameter %s: %w", ErrInvalid, name, err)
		}
	}
	wanted := secure || t != (tlsParams{})
	switch {
	case wanted && off:
		return fmt.Errorf("%w: the parameter tls says that the connection is not encrypted, but rediss://, ca, cert, key or servername say that it is; "+
			"leave out one of them", ErrInvalid)
	case wanted || on:
		return t.apply(o)
	}
	return nil
}

// passwordFile takes the password from a file, anew for each connection: what keeps
// secrets may have replaced it meanwhile.
func (o *Options) passwordFile(path string) error {
	user := o.Username
	o.Credentials = func(context.Context, string) (string, string, error) {
		text, err := os.ReadFile(path)
		return user, strings.TrimRight(string(text), "\r\n"), err
	}
	_, err := os.Stat(path)
	return err
}

// duration reads what flags of the command take as well: Go's notation, or a number
// of seconds.
func duration(s string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil && seconds >= 0 && seconds < 1e9 {
		return time.Duration(seconds * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration; write 90s, 1m30s, 250ms or a number of seconds", s)
	}
	return d, nil
}

// oneOf tells yes from no, and both from anything else.
func oneOf(v, yes, no string) (bool, error) {
	if v != yes && v != no {
		return false, fmt.Errorf("%q is neither %s nor %s", v, yes, no)
	}
	return v == yes, nil
}

// tlsParams are the parameters of TLS: names of PEM files, and of the server.
type tlsParams struct{ ca, cert, key, serverName string }

func (f tlsParams) apply(o *Options) error {
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
	if f.serverName != "" {
		cfg.ServerName = f.serverName
	}
	o.TLS = cfg
	return nil
}
