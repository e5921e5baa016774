package driverkit

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/holdfast-go/holdfast/driver"
)

// All engines and the command use one grammar of backends:
//
//	backend = item, blanks or line ends, item, …
//	item    = URL, or NAME=URL: the URLs with the same NAME are one set
//	URL     = scheme://user:password@host:port,host:port/path?name=value&name=value
//
// A URL is parsed as a whole or rejected. No error shows a part that may belong to a password: if a character
// of the password was not escaped, a part of it can end up in a host, in the path or in the name of a
// parameter.

// Grammar describes the URLs of one engine.
type Grammar struct {
	Schemes    map[string]Scheme
	Usual      []string          // schemes that errors name; the first has the example
	Parameters []string          // in addition to the parameters of TLS
	Instead    map[string]string // parameters of other clients, and their equivalents here
}

// Scheme describes the URLs with one scheme.
type Scheme struct {
	Example string // a valid URL
	Port    string // default port
	TLS     bool
	Socket  bool   // the path of a unix socket replaces the hosts
	Several string // set if the scheme takes one host only: advice for several hosts
}

// URL holds the parts of one URL.
type URL struct {
	Scheme, Path       string
	RawPath            string   // with its escapes, for paths with several parts
	Hosts              []string // each as host:port
	Username, Password string
	Parameters         map[string]string

	secure bool
}

// tlsParameters are the parameters that all engines take.
var tlsParameters = []string{"tls", "ca", "cert", "key", "servername"}

// leaseParameters are options of a lease that callers try in the URL, and where to give them.
var leaseParameters = map[string]string{
	"ttl":  "give AcquireOptions.TTL, or holdfast run --ttl",
	"wait": "give AcquireOptions.Wait, or holdfast run --wait",
}

func invalidError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{driver.ErrInvalid}, args...)...)
}

// Parse parses one URL.
func (g Grammar) Parse(text string) (*URL, error) {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(text), "://")
	form, known := g.Schemes[scheme]
	if !ok || !known {
		return nil, g.noScheme(scheme, ok)
	}
	u := &URL{Scheme: scheme, Parameters: make(map[string]string), secure: form.TLS}
	err := u.readHosts(rest, form)
	if err == nil {
		_, query, _ := strings.Cut(rest, "?")
		err = g.readParameters(u, query)
	}
	if at := strings.IndexAny(rest, "/?"); err != nil && at >= 0 && strings.Contains(rest[at:], "@") {
		err = invalidError("the URL cannot be read, and an @ comes after its first / or ?; in a user or password write / as %%2F and ? as %%3F, in a path @ as %%40")
	}
	if err != nil {
		return nil, err
	}
	return u, nil
}

// noScheme returns the error for a URL with a wrong beginning.
func (g Grammar) noScheme(scheme string, ok bool) error {
	usual := strings.Join(g.Usual, "://, ")
	if near := NearestWord(strings.ToLower(scheme), slices.Sorted(maps.Keys(g.Schemes))); ok && near != "" {
		return invalidError("the URL does not begin with %s://; the nearest is %s://, an example: %s", usual, near, g.Schemes[near].Example)
	}
	return invalidError("the URL does not begin with %s://; an example: %s", usual, g.Schemes[g.Usual[0]].Example)
}

