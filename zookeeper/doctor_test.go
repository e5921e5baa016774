package zookeeper_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// findingsAt returns the bad findings.
func (r *rig) findingsAt(url string, ttl time.Duration, opts zookeeper.Options) (bad []driver.Finding) {
	r.Helper()
	d, err := zookeeper.Open(r.WaitContext(), url, withoutCheck(opts))
	r.NoError(err)
	defer d.Close()
	for _, f := range d.Diagnose(r.WaitContext(), ttl) {
		if f.Bad() {
			bad = append(bad, f)
		}
		if f.Bad() && f.Fix == "" {
			r.Errorf("%+v has no fix", f)
		}
		if strings.Contains(f.Text+f.Fix, fixture.Secret) {
			r.Errorf("%+v contains the password", f)
		}
	}
	return bad
}

// wantOneFinding checks that the doctor found one thing.
func (r *rig) wantOneFinding(found []driver.Finding, check string, v driver.Verdict, words ...string) {
	r.Helper()
	if len(found) != 1 || found[0].Check != check || found[0].Verdict != v {
		r.Errorf("found %+v, want one %s of %s", found, v, check)
		return
	}
	for _, word := range words {
		if text := found[0].Text + "; " + found[0].Fix; !strings.Contains(text, word) {
			r.Errorf("%q does not contain %q", text, word)
		}
	}
}

func urlOf(addrs ...string) string { return "zk://" + strings.Join(addrs, ",") + "/locks" }

