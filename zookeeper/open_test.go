package zookeeper_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/zookeeper"
)

func plain(ctx context.Context, url string) (*zookeeper.Driver, error) {
	return zookeeper.Open(ctx, url, nil)
}

// TestABadURLSaysHowToMendIt, and shows no password.
func TestABadURLSaysHowToMendIt(t *testing.T) {
	t.Parallel()
	fixture.BadURLs(t, plain, map[string]string{
		"h1:2181":                           "zk://host:2181",
		"http://h1:2181":                    "zk://host:2181",
		"zk://":                             "host:port",
		"zk:///path":                        "host:port",
		"zk://h1:port":                      "member 1",
		"zk://h1:1:2":                       "member 1",
		"zk://h1:70000":                     "member 1",
		"zk://h1,,h2/path":                  "member 2",
		"zk://h1,h1:2181":                   "named twice",
		"zk://h1/a//b":                      "no path for locks",
		"zk://h1/a/../b":                    "no path for locks",
		"zk://h1/a%00b":                     "no path for locks",
		"zk://h1/zookeeper/quota":           "the servers' own",
		"zk://me:h1dden%zz@h1:2181":         "is not shown",
		"zk://me@h1:2181":                   "without a password",
		"zk://me%3Ayou:h1dden@h1:2181":      "no colon",
		"zk://me:h1dden@h1:2181/p?ca=x":     "zks://",
		"zk://me:h1dden@h1:2181/p?tls=1":    "zks://",
		"zks://me:h1dden@h1/p?tls=false":    "tls=false",
		"zks://me:h1dden@h1:2181/p?chroot=": `unknown parameter "chroot"`,
		"zks://h1:2181/?cert=x":             "both or neither",
		"zks://h1:2181/?ca=/no/such/file":   "/no/such/file",
		"zks://h1:2181/?ca=open_test.go":    "no certificate",
		"zk://h1:2181/path#h1dden":          "is not shown",
	})
}

// TestAURLNamesMembersAndPath: what is taken by a URL is held for a driver of that path, and
// for no other.
func TestAURLNamesMembersAndPath(t *testing.T) {
	r := start(t)
	url := "zk://" + strings.Join(r.ensemble.Addrs(), ",")
	for path, node := range map[string]string{"/a/b/c": "/a/b/c", "/d/": "/d", "": "/holdfast", "/": "/holdfast"} {
		d, err := zookeeper.Open(r.Within(), url+path, nil)
		r.Must(err)
		g := r.Grant(d, t.Name(), long)
		for other, held := range map[string]bool{node: true, "/a": false} {
			looker, err := zookeeper.New(r.ensemble.Addrs(), &zookeeper.Options{Path: other})
			r.Must(err)
			if st, err := looker.Inspect(r.Within(), t.Name()); err != nil || st.Held != held {
				t.Errorf("%q: below %s held is %v, %v", path, other, st.Held, err)
			}
			r.Must(looker.Close())
		}
		r.Must(d.Release(r.Within(), g, 0))
		r.Must(d.Close())
	}
}

// TestAnEnsembleThatIsDownIsNoMistake: it may be back soon.
func TestAnEnsembleThatIsDownIsNoMistake(t *testing.T) {
	t.Parallel()
	d, err := zookeeper.Open(t.Context(), "zk://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", nil)
	fixture.NobodyThere(t, d, err)
}

// TestNodesAreForTheirUserAlone: another user, or one with a wrong password, is told so.
func TestNodesAreForTheirUserAlone(t *testing.T) {
	r := start(t)
	open := func(login string) (*zookeeper.Driver, error) {
		return zookeeper.Open(r.Within(), "zk://"+login+strings.Join(r.ensemble.Addrs(), ",")+r.opts.Path, nil)
	}
	const login = "me:" + fixture.Escaped + "@"
	d, err := open(login)
	r.Must(err)
	defer d.Close()
	r.Must(d.Release(r.Within(), r.Grant(d, "k", long), 0))
	for _, login := range []string{"me:wr0ng@", "nobody:wr0ng@", ""} {
		d, err := open(login)
		if err == nil {
			_, err = d.Acquire(r.Within(), driver.Request{Key: "k", TTL: long})
			d.Close()
		}
		fixture.Denied(t, login, err, zookeeper.ErrAuth, "correct user and password")
	}
	other, err := open(login)
	r.Must(err)
	defer other.Close()
	holder, waiter := r.Client(d), r.Client(other)
	l := r.Acquire(holder, "k", 3*time.Second)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- r.Acquire(waiter, "k", 3*time.Second) }()
	for deadline := l.Deadline(); !l.Deadline().After(deadline); time.Sleep(10 * time.Millisecond) {
		r.Must(context.Cause(l.Context()))
	}
	r.Release(l)
	r.Release(<-next)
}

// TestTLS: the members show a certificate, and so does the client.
func TestTLS(t *testing.T) {
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	var both []byte
	for _, name := range []string{cert.Key, cert.Cert} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, text...)
	}
	store := filepath.Join(t.TempDir(), "store.pem")
	if err := os.WriteFile(store, both, 0o600); err != nil {
		t.Fatal(err)
	}
	r := alone(t, 1, "secureClientPort", "ssl.keyStore.location="+store, "ssl.trustStore.location="+cert.Cert, "ssl.trustStore.type=PEM")
	m := r.ensemble.Members[0]
	fixture.MendsTLS(r.Rig, plain, map[string]string{
		"zk://" + m.Safe:                        "TLS",
		"zks://" + m.Addr:                       "write zk://",
		"zks://" + m.Safe:                       "by ca",
		"zks://" + m.Safe + "/?ca=" + cert.Cert: "by cert and key",
	})
	for url, opts := range map[string]*zookeeper.Options{
		"zks://" + m.Safe + "/?ca=" + cert.Cert + "&cert=" + cert.Cert + "&key=" + cert.Key:         nil,
		"zk://" + m.Safe + "/?tls=true&ca=" + cert.Cert + "&cert=" + cert.Cert + "&key=" + cert.Key: nil,
		"zk://" + m.Safe:  {TLS: config},
		"zks://" + m.Safe: {TLS: config},
	} {
		d, err := zookeeper.Open(r.Within(), url, opts)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		g := r.Grant(d, "k", long)
		r.Must(d.Release(r.Within(), g, 0))
		r.Must(d.Close())
	}
}

// TestATTLThatTheServersWouldChangeIsAnError: they shorten and lengthen sessions in silence.
func TestATTLThatTheServersWouldChangeIsAnError(t *testing.T) {
	r := alone(t, 1, "minSessionTimeout=5000", "maxSessionTimeout=9000")
	c := r.Client(r.straight())
	for ttl, want := range map[time.Duration]string{
		2 * time.Second:         "no TTL under 5s, and 2s was asked for; take a longer TTL, or give the servers a shorter minSessionTimeout",
		10 * time.Second:        "no TTL over 9s, and 10s was asked for; take a shorter TTL, or give the servers a longer maxSessionTimeout",
		9001 * time.Millisecond: "no TTL over 9s",
	} {
		_, err := c.Acquire(r.Within(), "k", &holdfast.AcquireOptions{TTL: ttl})
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("Acquire() = %v, want ErrInvalid and %q", err, want)
		}
	}
	for _, ttl := range []time.Duration{5 * time.Second, 9 * time.Second} {
		r.Release(r.Acquire(c, "k", ttl))
	}
	if st, err := c.Inspect(r.Within(), "k"); err != nil || st.Held {
		t.Errorf("Inspect() = %+v, %v", st, err)
	}
}
