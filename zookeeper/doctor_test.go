package zookeeper_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// diagnosed is what is bad.
func (r *rig) diagnosed(url string, ttl time.Duration, opts zookeeper.Options) (bad []driver.Finding) {
	r.Helper()
	d, err := zookeeper.Open(r.Within(), url, unchecked(opts))
	r.Must(err)
	defer d.Close()
	for _, f := range d.Diagnose(r.Within(), ttl) {
		if f.Bad() {
			bad = append(bad, f)
		}
		if f.Bad() && f.Mend == "" {
			r.Errorf("%+v does not say what mends it", f)
		}
		if strings.Contains(f.Text+f.Mend, fixture.Secret) {
			r.Errorf("%+v shows the password", f)
		}
	}
	return bad
}

// only checks that one thing was found.
func (r *rig) only(found []driver.Finding, check string, v driver.Verdict, words ...string) {
	r.Helper()
	if len(found) != 1 || found[0].Check != check || found[0].Verdict != v {
		r.Errorf("found %+v, want one %s of %s", found, v, check)
		return
	}
	for _, word := range words {
		if text := found[0].Text + "; " + found[0].Mend; !strings.Contains(text, word) {
			r.Errorf("%q does not say %q", text, word)
		}
	}
}

func urlOf(addrs ...string) string { return "zk://" + strings.Join(addrs, ",") + "/locks" }

func TestASoundEnsembleHasNoFindings(t *testing.T) {
	r := start(t)
	if found := r.diagnosed(urlOf(r.ensemble.Addrs()...), 0, zookeeper.Options{}); len(found) > 0 {
		t.Errorf("found %+v", found)
	}
	checks := make(map[string]int)
	for _, f := range r.straight().Diagnose(r.Within(), 0) {
		checks[f.Check]++
	}
	for check, want := range map[string]int{"reach": 3, "round-trip": 3, "leader": 3, "version": 3, "tls": 3, "sessions": 1, "rights": 1} {
		if checks[check] != want {
			t.Errorf("%d findings of %s, want %d", checks[check], check, want)
		}
	}
	if left, err := r.leftovers(); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestEachFaultOfAnEnsembleIsFoundAndNothingElse(t *testing.T) {
	t.Parallel()
	t.Run("times that the servers do not grant", func(t *testing.T) {
		r := start(t)
		url := urlOf(r.ensemble.Addrs()...)
		r.only(r.diagnosed(url, 3*time.Second, zookeeper.Options{}), "ttl", driver.VerdictWarning, "election", "6 s or more")
		r.only(r.diagnosed(url, 2*time.Minute, zookeeper.Options{}), "sessions", driver.VerdictFault, "no TTL over 1m0s", "shorter TTL", "maxSessionTimeout")
	})
	t.Run("nodes of another user", func(t *testing.T) {
		r := start(t)
		at := "zk://me:" + fixture.Escaped + "@" + strings.Join(r.ensemble.Addrs(), ",") + r.opts.Path
		d, err := zookeeper.Open(r.Within(), at, nil)
		r.Must(err)
		defer d.Close()
		r.Must(d.Release(r.Within(), r.Grant(d, "k", long), 0))
		if found := r.diagnosed(at, 0, zookeeper.Options{}); len(found) > 0 {
			t.Errorf("found %+v", found)
		}
		other := strings.Replace(at, "me:"+fixture.Escaped, "you:other", 1)
		r.only(r.diagnosed(other, 0, zookeeper.Options{}), "rights", driver.VerdictFault, "access denied", "correct user and password")
	})
	t.Run("the port of another program", func(t *testing.T) {
		r := start(t)
		web := httptest.NewServer(http.NotFoundHandler())
		defer web.Close()
		r.only(r.diagnosed(urlOf(web.Listener.Addr().String()), 0, zookeeper.Options{}), "reach", driver.VerdictFault, "correct its address")
	})
	t.Run("a server of another ensemble", func(t *testing.T) {
		r := alone(t, 1)
		r.only(r.diagnosed(urlOf(append(ensemble.Addrs(), r.ensemble.Addrs()...)...), 0, zookeeper.Options{}), "distinct", driver.VerdictFault,
			"leads another ensemble", "members of one ensemble")
	})
	t.Run("members that are down", func(t *testing.T) {
		r := alone(t, 3)
		url := urlOf(r.ensemble.Addrs()...)
		r.ensemble.Members[0].Kill()
		r.Eventually("there is a leader", func() bool { return r.ensemble.Leader() != nil })
		r.only(r.diagnosed(url, 0, zookeeper.Options{}), "reach", driver.VerdictFault, "refused", "start it")
		r.ensemble.Members[1].Kill()
		r.Eventually("the last one notices", func() bool {
			checks := make(map[string]bool)
			for _, f := range r.diagnosed(url, 0, zookeeper.Options{}) {
				checks[f.Check] = true
			}
			return checks["leader"] && checks["reach"]
		})
	})
	t.Run("certificates and keys", func(t *testing.T) {
		cert, err := redisproc.NewCertificate(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		config, err := cert.Client()
		if err != nil {
			t.Fatal(err)
		}
		r := alone(t, 1, "secureClientPort", "ssl.keyStore.location="+store(t, cert), "ssl.trustStore.location="+cert.Cert, "ssl.trustStore.type=PEM")
		url := urlOf(r.ensemble.Members[0].Safe)
		with := func(change func(*tls.Config)) []driver.Finding {
			c := config.Clone()
			change(c)
			return r.diagnosed(url, 0, zookeeper.Options{TLS: c})
		}
		in := func(days time.Duration) func(c *tls.Config) {
			return func(c *tls.Config) { c.Time = func() time.Time { return time.Now().Add(days * 24 * time.Hour) } } // it is good for 90
		}
		if found := with(in(0)); len(found) > 0 {
			t.Errorf("found %+v", found)
		}
		both := with(in(87)) // of the server and of the client
		for _, f := range both {
			r.only([]driver.Finding{f}, "tls", driver.VerdictWarning, "certificate ends on ", "in 3 days", "renew it")
		}
		if len(both) != 2 {
			t.Errorf("found %+v", both)
		}
		r.only(with(in(91)), "reach", driver.VerdictFault, "expired", "renew its certificate")
		r.only(with(func(c *tls.Config) { c.ServerName = "zk.example" }), "reach", driver.VerdictFault, "zk.example", "use a name of its certificate", "servername")
		r.only(with(func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }), "reach", driver.VerdictFault, "unknown authority", "give the CA")
		r.only(with(func(c *tls.Config) { c.Certificates = nil }), "reach", driver.VerdictFault, "cert and key")
		r.only(r.diagnosed(url, 0, zookeeper.Options{}), "reach", driver.VerdictFault, "write zks://")
		r.only(r.diagnosed("zks"+strings.TrimPrefix(urlOf(r.ensemble.Addrs()...), "zk"), 0, zookeeper.Options{}), "reach", driver.VerdictFault, "write zk://")
		r.Must(os.Chmod(cert.Key, 0o644))
		safe := "zks" + strings.TrimPrefix(url, "zk") + "?ca=" + cert.Cert + "&cert=" + cert.Cert + "&key=" + cert.Key
		r.only(r.diagnosed(safe, 0, zookeeper.Options{}), "files", driver.VerdictWarning, cert.Key, "chmod o= ")
	})
}