func TestDoctorPassesHealthyEnsemble(t *testing.T) {
	r := startRig(t)
	for _, f := range r.findingsAt(urlOf(r.ensemble.Addrs()...), 0, zookeeper.Options{}) {
		if f.Check != "round-trip" { // the round trip depends on this machine
			t.Errorf("found %+v", f)
		}
	}
	checks := make(map[string]int)
	for _, f := range r.newDirectDriver().Diagnose(r.WaitContext(), 0) {
		checks[f.Check]++
	}
	for check, want := range map[string]int{"reach": 3, "round-trip": 3, "leader": 3, "version": 3, "tls": 3, "sessions": 1, "rights": 1} {
		if checks[check] != want {
			t.Errorf("%d findings of %s, want %d", checks[check], check, want)
		}
	}
	if left, err := r.leftoverNodes(); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestDoctorFindsEachEnsembleFault(t *testing.T) {
	for name, run := range map[string]func(t *testing.T, r *rig){
		"nothing": func(t *testing.T, r *rig) {
			if found := r.findingsAt(urlOf(r.addrs...), 0, r.opts); len(found) > 0 {
				t.Errorf("found %+v", found)
			}
		},
		"times that the servers do not grant": func(_ *testing.T, r *rig) {
			url := urlOf(r.addrs...)
			r.wantOneFinding(r.findingsAt(url, 3*time.Second, r.opts), "ttl", driver.VerdictWarning, "election", "6 s or more")
			r.wantOneFinding(r.findingsAt(url, 2*time.Minute, r.opts), "sessions", driver.VerdictFault, "no TTL over 1m0s", "shorter TTL", "maxSessionTimeout")
		},
		"nodes of another user": func(t *testing.T, r *rig) {
			at := "zk://me:" + fixture.Escaped + "@" + strings.Join(r.addrs, ",") + r.opts.Path
			d, err := zookeeper.Open(r.WaitContext(), at, &r.opts)
			r.NoError(err)
			defer d.Close()
			r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
			if found := r.findingsAt(at, 0, r.opts); len(found) > 0 {
				t.Errorf("found %+v", found)
			}
			other := strings.Replace(at, "me:"+fixture.Escaped, "you:other", 1)
			r.wantOneFinding(r.findingsAt(other, 0, r.opts), "rights", driver.VerdictFault, "access denied", "correct user and password")
		},
		"a login that is refused": func(_ *testing.T, r *rig) {
			for _, m := range r.fake.members {
				m.noAuth = true
			}
			r.wantOneFinding(r.findingsAt("zk://me:"+fixture.Escaped+"@"+strings.Join(r.addrs, ","), 0, r.opts), "quorum", driver.VerdictFault,
				"reject the user", "scheme digest")
		},
		"the port of another program": func(_ *testing.T, r *rig) {
			r.fake.members[0].talk = func(w *wire) {
				word := make([]byte, 4)
				io.ReadFull(w, word)
				io.WriteString(w, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request")
				w.Close()
			}
			r.wantOneFinding(r.findingsAt(urlOf(r.addrs...), 0, r.opts), "reach", driver.VerdictFault, "correct its address", "write zks://")
		},
		"a server that is silent": func(_ *testing.T, r *rig) {
			r.fake.members[0].talk = func(w *wire) { io.Copy(io.Discard, w) }
			r.wantOneFinding(r.findingsAt(urlOf(r.addrs...), 0, r.opts), "reach", driver.VerdictFault, "no answer in 2s", "write zks://")
		},
		"a server of another ensemble": func(_ *testing.T, r *rig) {
			r.addEnsemble(newFake(r, 1))
			r.wantOneFinding(r.findingsAt(urlOf(r.addrs...), 0, r.opts), "distinct", driver.VerdictFault, "leads another ensemble", "members of one ensemble")
		},
		"a server that is too old": func(_ *testing.T, r *rig) {
			r.fake.members[1].version = "3.5.2-1"
			r.wantOneFinding(r.findingsAt(urlOf(r.addrs...), 0, r.opts), "version", driver.VerdictFault, "3.5.2", "3.5.3 or newer")
		},
		"a server that may not answer": func(_ *testing.T, r *rig) {
			r.fake.members[1].words = "srvr is not executed because it is not in the whitelist.\n"
			r.wantOneFinding(r.findingsAt(urlOf(r.addrs...), 0, r.opts), "leader", driver.VerdictWarning, "does not report the leader", "whitelist")
		},
		"members that are down": func(t *testing.T, r *rig) {
			r.fake.members[0].refuse = true
			r.wantOneFinding(r.findingsAt(urlOf(r.addrs...), 0, r.opts), "reach", driver.VerdictFault, "refused", "start it")
			r.fake.members[1].refuse, r.fake.members[2].words = true, "This ZooKeeper instance is not currently serving requests\n"
			var checks []string
			for _, f := range r.findingsAt(urlOf(r.addrs...), 0, r.opts) {
				checks = append(checks, f.Check)
			}
			if slices.Sort(checks); !slices.Equal(checks, []string{"leader", "reach", "reach"}) {
				t.Errorf("found %q", checks)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { runInBubble(t, run) })
	}
}

// addEnsemble adds the members of another ensemble to the members of r.
func (r *rig) addEnsemble(other *fake) {
	for i, m := range other.members {
		m.addr = fmt.Sprintf("y%d:2181", i+1)
	}
	r.addrs = append(r.addrs, other.addrs()...)
	r.opts = *zookeeper.WithDial(r.opts, func(ctx context.Context, addr string) (net.Conn, error) {
		if addr[0] == 'y' {
			return other.dial(ctx, addr)
		}
		return r.fake.dial(ctx, addr)
	})
}

func TestDoctorFindsCertificateFaults(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		cert, config := r.useTLS(t.TempDir(), 90*24*time.Hour)
		with := func(change func(*tls.Config)) []driver.Finding {
			opts := r.opts
			opts.TLS = config.Clone()
			change(opts.TLS)
			return r.findingsAt(urlOf(r.addrs...), 0, opts)
		}
		in := func(days time.Duration) func(c *tls.Config) {
			return func(c *tls.Config) { c.Time = func() time.Time { return time.Now().Add(days * 24 * time.Hour) } } // the certificate is valid for 90 days
		}
		each := func(found []driver.Finding, n int, check string, v driver.Verdict, words ...string) {
			t.Helper()
			for _, f := range found {
				r.wantOneFinding([]driver.Finding{f}, check, v, words...)
			}
			if len(found) != n {
				t.Errorf("found %+v, want %d", found, n)
			}
		}
		each(with(in(0)), 0, "", "")
		each(with(in(87)), 6, "tls", driver.VerdictWarning, "certificate ends on ", "in 3 days", "renew it") // of each server and of the client
		each(with(in(91)), 3, "reach", driver.VerdictFault, "expired", "renew its certificate")
		each(with(func(c *tls.Config) { c.ServerName = "zk.example" }), 3, "reach", driver.VerdictFault, "zk.example", "use a name of its certificate", "servername")
		each(with(func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }), 3, "reach", driver.VerdictFault, "unknown authority", "give the CA")
		each(with(func(c *tls.Config) { c.Certificates = nil }), 3, "reach", driver.VerdictFault, "cert and key")
		each(r.findingsAt(urlOf(r.addrs...), 0, r.opts), 3, "reach", driver.VerdictFault, "write zks://")
		r.NoError(os.Chmod(cert.Key, 0o644))
		url := "zks" + strings.TrimPrefix(urlOf(r.addrs...), "zk") + "?ca=" + cert.Cert + "&cert=" + cert.Cert + "&key=" + cert.Key
		each(r.findingsAt(url, 0, r.opts), 1, "files", driver.VerdictWarning, cert.Key, "chmod o= ")
		for _, m := range r.fake.members {
			m.tls = nil
		}
		each(r.findingsAt(url, 0, r.opts)[1:], 3, "reach", driver.VerdictFault, "write zk://") // after the finding about the file
	})
}

// useTLS makes the members of a fake speak TLS. The certificate is valid for good, is stored in dir, and
// serves the client too.
func (r *rig) useTLS(dir string, good time.Duration) (*redisproc.Certificate, *tls.Config) {
	r.Helper()
	cert, err := redisproc.NewCertificateLike(dir, func(c *x509.Certificate) {
		c.DNSNames, c.NotAfter = nil, time.Now().Add(good)
		for _, addr := range r.addrs {
			host, _, _ := strings.Cut(addr, ":")
			c.DNSNames = append(c.DNSNames, host)
		}
	})
	r.NoError(err)
	client, err := cert.Client()
	r.NoError(err)
	r.fake.update(func() {
		for _, m := range r.fake.members {
			m.tls = &tls.Config{Certificates: client.Certificates, ClientCAs: client.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert}
		}
	})
	return cert, client
}
