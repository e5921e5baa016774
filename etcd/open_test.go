package etcd_test

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

func openPlain(ctx context.Context, url string) (*etcd.Driver, error) {
	return etcd.Open(ctx, url, nil)
}

// No error shows a password.
func TestBadURLErrorNamesTheFix(t *testing.T) {
	t.Parallel()
	fixture.CheckBadURLs(t, openPlain, map[string]string{
		"h1:2379":                              "etcd://host:2379",
		"http://h1:2379":                       "etcd://host:2379",
		"etcd://":                              "host 1 of 1 is missing",
		"etcd:///prefix":                       "host 1 of 1 is missing",
		"etcd://h1:port":                       "host 1 of 1",
		"etcd://h1:1:2":                        "host 1 of 1",
		"etcd://h1:70000":                      "host 1 of 1",
		"etcd://h1,,h2/prefix":                 "host 2 of 3 is missing",
		"etcd://h1,h1:2379":                    "named twice",
		"etcd://me:h1dden%zz@h1:2379":          "%-escape",
		"etcd://me@h1:2379":                    "without a password",
		"etcd://me:h1dden@h1:2379/p?ca=x":      "parameter ca",
		"etcds://me:h1dden@h1:2379/p?cacert=x": "the nearest that is known is cert",
		"etcds://h1:2379/?cert=x":              "both or neither",
		"etcds://h1:2379/?ca=/no/such/file":    "/no/such/file",
		"etcds://h1:2379/?ca=open_test.go":     "no certificate",
		"etcd://h1:2379/prefix#h1dden":         "# as %23",
		"etcd://h1:2379 etcd://h2:2379":        "all hosts of the service in one URL",
	})
}

// A lock taken through one URL is held for an equivalent URL, and the keys have the URL's prefix.
func TestURLNamesMembersAndPrefix(t *testing.T) {
	r := startRig(t)
	url := "etcd://" + strings.Join(r.cluster.Addrs(), ",")
	for path, prefix := range map[string]string{"/a/" + t.Name(): "a/" + t.Name() + "/", "//b/" + t.Name() + "/": "/b/" + t.Name() + "/", "": "holdfast/"} {
		d, err := etcd.Open(r.WaitContext(), url+path, nil)
		r.NoError(err)
		g := r.AcquireGrant(d, t.Name(), longTTL)
		resp, err := r.direct.Get(r.WaitContext(), prefix+t.Name()+",", clientv3.WithPrefix())
		if err != nil || resp.Count != 1 {
			t.Errorf("%q: %d keys, %v, want one", path, resp.Count, err)
		}
		r.NoError(d.Release(r.WaitContext(), g, 0))
		r.NoError(d.Close())
	}
}

// The endpoints have each possible form.
func TestClientConfigurationNamesCluster(t *testing.T) {
	r := startRig(t)
	config := clientv3.Config{Endpoints: r.cluster.Addrs()}
	config.Endpoints[0] = "http://" + config.Endpoints[0]
	d, err := etcd.NewFromConfig(r.WaitContext(), config, &r.opts)
	fixture.CloseAtEnd(r.Rig, d, err)
	g := r.AcquireGrant(d, "k", longTTL)
	r.awaitKeys("k", 1)
	r.NoError(d.Release(r.WaitContext(), g, 0))
}

func TestUnusableConfigurationIsRejected(t *testing.T) {
	t.Parallel()
	for want, config := range map[string]clientv3.Config{
		"Token":             {Endpoints: []string{"h1:2379"}, Token: "t"},
		"DialOptions":       {Endpoints: []string{"h1:2379"}, DialOptions: []grpc.DialOption{grpc.WithUserAgent("me")}},
		"no member":         {},
		"host:port":         {Endpoints: []string{"unix:///run/etcd"}},
		"some endpoints":    {Endpoints: []string{"https://h1:2379", "http://h2:2379"}},
		"write https://":    {Endpoints: []string{"http://h1:2379"}, TLS: &tls.Config{}},
		"without a passwor": {Endpoints: []string{"h1:2379"}, Username: "me"},
	} {
		_, err := etcd.NewFromConfig(t.Context(), config, &etcd.Options{NoCheck: true})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("NewFromConfig() = %v, want ErrInvalid and %q", err, want)
		}
	}
}

