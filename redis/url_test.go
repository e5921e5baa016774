package redis

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	addrs := func(a ...string) (nodes []Node) {
		for _, addr := range a {
			nodes = append(nodes, Node{Addr: addr})
		}
		return nodes
	}
	for url, want := range map[string]struct {
		nodes []Node
		opts  Options
	}{
		"redis://localhost":                                {addrs("localhost:6379"), Options{}},
		"redis://localhost:6380/3":                         {addrs("localhost:6380"), Options{DB: 3}},
		"redis://:secret@h:1":                              {addrs("h:1"), Options{Password: "secret"}},
		"redis://user:p%40ss%2Fw%3Ard@h:1":                 {addrs("h:1"), Options{Username: "user", Password: "p@ss/w:rd"}},
		"redis://[::1]:6380":                               {addrs("[::1]:6380"), Options{}},
		"redis://[::1]":                                    {addrs("[::1]:6379"), Options{}},
		"redlock://a,b:2,c":                                {addrs("a:6379", "b:2", "c:6379"), Options{}},
		"redlock://u:p@a,b,c?bare=true":                    {addrs("a:6379", "b:6379", "c:6379"), Options{Username: "u", Password: "p", BareKeys: true}},
		"redlock://a?maxttl=30s&timeout=500ms&db=2":        {addrs("a:6379"), Options{MaxTTL: 30 * time.Second, Timeout: 500 * time.Millisecond, DB: 2}},
		"redlock://a?quarantine=off&eviction=allow&name=n": {addrs("a:6379"), Options{NoQuarantine: true, AllowEviction: true, ClientName: "n"}},
		"redlock://a?quarantine=on&eviction=refuse":        {addrs("a:6379"), Options{}},
		"redis://h?name=a@b":                               {addrs("h:6379"), Options{ClientName: "a@b"}},
		"redis://:a%2Cb@h":                                 {addrs("h:6379"), Options{Password: "a,b"}},
		"redlock://a?maxttl=30&timeout=0.5":                {addrs("a:6379"), Options{MaxTTL: 30 * time.Second, Timeout: 500 * time.Millisecond}},
	} {
		nodes, opts, err := parseURL(url, nil)
		if err != nil || !reflect.DeepEqual(nodes, want.nodes) || !reflect.DeepEqual(opts, want.opts) {
			t.Errorf("%s: %+v, %+v, %v, want %+v, %+v", url, nodes, opts, err, want.nodes, want.opts)
		}
	}
}

