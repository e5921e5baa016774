package redlock

import (
	"errors"
	"net"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/redisproc"
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
		"redis://user:a@b@h:1":                             {addrs("h:1"), Options{Username: "user", Password: "a@b"}},
		"redis://[::1]:6380":                               {addrs("[::1]:6380"), Options{}},
		"redis://[::1]":                                    {addrs("[::1]:6379"), Options{}},
		"redlock://a,b:2,c":                                {addrs("a:6379", "b:2", "c:6379"), Options{}},
		"redlock://u:p@a,b,c?prefix=x:&bare=true":          {addrs("a:6379", "b:6379", "c:6379"), Options{Username: "u", Password: "p", Prefix: "x:", BareKeys: true}},
		"redlock://a?maxttl=30s&timeout=500ms&db=2":        {addrs("a:6379"), Options{MaxTTL: 30 * time.Second, Timeout: 500 * time.Millisecond, DB: 2}},
		"redlock://a?quarantine=off&eviction=allow&name=n": {addrs("a:6379"), Options{NoQuarantine: true, AllowEviction: true, ClientName: "n"}},
		"redlock://a?quarantine=on&eviction=refuse":        {addrs("a:6379"), Options{}},
		"redis://h?name=a@b":                               {addrs("h:6379"), Options{ClientName: "a@b"}},
	} {
		nodes, opts, err := parseURL(url, nil)
		if err != nil || !reflect.DeepEqual(nodes, want.nodes) || !reflect.DeepEqual(opts, want.opts) {
			t.Errorf("%s: %+v, %+v, %v, want %+v, %+v", url, nodes, opts, err, want.nodes, want.opts)
		}
	}
}

func TestParseURLKeepsTheOptionsItDoesNotName(t *testing.T) {
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

func TestParseURLRefuses(t *testing.T) {
	t.Parallel()
	for url, words := range map[string]string{
		"":                             "redis://localhost:6379",
		"localhost:6379":               "does not begin with",
		"http://h":                     "does not begin with",
		"redis://":                     "host is missing",
		"redis://a,b":                  "redlock://a,b",
		"redlock://a,,b":               "host is missing",
		"redis://h:0":                  "not host:port",
		"redis://h:65536":              "not host:port",
		"redis://h:x":                  "not host:port",
		"redis://:6379":                "not host:port",
		"redis://a:b:c":                "not host:port",
		"redis://a[b":                  "not host:port",
		"redis://h/x":                  "database number",
		"redis://h/-1":                 "database number",
		"redis://h/0/1":                "database number",
		"redis://h?db=x":               "database number",
		"redis://h?bogus=1":            `unknown parameter "bogus"`,
		"redis://h?maxttl=soon":        "maxttl",
		"redis://h?bare=maybe":         "bare",
		"redis://h?quarantine=perhaps": "neither off nor on",
		"redis://h?cert=x":             "go together",
		"redis://h?ca=/no/such/file":   "ca",
		"redis://h?%zz":                "cannot be read",
		"redis://u:%zz@h":              "%25",
		"redis://h\n":                  "control characters",
	} {
		_, _, err := parseURL(url, nil)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want ErrInvalid with %q", url, err, words)
		}
	}
}

func TestParseURLReadsTLSFiles(t *testing.T) {
	t.Parallel()
	certs, err := redisproc.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	files := "?ca=" + certs.CA + "&cert=" + certs.ClientCert + "&key=" + certs.ClientKey
	for _, url := range []string{"rediss://h" + files, "redlock://h" + files, "redis://h" + files} {
		_, opts, err := parseURL(url, nil)
		if err != nil || opts.TLS == nil || opts.TLS.RootCAs == nil || len(opts.TLS.Certificates) != 1 {
			t.Errorf("%s: %+v, %v", url, opts.TLS, err)
		}
	}
	if _, opts, err := parseURL("rediss://h", nil); err != nil || opts.TLS == nil {
		t.Errorf("rediss://h: TLS %v, %v", opts.TLS, err)
	}
	if _, _, err := parseURL("rediss://h?ca="+certs.ClientKey, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("a key for a CA: %v", err)
	}
}

// FuzzParseURL looks for panics, for nodes that cannot be dialled, and for
// passwords in errors.
func FuzzParseURL(f *testing.F) {
	for _, url := range []string{
		"redis://user:hunter2@host:6379/0", "rediss://host:6380?ca=x", "redlock://h1:6379,h2,[::1]:1?prefix=x&bare=true&maxttl=60s&quarantine=off",
		"redis://:hunter2/x@h", "redis://:hunter2?x@h", "redis://h?timeout=1s&db=3&name=a@b&tls=true", "://", "redlock://,@/?",
		"redis://hunter2@a@b,c", "redis://:hunter2@[::1", "redis://:a,hunter2@h",
	} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		nodes, opts, err := parseURL(url, nil)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v does not match ErrInvalid", url, err)
			}
			// Whatever stands before the last @ may be a password.
			if at := strings.LastIndex(url, "@"); at >= 0 && strings.Contains(url[:at], "hunter2") && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q: %v shows the password", url, err)
			}
			return
		}
		if len(nodes) == 0 {
			t.Errorf("%q has no node", url)
		}
		for _, n := range nodes {
			host, port, err := net.SplitHostPort(n.Addr)
			if p, err2 := strconv.Atoi(port); err != nil || err2 != nil || host == "" || p < 1 || p > 65535 {
				t.Errorf("%q: address %q", url, n.Addr)
			}
		}
		if opts.DB < 0 {
			t.Errorf("%q: DB %d", url, opts.DB)
		}
	})
}

// FuzzParseInfo holds that whatever a server says of itself is read without a panic.
func FuzzParseInfo(f *testing.F) {
	f.Add("# Server\r\nredis_mode:standalone\r\nrun_id:abc\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n")
	f.Add("role:slave\r\nmaster_host:::1\r\n\r\n:\r\n:x\nno colon")
	f.Fuzz(func(t *testing.T, text string) {
		info := parseInfo(text)
		for k := range info {
			if strings.ContainsAny(k, ":\n") {
				t.Errorf("field %q", k)
			}
		}
		g := newGate(&Options{NoQuarantine: true}, 3)
		g.fit(info, &report{})
		for range 2 { // known, it is let in again
			if err := g.admit("a:1", info, nil); err != nil {
				t.Errorf("admit: %v", err)
			}
		}
	})
}

func TestErrorsOfServers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"READONLY You can't write against a read only replica.": true,
		"OOM command not allowed":                               true,
		"NOPERM this user has no permissions":                   true,
		"The user executing the script can't run this command":  true,
		"WRONGTYPE Operation against a key":                     true,
		"MISCONF Redis is configured to save":                   true,
		"LOADING Redis is loading the dataset in memory":        false,
		"BUSY Redis is busy running a script":                   false,
		"NOSCRIPT No matching script":                           false,
	} {
		if got := fatal(errors.New(text)); got != want {
			t.Errorf("fatal(%q) = %v", text, got)
		}
	}
}

// The driver can do all that package driver has optional interfaces for.
var (
	_ driver.Driver    = (*Driver)(nil)
	_ driver.Inspector = (*Driver)(nil)
	_ driver.Lister    = (*Driver)(nil)
	_ driver.Forcer    = (*Driver)(nil)
	_ driver.Adopter   = (*Driver)(nil)
	_ driver.Notifier  = (*Driver)(nil)
)