// Open does not fail, because the cluster may return soon.
func TestOpenAcceptsClusterThatIsDown(t *testing.T) {
	t.Parallel()
	d, err := etcd.Open(t.Context(), "etcd://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", nil)
	fixture.CheckOpensWhenDown(t, d, err)
}

// The cluster requires authentication.
func TestUserNeedsPasswordAndRole(t *testing.T) {
	r := startAlone(t, 1)
	for _, do := range []func() error{
		func() error { return errorOf(r.direct.UserAdd(t.Context(), "root", "root")) },
		func() error { return errorOf(r.direct.UserGrantRole(t.Context(), "root", "root")) },
		func() error { return errorOf(r.direct.UserAdd(t.Context(), "me", fixture.Secret)) },
		func() error { return errorOf(r.direct.RoleAdd(t.Context(), "locker")) },
		func() error {
			return errorOf(r.direct.RoleGrantPermission(t.Context(), "locker", "mine/", clientv3.GetPrefixRangeEnd("mine/"),
				clientv3.PermissionType(clientv3.PermReadWrite)))
		},
		func() error { return errorOf(r.direct.UserGrantRole(t.Context(), "me", "locker")) },
		func() error { return errorOf(r.direct.AuthEnable(t.Context())) },
	} {
		r.NoError(do())
	}
	open := func(login, path string) (*etcd.Driver, error) {
		return etcd.Open(r.WaitContext(), "etcd://"+login+r.cluster.Addrs()[0]+path, nil)
	}
	const login = "me:" + fixture.Escaped + "@"
	for what, want := range map[[2]string]string{
		{"me:wr0ng@", "/mine"}:     "correct user and password",
		{"nobody:wr0ng@", "/mine"}: "correct user and password",
		{"", "/mine"}:              "give user and password",
		{login, "/other"}:          "role",
	} {
		d, err := open(what[0], what[1])
		if err == nil {
			d.Close()
			t.Errorf("%q can log in", what)
		} else if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, driver.ErrAuth) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "wr0ng") || strings.Contains(err.Error(), fixture.Secret) {
			t.Errorf("%q: %v, want %q", what, err, want)
		}
	}
	d, err := open(login, "/mine")
	r.NoError(err)
	other, err := etcd.NewFromConfig(r.WaitContext(), clientv3.Config{Endpoints: r.cluster.Addrs(), Username: "me", Password: fixture.Secret},
		&etcd.Options{Prefix: "mine"})
	r.NoError(err)
	defer d.Close()
	holder, waiter := r.Client(d), r.Client(other)
	l := r.Acquire(holder, "k", 9*time.Second)
	next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", 9*time.Second) })
	for deadline := l.Deadline(); !l.Deadline().After(deadline); time.Sleep(10 * time.Millisecond) {
		r.NoError(context.Cause(l.Context()))
	}
	if st, err := waiter.Inspect(r.WaitContext(), "k"); err != nil || !st.Held || st.Remaining <= 0 {
		t.Errorf("Inspect() = %+v, %v", st, err)
	}
	r.Release(l)
	r.Release(<-next)
}

// The error names the cause of the failed connection, without gRPC's own words.
func TestConnectErrorsNameTheFix(t *testing.T) {
	r := startRig(t)
	fixture.CheckTLSFix(r.Rig, openPlain, map[string]string{"etcds://" + r.cluster.Addrs()[0]: "write etcd://"})
	d, err := etcd.Open(r.WaitContext(), "etcd://127.0.0.1:1", nil)
	r.NoError(err)
	defer d.Close()
	_, err = d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL, NoWait: true})
	if want := "node 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused"; err == nil || err.Error() != want {
		t.Errorf("Acquire() = %v, want %s", err, want)
	}
}