// The test has a row for each form of URL. A form of other clients that this package does not support is
// rejected, and the error tells what to write.
func TestEachFormOfURLIsParsed(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]struct {
		node Node
		opts Options
		mend string
	}{
		"valkey://h":                      {node: Node{Addr: "h:6379"}},
		"valkey://u:p@h:1/2":              {node: Node{Addr: "h:1"}, opts: Options{Username: "u", Password: "p", DB: 2}},
		"unix:///run/redis.sock":          {node: Node{Addr: "/run/redis.sock"}},
		"unix:///run/redis.sock?db=3":     {node: Node{Addr: "/run/redis.sock"}, opts: Options{DB: 3}},
		"unix://u:p%2Fq@/run/redis.sock":  {node: Node{Addr: "/run/redis.sock"}, opts: Options{Username: "u", Password: "p/q"}},
		"unix://:p@/a%20b%40c":            {node: Node{Addr: "/a b@c"}, opts: Options{Password: "p"}},
		"unix://u@/s?password=p":          {node: Node{Addr: "/s"}, opts: Options{Username: "u", Password: "p"}},
		"redis://h?username=u&password=p": {node: Node{Addr: "h:6379"}, opts: Options{Username: "u", Password: "p"}},
		"redis://u@h?password=p%40":       {node: Node{Addr: "h:6379"}, opts: Options{Username: "u", Password: "p@"}},
		"redis://h/1?name=n":              {node: Node{Addr: "h:6379"}, opts: Options{DB: 1, ClientName: "n"}},
		"redis+cluster://u:p@h":           {node: Node{Addr: "h:6379"}, opts: Options{Username: "u", Password: "p", Cluster: true}},

		"unix://run/redis.sock":                 {mend: "write unix:///run/redis.sock"},
		"unix://h:6379":                         {mend: "write unix:///run/redis.sock"},
		"unix://":                               {mend: "write unix:///run/redis.sock"},
		"unix:///":                              {mend: "write unix:///run/redis.sock"},
		"unix:///a@b":                           {mend: "write / as %2F"},
		"unix:///a%0ab":                         {mend: "write unix:///run/redis.sock"},
		"unix:///%zz":                           {mend: "write % as %25"},
		"redlock:///a.sock,/b.sock":             {mend: "host 1 of 1 is missing"},
		"/run/redis.sock":                       {mend: "unix://"},
		"REDIS://h":                             {mend: "an example: redis://localhost:6379"},
		"redis+unix:///s":                       {mend: "unix://"},
		"my-cluster:6379":                       {mend: "does not begin with "},
		"redis-sentinel://a#mymaster":           {mend: "redis+sentinel://user:password@s1:26379,s2:26379/NAME/0"},
		"redis-cluster://a,b,c":                 {mend: "redis+cluster://user:password@h1:6379,h2:6379"},
		"redis+cluster://a,u:p@b":               {mend: "user and password stand once"},
		"redis+cluster://a:0":                   {mend: "host 1 of 1"},
		"redis+cluster+sentinel://a":            {mend: "does not begin with"},
		"redis://h?master_name=m":               {mend: "redis+sentinel://user:password@s1:26379"},
		"redis://h?master_set=m":                {mend: "redis+sentinel://user:password@s1:26379"},
		"redis-sentinel://h?sentinelMasterId=m": {mend: "redis+sentinel://user:password@s1:26379"},
		"redis://h?addr=h2:1&addr=h3:1":         {mend: "write redlock://a:6379,b:6379,c:6379"},
		"rediss://h?skip_verify=true":           {mend: "name the authority by ca"},
		"rediss://h?ssl_cert_reqs=none":         {mend: "certificates are always checked"},
		"rediss://h?ssl_check_hostname=no":      {mend: "servername"},
		"redis://h?client_name=n":               {mend: "write name"},
		"redis://h?socket_connect_timeout=2":    {mend: "write timeout"},
		"redis://h?pool_size=9":                 {mend: "not known"},
		"redis://h?maxtll=9s":                   {mend: "the nearest that is known is maxttl"},
		"redis://h?Prefix=p":                    {mend: "the nearest that is known is prefix"},
		"redis://h?bare=yes":                    {mend: `parameter bare: "yes" is neither true nor false`},
		"valky://h":                             {mend: "the nearest is valkey://, an example: valkey://localhost:6379"},
		"redis://h/1?db=1":                      {mend: "leave out one of them"},
		"redis://:p@h?password=q":               {mend: "more than one password"},
		"redis://h?password=q&passwordfile=/":   {mend: "more than one password"},
		"redis://u:p@h?username=v":              {mend: "leave out one of them"},
		"redis://h?sentinel_username=u":         {mend: "names none"},
	} {
		nodes, opts, err := parseURL(url, nil)
		if want.mend != "" {
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want.mend) {
				t.Errorf("%s: %v, want driver.ErrInvalid with %q", url, err, want.mend)
			}
			continue
		}
		if err != nil || len(nodes) != 1 || nodes[0] != want.node || !reflect.DeepEqual(opts, want.opts) {
			t.Errorf("%s: %+v, %+v, %v, want %+v, %+v", url, nodes, opts, err, want.node, want.opts)
		}
	}
}

// A list of hosts is either parsed completely or rejected, whatever the passwords contain.
func TestURLKeepsEveryHost(t *testing.T) {
	t.Parallel()
	for url, want := range map[string][]Node{
		"redlock://u:p@a,b,c":             {{Addr: "a:6379"}, {Addr: "b:6379"}, {Addr: "c:6379"}},
		"redlock://u:%2F%3F@a/1":          {{Addr: "a:6379"}},
		"redlock://u:x@a,b redis://v:y@c": {{"a:6379", "u", "x", nil}, {"b:6379", "u", "x", nil}, {"c:6379", "v", "y", nil}},
		"redlock://u:x@a,u:x@b":           nil,
		"redlock://u:p@q@a":               nil,
		"redlock://u:x@a,b,u:x@c":         nil,
		"redlock://a,u:x@b":               nil,
		"redlock://u:x@a,@b":              nil,
		"redlock://u:p,q@a":               nil,
		"redlock://u:p,q@a,b":             nil,
		"redlock://u:6379,q@a,b":          nil,
		"redlock://u:x@a,":                nil,
		"redlock://a, b,c":                nil,
		"redis://u:x@a,u:x@b,u:x@c":       nil,
		"redis://user:a@b@h:1":            nil,
		"redis://:a,b@h":                  nil,
		"rediss://u:x@a,b":                nil,
		"redlock://u:x@redis://a":         nil,
		"redlock://u:x@a/0,b/0":           nil,
		"redlock://u:x@a?db=1,b?db=1":     nil,
	} {
		nodes, _, err := parseURL(url, nil)
		if !slices.Equal(nodes, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %+v, %v, want %+v", url, nodes, err, want)
		}
		if err != nil && !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, want driver.ErrInvalid", url, err)
		}
	}
}

