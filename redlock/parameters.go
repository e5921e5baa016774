package redlock

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// known are the parameters that may stand behind the ? of a URL.
var known = []string{
	"prefix", "bare", "format", "maxttl", "counterlife", "timeout", "quarantine", "eviction", "down", "db", "name", "tls", "ca", "cert", "key", "servername",
	"username", "password", "passwordfile", "sentinel_username", "sentinel_password",
}

// What URLs of other clients (go-redis, rueidis, redis-py, Lettuce) have behind the ?, so
// that a program can have one URL for all it does with a server.
var (
	// aliases are their names for parameters that are known here.
	aliases = map[string]string{
		"database": "db", "client_name": "name", "clientName": "name", "dial_timeout": "timeout", "socket_connect_timeout": "timeout",
		"ssl_ca_certs": "ca", "ssl_certfile": "cert", "ssl_keyfile": "key",
	}
	// idle are about pools, retries and the form of replies. Here is one connection to each node, which is
	// told what it must do in which time.
	idle = []string{
		"protocol", "max_retries", "min_retry_backoff", "max_retry_backoff", "read_timeout", "write_timeout", "pool_fifo", "pool_size", "pool_timeout",
		"min_idle_conns", "max_idle_conns", "max_active_conns", "max_concurrent_dials", "pipeline_pool_size", "pipeline_read_buffer_size",
		"pipeline_write_buffer_size", "conn_max_idle_time", "idle_timeout", "conn_max_lifetime", "max_conn_age", "conn_max_lifetime_jitter", "client_cache",
		"socket_timeout", "socket_keepalive", "retry_on_timeout", "retry_on_error", "max_connections", "health_check_interval", "decode_responses",
		"encoding", "encoding_errors", "libraryName", "libraryVersion",
	}
	// checks turn the check of certificates off, with any value but this.
	checks = map[string]string{"skip_verify": "false", "ssl_cert_reqs": "required", "ssl_check_hostname": "true"}
)

// parameters reads what stands behind the ?, under the names that it has here. Errors do
// not show an unknown one: it may be part of a password.
func parameters(query string) (map[string]string, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("%w: the parameters after ? cannot be read; write %% as %%25, & as %%26, ; as %%3B, and ? in a user or password as %%3F", driver.ErrInvalid)
	}
	given, times := make(map[string]string), make(map[string]int)
	for name, list := range values {
		safe, check := checks[name]
		switch {
		case name == "addr":
			return nil, fmt.Errorf("%w: the URL names further servers by addr; for several independent servers write redlock://a:6379,b:6379,c:6379, "+
				"for those of a cluster redis+cluster://a:6379,b:6379,c:6379", driver.ErrInvalid)
		case name == "master_name", name == "master_set", name == "sentinelMasterId":
			return nil, errSentinels
		case check && !slices.Equal(list, []string{safe}):
			return nil, fmt.Errorf("%w: parameter %s: certificates are always checked; name the authority by ca=, or what the certificate shows by servername= "+
				"(in Go, Options.TLS can do otherwise)", driver.ErrInvalid, name)
		case check, slices.Contains(idle, name):
			continue
		case aliases[name] != "":
			name = aliases[name]
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("%w: unknown parameter after ?; known are %s; in a user or password write ? as %%3F", driver.ErrInvalid, strings.Join(known, ", "))
		}
		given[name] = list[0]
		if times[name] += len(list); times[name] > 1 {
			return nil, fmt.Errorf("%w: parameter %s is given %d times; give it once", driver.ErrInvalid, name, times[name])
		}
	}
	return given, nil
}

// identify takes user and password from the parameters, or keeps those of the caller where
// the URL has neither. own says that each node has its own.
func (o *Options) identify(given map[string]string, own bool, caller Options) error {
	user, pass, file := given["username"], given["password"], given["passwordfile"]
	switch {
	case pass != "" && file != "", pass+file != "" && (own || o.Password != ""):
		return fmt.Errorf("%w: the URL has more than one password: before the host, as password or by passwordfile; leave one of them", driver.ErrInvalid)
	case user != "" && (own || o.Username != ""):
		return fmt.Errorf("%w: the URL has a user before the host and another as username; leave out one of them", driver.ErrInvalid)
	}
	if user != "" || pass != "" {
		o.Credentials = nil
	}
	o.Username, o.Password = cmp.Or(o.Username, user), cmp.Or(o.Password, pass)
	if o.Username == "" && o.Password == "" && !own {
		o.Username, o.Password = caller.Username, caller.Password
	}
	if file != "" {
		return o.passwordFile(file, o.Username)
	}
	return nil
}

// sentinelLogin takes user and password for the Sentinels.
func sentinelLogin(given map[string]string, nodes []Node) error {
	user, pass := given["sentinel_username"], given["sentinel_password"]
	switch f := nodes[0].Failover; {
	case user == "" && pass == "":
	case f == nil || len(f.Sentinels) == 0:
		return fmt.Errorf("%w: the URL has a user or password for Sentinels, and names none; write redis+sentinel://", driver.ErrInvalid)
	default:
		f.Username, f.Password = user, pass
	}
	return nil
}

// apply takes everything else from the parameters.
func (o *Options) apply(given map[string]string, secure bool) error {
	t := tlsParams{ca: given["ca"], cert: given["cert"], key: given["key"], serverName: given["servername"]}
	var on, off bool // what the parameter tls says, if it is there
	for name, v := range given {
		var err error
		switch name {
		case "prefix":
			o.Prefix = v
		case "bare":
			o.BareKeys, err = strconv.ParseBool(v)
		case "format":
			o.Format = Format(v)
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
		} // the other parameters are those of t and of identify
		if err != nil {
			return fmt.Errorf("%w: parameter %s: %w", driver.ErrInvalid, name, err)
		}
	}
	wanted := secure || t != (tlsParams{})
	switch {
	case wanted && off:
		return fmt.Errorf("%w: the parameter tls says that the connection is not encrypted, but rediss://, ca, cert, key or servername say that it is; "+
			"leave out one of them", driver.ErrInvalid)
	case wanted || on:
		return t.apply(o)
	}
	return nil
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

// passwordFile takes the password from a file, anew for each connection: what keeps
// secrets may have replaced it meanwhile.
func (o *Options) passwordFile(path, user string) error {
	o.Credentials = func(context.Context, string) (string, string, error) {
		text, err := os.ReadFile(path)
		return user, strings.TrimRight(string(text), "\r\n"), err
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%w: parameter passwordfile: %w", driver.ErrInvalid, err)
	}
	return nil
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
			return fmt.Errorf("%w: parameter ca: %w", driver.ErrInvalid, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%w: parameter ca: %s holds no PEM certificate", driver.ErrInvalid, f.ca)
		}
	}
	if (f.cert == "") != (f.key == "") {
		return fmt.Errorf("%w: cert and key go together", driver.ErrInvalid)
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return fmt.Errorf("%w: cert and key: %w", driver.ErrInvalid, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	if f.serverName != "" {
		cfg.ServerName = f.serverName
	}
	o.TLS = cfg
	return nil
}