// Both the members and the client present a certificate.
func TestTLS(t *testing.T) {
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	r := aloneWith(t, config, 1, "--cert-file="+cert.Cert, "--key-file="+cert.Key, "--trusted-ca-file="+cert.Cert, "--client-cert-auth")
	addr := r.cluster.Addrs()[0]
	fixture.CheckTLSFix(r.Rig, openPlain, map[string]string{
		"etcd://" + addr:                        "write etcds://",
		"etcds://" + addr:                       "by ca",
		"etcds://" + addr + "/?ca=" + cert.Cert: "by cert and key",
		"etcds://" + addr + "/?servername=etcd.example&ca=" + cert.Cert: "use a name of its certificate",
	})
	for url, opts := range map[string]*etcd.Options{
		"etcds://" + addr + "/?ca=" + cert.Cert + "&cert=" + cert.Cert + "&key=" + cert.Key: nil,
		"etcd://" + addr:  {TLS: config},
		"etcds://" + addr: {TLS: config},
	} {
		d, err := etcd.Open(r.WaitContext(), url, opts)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		g := r.AcquireGrant(d, "k", longTTL)
		r.NoError(d.Release(r.WaitContext(), g, 0))
		r.NoError(d.Close())
	}
	for _, endpoint := range []string{addr, "https://" + addr} {
		d, err := etcd.NewFromConfig(r.WaitContext(), clientv3.Config{Endpoints: []string{endpoint}, TLS: config}, nil)
		fixture.CloseAtEnd(r.Rig, d, err)
		r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
	}
	_, err = etcd.NewFromConfig(r.WaitContext(), clientv3.Config{Endpoints: []string{"https://" + addr}}, nil) // with the system's authorities
	if err == nil || !strings.Contains(err.Error(), "by ca") {
		t.Errorf("NewFromConfig() = %v, want that the certificate is not known", err)
	}
}

// The servers would grant a longer TTL.
func TestTTLBelowServerMinimumIsRejected(t *testing.T) {
	r := startAlone(t, 1, "--election-timeout=3000")
	c := r.Client(r.newDirectDriver())
	_, err := c.Acquire(r.WaitContext(), "k", &holdfast.AcquireOptions{TTL: 2 * time.Second}) // short: it is rejected
	if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "no TTL under 5s") {
		t.Errorf("Acquire() = %v, want ErrInvalid and the floor", err)
	}
	r.Release(r.Acquire(c, "k", 5*time.Second))
}

func errorOf[T any](_ T, err error) error { return err }

// Authorities, certificates and keys of both sides are replaced while there is a lease, and the server rejects
// the old ones.
func TestNextConnectionUsesReplacedFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	var config *tls.Config
	replace := func() {
		for _, side := range []string{"server", "client"} {
			cert, err := redisproc.NewCertificate(t.TempDir())
			if err == nil && side == "server" {
				config, err = cert.Client()
			}
			for from, to := range map[string]string{cert.Cert: side + ".crt", cert.Key: side + ".key"} {
				text, bad := os.ReadFile(from)
				err = errors.Join(err, bad, os.WriteFile(file(to), text, 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	replace()
	r := aloneWith(t, config, 1, "--cert-file="+file("server.crt"), "--key-file="+file("server.key"),
		"--trusted-ca-file="+file("client.crt"), "--client-cert-auth")
	d, err := etcd.Open(r.WaitContext(), "etcds://"+r.cluster.Addrs()[0]+"/?ca="+file("server.crt")+"&cert="+file("client.crt")+"&key="+file("client.key"), nil)
	d = fixture.CloseAtEnd(r.Rig, d, err)
	g := r.AcquireGrant(d, "k", longTTL)
	replace()
	r.cluster.Members[0].Kill()
	r.NoError(r.cluster.Members[0].Restart(r.WaitContext()))
	r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
	for _, f := range d.Diagnose(r.WaitContext(), 0) {
		if f.Bad() && f.Check != "version" {
			t.Errorf("found %+v", f)
		}
	}
	r.NoError(d.Release(r.WaitContext(), g, 0))

	r.NoError(os.Remove(file("client.key")))
	r.cluster.Members[0].Kill()
	r.NoError(r.cluster.Members[0].Restart(r.WaitContext()))
	for _, f := range d.Diagnose(r.WaitContext(), 0) {
		if f.Check == "reach" && (!f.Bad() || !strings.Contains(f.Text+f.Fix, file("client.key")) || !strings.Contains(f.Text+f.Fix, "into these files")) {
			t.Errorf("without a key: %+v", f)
		}
	}
}