// The URL takes precedence over the options, including Options.Credentials.
func TestURLOverridesCallersCredentials(t *testing.T) {
	t.Parallel()
	base := &Options{Credentials: func(context.Context, string) (user, pass string, err error) { return "other", "other", nil }}
	for _, url := range []string{"redis://u:p@a", "redlock://u:p@a,b", "redis://u:p@a redis://u:p@b", "redis://a?password=p", "unix://u:p@/s"} {
		if _, opts, err := parseURL(url, base); err != nil || opts.Credentials != nil {
			t.Errorf("%s: %v; Credentials was kept: %v", url, err, opts.Credentials != nil)
		}
	}
	if _, opts, err := parseURL("redlock://a,b", base); err != nil || opts.Credentials == nil {
		t.Errorf("URL without credentials: %v; Credentials was kept: %v", err, opts.Credentials != nil)
	}
}

// No part of a URL disables encryption that another part requires.
func TestURLKeepsTLS(t *testing.T) {
	t.Parallel()
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ca := cert.Cert
	for url, want := range map[string]bool{
		"valkeys://h": true, "redis://h?ca=" + ca: true, "unix:///s?servername=x": true, "unix:///s": false, "valkey://h": false,
		"rediss://h": true, "rediss://h?tls=true": true, "redis://h?tls=true": true, "redlock://a,b?tls=1": true, "redis://h?servername=x": true,
		"redis://h": false, "redis://h?tls=false": false, "redlock://a,b?tls=0": false,
	} {
		if _, opts, err := parseURL(url, nil); err != nil || (opts.TLS != nil) != want {
			t.Errorf("%s: TLS %v, %v, want TLS: %v", url, opts.TLS != nil, err, want)
		}
	}
	for _, url := range []string{
		"rediss://h?tls=false", "valkeys://h?tls=false", "rediss://h?tls=0", "redis://h?tls=false&servername=x", "redlock://a,b?tls=false&ca=/no/such/file", "redis://h?tls=true&tls=false",
	} {
		if _, opts, err := parseURL(url, nil); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: TLS %v, %v, want driver.ErrInvalid", url, opts.TLS != nil, err)
		}
	}
	if _, opts, err := parseURL("rediss://10.0.0.1?servername=redis.example", nil); err != nil || opts.TLS.ServerName != "redis.example" {
		t.Errorf("servername: %+v, %v", opts.TLS, err)
	}
}

func TestParseURLKeepsUnnamedOptions(t *testing.T) {
	t.Parallel()
	base := &Options{Prefix: "p:", MaxTTL: time.Hour, DB: 7, Username: "u", Password: "p"}
	_, opts, err := parseURL("redis://h/1?maxttl=5s", base)
	if err != nil || opts.Prefix != "p:" || opts.DB != 1 || opts.MaxTTL != 5*time.Second || opts.Username != "u" || opts.Password != "p" {
		t.Errorf("%+v, %v", opts, err)
	}
	if base.DB != 7 || base.MaxTTL != time.Hour {
		t.Errorf("the caller's options were changed: %+v", base)
	}
}