// readHosts parses the text before the ?.
func (u *URL) readHosts(rest string, form Scheme) (err error) {
	if strings.ContainsFunc(rest, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		return invalidError("the URL has a blank or a control character; write a blank as %%20, and all hosts of the service in one URL, as in %s", form.Example)
	}
	rest, _, _ = strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	at := strings.LastIndex(authority, "@")
	if at >= 0 {
		if u.Username, u.Password, err = readLogin(authority[:at]); err != nil {
			return err
		}
	}
	u.RawPath = path
	if u.Path, err = url.PathUnescape(path); err != nil || strings.Contains(path, "#") {
		return invalidError("the path of the URL cannot be read; write %% as %%25 and # as %%23")
	}
	if form.Socket {
		if u.Path = "/" + u.Path; authority[at+1:] != "" || u.Path == "/" || strings.Contains(path, "@") || strings.ContainsFunc(u.Path, unicode.IsControl) {
			return invalidError("what follows :// is not the path of a unix socket; write %s, with user:password@ before the path if there are such; "+
				"in a password write / as %%2F, in a path @ as %%40", form.Example)
		}
		return nil
	}
	list := strings.Split(authority[at+1:], ",")
	if form.Several != "" && len(list) > 1 {
		return invalidError("%s:// takes one host; %s; in a password write a comma as %%2C, @ as %%40", u.Scheme, form.Several)
	}
	for i, host := range list {
		addr, ok := completeAddress(host, form.Port)
		_, port, _ := net.SplitHostPort(host)
		switch {
		case host == "":
			return invalidError("host %d of %d is missing in the URL; an example: %s", i+1, len(list), form.Example)
		case port != "" && strings.Trim(port, "0123456789") == "" && !IsDialable("h", port): // the error does not show the port, which may be a password
			return invalidError(
				"the port of host %d of %d is not from 1 to 65535; write host:port, or user:password@host:port with an @ before the host", i+1, len(list))
		case !ok:
			return invalidError("host %d of %d is not host:port, or user:password@host:port with an @ before the host; in a password write a comma as %%2C, @ as %%40",
				i+1, len(list))
		}
		u.Hosts = append(u.Hosts, addr)
	}
	return nil
}

// readLogin parses user:password, which a URL contains once, before the first host. It rejects an unescaped comma
// or @, after which a host cannot be told from a password.
func readLogin(text string) (user, pass string, err error) {
	if strings.ContainsAny(text, ",@") {
		return "", "", invalidError("user and password stand once, before the first host; in a password write a comma as %%2C, @ as %%40")
	}
	user, pass, _ = strings.Cut(text, ":")
	user, err1 := url.PathUnescape(user)
	pass, err2 := url.PathUnescape(pass)
	if err1 != nil || err2 != nil { // their texts would show the password
		return "", "", invalidError("user or password has a bad %%-escape; write %% as %%25, @ as %%40, / as %%2F")
	}
	return user, pass, nil
}

// completeAddress completes and checks host:port.
func completeAddress(s, usual string) (string, bool) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.Trim(s, "[]"), usual
	}
	return net.JoinHostPort(host, port), IsDialable(host, port)
}

// IsDialable reports whether host and port can belong to a server. Other names are not looked up, because the
// error of the lookup would show them.
func IsDialable(host, port string) bool {
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return !strings.ContainsAny(host, "[]") // an IPv6 zone may contain them, an address in brackets may not
	}
	return host != "" && !strings.ContainsFunc(host, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-._", r)
	})
}

// readParameters parses the text after the ?.
func (g Grammar) readParameters(u *URL, query string) error {
	if query == "" {
		return nil
	}
	known := slices.Concat(g.Parameters, tlsParameters)
	all := strings.Split(query, "&")
	for i, piece := range all {
		name, value, _ := strings.Cut(piece, "=")
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		switch _, given := u.Parameters[name]; {
		case err1 != nil || err2 != nil:
			return invalidError("parameter %d of %d after ? cannot be read; write %% as %%25, & as %%26, and ? in a user or password as %%3F", i+1, len(all))
		case given:
			return invalidError("parameter %s is given twice; give it once", name)
		case slices.Contains(known, name):
			u.Parameters[name] = value
		case g.Instead[name] != "":
			return invalidError("parameter %s is not known here; %s", name, g.Instead[name])
		case leaseParameters[name] != "":
			return invalidError("parameter %s is not of the service but of each lease; %s", name, leaseParameters[name])
		default: // the error does not show the name, which may be part of a password
			near := NearestWord(name, known)
			if near != "" {
				near = "; the nearest that is known is " + near
			}
			return invalidError("parameter %d of %d after ? is not known%s; known are %s; in a user or password write ? as %%3F, & as %%26",
				i+1, len(all), near, strings.Join(known, ", "))
		}
	}
	return nil
}

// NearestWord returns the word that differs from s in a few letters; "" if there is none.
func NearestWord(s string, words []string) (near string) {
	least := len(s)/2 + 1
	for _, w := range words {
		if d := editDistance(s, w); d < least {
			near, least = w, d
		}
	}
	return near
}

// editDistance counts the letters to insert, remove or replace (V. Levenshtein, 1965).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := left
			if a[i] != b[j] {
				change++
			}
			left = row[j+1]
			row[j+1] = min(change, left+1, row[j]+1)
		}
	}
	return row[len(b)]
}