func TestParseURLRejectsBadURLs(t *testing.T) {
	t.Parallel()
	for url, words := range map[string]string{
		"":                             "redis://localhost:6379",
		"localhost:6379":               "does not begin with",
		"http://h":                     "does not begin with",
		"redis://":                     "host 1 of 1 is missing",
		"redis://a,b":                  "for several write redlock://",
		"redlock://a,,b":               "host 2 of 3 is missing",
		"redis://h:0":                  "the port of host 1 of 1 is not from 1 to 65535",
		"redis://h:65536":              "the port of host 1 of 1 is not from 1 to 65535",
		"redis://h:x":                  "not host:port",
		"redis://:6379":                "not host:port",
		"redis://a:b:c":                "not host:port",
		"redis://a[b":                  "not host:port",
		"redis://h/x":                  "database number",
		"redis://h/-1":                 "database number",
		"redis://h/0/1":                "database number",
		"redis://h?db=x":               "database number",
		"redis://h?bogus=1":            "parameter 1 of 1 after ? is not known; known are prefix, bare, format, maxttl, timeout, quarantine, eviction, down, db,",
		"redis://h?maxttl=soon":        "maxttl",
		"redis://h?bare=maybe":         "bare",
		"redis://h?quarantine=perhaps": "neither off nor on",
		"redis://h?cert=x":             "go together",
		"redis://h?ca=/no/such/file":   "ca",
		"redis://h?%zz":                "cannot be read",
		"redis://u:%zz@h":              "%25",
		"redis://h?maxttl=-1":          "maxttl",
		"redis://h?db=1&db=2":          "given twice",
		"redlock://u:x@a,b,v:y@c":      "user and password stand once",
		"redlock://u:p,q@a,b":          "write a comma as %2C",
		"redis://u:x@a,u:x@b":          "user and password stand once",
	} {
		_, _, err := parseURL(url, nil)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want driver.ErrInvalid with %q", url, err, words)
		}
	}
}

// The error for a malformed URL shows no part that may have been meant as a password, wherever it ended up: in
// a host, a port, the path, or the name of a parameter.
func TestErrorsHidePossiblePasswords(t *testing.T) {
	t.Parallel()
	const secret = "secretpw"
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nothing is dialed
	for _, rest := range []string{
		"u:secretpw:localhost:27101",
		"u:secretpw%40localhost:27101",
		"u:secretpw%40localhost",
		"secretpw%40localhost",
		"u:secretpw",
		":secretpw",
		"u:a,secretpw:localhost:1",
		"u:a,secretpw%40localhost:1",
		"u:1,secretpw%40localhost",
		"u:p@secretpw%40localhost",
		"u:p@a,v:secretpw:b:1",
		"u:secretpw@a[b",
		"u:secretpw localhost:1",
		"u:1/secretpw:localhost",
		"u:1/secretpw%40localhost:1",
		"u:1?secretpw:localhost",
		"u:1?secretpw%40localhost&secretpw%40localhost",
		"u:1?secretpw%zz",
		"u:1?secretpw;x",
		"u:%secretpw@localhost",
	} {
		for _, scheme := range []string{"redis://", "rediss://", "redlock://", "valkey://", "unix://", "redis+sentinel://"} {
			_, err := Open(ctx, scheme+rest, nil)
			if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), secret[:6]) {
				t.Errorf("Open(%s%s) = %v, want ErrInvalid without the password", scheme, rest, err)
			}
		}
		for _, addr := range []string{rest, "redis://" + rest} {
			if _, err := New(ctx, []Node{{Addr: addr}}, nil); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), secret[:6]) {
				t.Errorf("New(%s) = %v, want ErrInvalid without the password", addr, err)
			}
		}
	}
}

func TestParseURLReadsCertificates(t *testing.T) {
	t.Parallel()
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	files := "?ca=" + cert.Cert + "&cert=" + cert.Cert + "&key=" + cert.Key
	for _, url := range []string{"rediss://h" + files, "redlock://h" + files, "redis://h" + files} {
		_, opts, err := parseURL(url, nil)
		if err != nil || opts.TLS == nil || opts.TLS.RootCAs == nil || len(opts.TLS.Certificates) != 1 {
			t.Errorf("%s: %+v, %v", url, opts.TLS, err)
		}
	}
	if _, opts, err := parseURL("rediss://h", nil); err != nil || opts.TLS == nil {
		t.Errorf("rediss://h: TLS %v, %v", opts.TLS, err)
	}
	if _, _, err := parseURL("rediss://h?ca="+cert.Key, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a key for a CA: %v", err)
	}
}

// FuzzParseURL looks for panics, for nodes that cannot be dialed, and for
// passwords in errors.
func FuzzParseURL(f *testing.F) {
	for _, url := range []string{
		"redis://user:hunter2@host:6379/0", "rediss://host:6380?ca=x", "redlock://h1:6379,h2,[::1]:1?prefix=x&bare=true&maxttl=60s&quarantine=off",
		"redis://:hunter2/x@h", "redis://:hunter2?x@h", "redis://h?timeout=1s&db=3&name=a@b&tls=true", "://", "redlock://,@/?",
		"unix://u:hunter2@/run/redis.sock", "unix:///hunter2@/s", "redis://h?username=u&password=hunter2", "redis://h?pool_size=1&client_name=n",
		"redis://hunter2@a@b,c", "redis://:hunter2@[::1", "redlock://::%]00", "redis://:a,hunter2@h",
		"redis://u:hunter2:h:1", "redis://u:hunter2%40h", "redlock://u:1/hunter2,h", "redis://u:1?hunter2%40h", "redlock://u:hunter2@a,u:hunter2@b", "redlock://u:hunter2@a,b,v:hunter2@c", "redlock://u:a,hunter2:x@b", "redlock://hunter2@0, hunter2",
	} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		nodes, opts, err := parseURL(url, nil)
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%q: %v does not match driver.ErrInvalid", url, err)
			}
			// The text before the last @ may be a password; the text after it is not. Without an @, only the
			// value of a parameter is certain not to be.
			const secret = "hunter2"
			at := strings.LastIndex(url, "@")
			if before, _, _ := strings.Cut(url, "="); at < 0 {
				at = len(before)
			}
			if strings.Contains(url[:at], secret) && !strings.Contains(url[at:], secret) && strings.Contains(err.Error(), secret) {
				t.Errorf("%q: %v contains the password", url, err)
			}
			return
		}
		hosts, _, _ := strings.Cut(url, "?")
		if strings.HasPrefix(url, "redlock:") && !strings.ContainsFunc(url, unicode.IsSpace) && len(nodes) != strings.Count(hosts, ",")+1 {
			t.Errorf("%q has %d nodes", url, len(nodes))
		}
		for _, n := range nodes {
			host, port, err := net.SplitHostPort(n.Addr)
			if server.IsSocket(n.Addr) && strings.Contains(url, "unix://") {
				continue
			}
			if p, err2 := strconv.Atoi(port); err != nil || err2 != nil || host == "" || p < 1 || p > 65535 {
				t.Errorf("%q: address %q", url, n.Addr)
			}
		}
		if opts.DB < 0 {
			t.Errorf("%q: DB %d", url, opts.DB)
		}
	})
}

// FuzzParseInfo checks that any reply to INFO is parsed without a panic.
func FuzzParseInfo(f *testing.F) {
	f.Add("# Server\r\nredis_mode:standalone\r\nrun_id:abc\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n")
	f.Add("role:slave\r\nmaster_host:::1\r\n\r\n:\r\n:x\nno colon")
	f.Fuzz(func(t *testing.T, text string) {
		info := server.ParseInfo(text)
		for k := range info {
			if strings.ContainsAny(k, ":\n") {
				t.Errorf("field %q", k)
			}
		}
		newGate(&Options{}, 3).checkFitness(newNode(&core{}, 0, Node{}), nil, info)
	})
}

// The driver implements all optional interfaces of package driver.
var (
	_ driver.Driver    = (*Driver)(nil)
	_ driver.Inspector = (*Driver)(nil)
	_ driver.Lister    = (*Driver)(nil)
	_ driver.Queuer    = (*Driver)(nil)
	_ driver.Forcer    = (*Driver)(nil)
	_ driver.Adopter   = (*Driver)(nil)
	_ driver.Notifier  = (*Driver)(nil)
)

// limitsOf returns the limits of the driver for a URL.
func limitsOf(url string) (driver.Limits, error) {
	d, err := Open(context.Background(), url, &Options{NoCheck: true})
	if err != nil {
		return driver.Limits{}, err
	}
	return d.Limits(), d.Close()
}

// In a cluster only the shard of the name counts. A Margin has to leave time for its answer.
func TestLimitsCountNodesOfLock(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]int{"redis://a": 1, "redlock://a,b,c": 3, "redis+cluster://a,b": 1} {
		if l, err := limitsOf(url); err != nil || l.Nodes != want {
			t.Errorf("%s: %d nodes, %v; want %d", url, l.Nodes, err, want)
		}
	}
}

// After a restart, several nodes would not vote for that long.
func TestDefaultMaxTTLDependsOnNodes(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]time.Duration{
		"redis://a": 24 * time.Hour, "redis://a?maxttl=1h": time.Hour, "redlock://a": 24 * time.Hour,
		"redlock://a,b,c": time.Minute, "redlock://a,b,c?maxttl=2h": 2 * time.Hour,
	} {
		if l, err := limitsOf(url); err != nil || l.MaxTTL != want {
			t.Errorf("%s: MaxTTL %v, %v; want %v", url, l.MaxTTL, err, want)
		}
	}
	if _, err := limitsOf("redis://a?maxttl=1ms"); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a rejected URL has limits: %v", err)
	}
}
