package etcd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

var _ driver.Doctor = (*etcd.Driver)(nil)

// findingsAt returns the bad findings for the members at these addresses.
func (r *rig) findingsAt(addrs []string, ttl time.Duration) []driver.Finding {
	r.Helper()
	d, err := r.openDriver(addrs, withoutCheck(r.opts))
	r.NoError(err)
	defer d.Close()
	return r.badFindings(d.Diagnose(r.WaitContext(), ttl))
}

// diagnosedAt returns the bad findings for the cluster at url.
func (r *rig) diagnosedAt(url string, ttl time.Duration, opts *etcd.Options) []driver.Finding {
	r.Helper()
	found, err := runDoctor(r.WaitContext(), url, ttl, opts)
	r.NoError(err)
	return r.badFindings(found)
}

// badFindings returns the bad findings except the version, which depends on the etcd of this machine.
func (r *rig) badFindings(found []driver.Finding) (bad []driver.Finding) {
	r.Helper()
	for _, f := range found {
		if f.Bad() && f.Check != "version" {
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

func urlOf(addrs ...string) string { return "etcd://" + strings.Join(addrs, ",") + "/locks" }

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

func TestDoctorPassesHealthyCluster(t *testing.T) {
	r := startAlone(t, 3)
	before, err := r.direct.Get(r.WaitContext(), "\x00", clientv3.WithFromKey())
	r.NoError(err)
	if found := r.diagnosedAt(urlOf(r.cluster.Addrs()...), 0, nil); len(found) > 0 {
		t.Errorf("found %+v", found)
	}
	found, err := r.Client(r.newDirectDriver()).Diagnose(r.WaitContext(), 0)
	checks := make(map[string]int)
	for _, f := range found {
		checks[f.Check]++
	}
	for _, check := range []string{"reach", "round-trip", "version", "leader", "alarm", "tls"} {
		if checks[check] != 3 {
			t.Errorf("%d findings of %s, want one for each member: %v, %v", checks[check], check, found, err)
		}
	}
	if checks["rights"] != 1 || checks["members"] != 1 || checks["floor"] != 1 {
		t.Errorf("found %+v", found)
	}
	r.Eventually("no lease is left", func() bool { // a follower may see it a moment later
		leases, err := r.direct.Leases(r.WaitContext())
		return err == nil && len(leases.Leases) == 0
	})
	after, err := r.direct.Get(r.WaitContext(), "\x00", clientv3.WithFromKey())
	r.NoError(err)
	if after.Header.Revision != before.Header.Revision {
		t.Errorf("revision %d, then %d: the doctor wrote something", before.Header.Revision, after.Header.Revision)
	}
}

func TestDoctorFindsEachClusterFault(t *testing.T) {
	t.Parallel()
	faults := func(name string, members int, test func(r *rig)) {
		t.Run(name, func(t *testing.T) { inBubbleOf(t, members, test) })
	}
	faults("nothing", 3, func(r *rig) {
		if found := r.findingsAt(r.addrs(), 0); len(found) > 0 {
			r.Errorf("found %+v", found)
		}
	})
	faults("a member that is not named, and TTLs under an election", 3, func(r *rig) {
		r.wantOneFinding(r.findingsAt(r.addrs()[:2], 0), "members", driver.VerdictWarning, "3 members, and 2 are named")
		r.wantOneFinding(r.findingsAt(r.addrs(), 2*time.Second), "ttl", driver.VerdictWarning, "election", "5 s or more")
	})
	faults("a member that hangs", 3, func(r *rig) {
		l := r.proxyTo(r.addrs()[2])
		l.Set(func() { l.Hole = true })
		r.wantOneFinding(r.findingsAt([]string{r.addrs()[0], r.addrs()[1], l.Addr}, 0), "reach", driver.VerdictFault, "no answer in")
	})
	faults("a member of another cluster", 2, func(r *rig) {
		r.fake.members[1].update(func(m *fakeMember) {
			m.twist = func(_ string, reply proto.Message) {
				if h, ok := reply.(interface{ GetHeader() *pb.ResponseHeader }); ok && h.GetHeader() != nil {
					h.GetHeader().ClusterId = 8
				}
			}
		})
		r.wantOneFinding(r.findingsAt(r.addrs(), 0), "distinct", driver.VerdictFault, "another cluster than", "one cluster")
	})
	faults("a floor of TTLs above that of the locks", 1, func(r *rig) {
		r.fake.floor = 30
		r.wantOneFinding(r.findingsAt(r.addrs(), 10*time.Second), "floor", driver.VerdictFault, "no TTL under 30s", "longer TTL", "election-timeout")
		if found := r.findingsAt(r.addrs(), 30*time.Second); len(found) > 0 {
			r.Errorf("found %+v", found)
		}
	})
	faults("an alarm", 1, func(r *rig) {
		r.fake.members[0].update(func(m *fakeMember) { m.alarm = []string{"memberID:1 alarm:NOSPACE "} })
		r.wantOneFinding(r.findingsAt(r.addrs(), 0), "alarm", driver.VerdictFault, "NOSPACE", "alarm disarm")
	})
	for what, c := range map[string]struct {
		status  func(*pb.StatusResponse)
		check   string
		verdict driver.Verdict
		words   []string
	}{
		"a learner": {func(s *pb.StatusResponse) { s.IsLearner = true }, "leader", driver.VerdictFault, []string{"promote it"}},
		"a member far behind": {
			func(s *pb.StatusResponse) { s.RaftIndex = 5000 }, "leader", driver.VerdictWarning, []string{"5000 entries behind", "disk"},
		},
		"little space": {
			func(s *pb.StatusResponse) { s.DbSize, s.DbSizeQuota = 95<<20, 100<<20 }, "alarm", driver.VerdictWarning, []string{"95 MB of 100 MB", "raise the quota"},
		},
	} {
		faults(what, 1, func(r *rig) {
			r.fake.members[0].update(func(m *fakeMember) { m.status = c.status })
			r.wantOneFinding(r.findingsAt(r.addrs(), 0), c.check, c.verdict, c.words...)
		})
	}
	faults("a role that only reads", 1, func(r *rig) {
		r.fake.members[0].update(func(m *fakeMember) {
			m.fail = func(method string) error {
				if method == "Txn" {
					return rpctypes.ErrGRPCPermissionDenied
				}
				return nil
			}
		})
		r.wantOneFinding(r.findingsAt(r.addrs(), 0), "rights", driver.VerdictFault, "permission denied", "read and write")
	})
	t.Run("a member that is down", func(t *testing.T) {
		r := startAlone(t, 3)
		addrs := r.cluster.Addrs()
		r.cluster.Members[0].Kill()
		r.Eventually("there is a leader", func() bool { return r.cluster.Leader(r.WaitContext()) != nil })
		r.wantOneFinding(r.diagnosedAt(urlOf(addrs...), 0, nil), "reach", driver.VerdictFault, "refused", "start it")
		r.cluster.Members[1].Kill()
		r.Eventually("the last one notices", func() bool {
			checks := make(map[string]bool)
			for _, f := range r.diagnosedAt(urlOf(addrs...), 0, nil) {
				checks[f.Check] = true
			}
			return checks["leader"] && checks["quorum"] && checks["reach"]
		})
	})
	t.Run("rights and passwords of a real cluster", func(t *testing.T) {
		r := startAlone(t, 1)
		end := clientv3.GetPrefixRangeEnd("locks/")
		for _, do := range []func() error{
			func() error { return errorOf(r.direct.UserAdd(t.Context(), "root", "root")) },
			func() error { return errorOf(r.direct.UserGrantRole(t.Context(), "root", "root")) },
			func() error { return errorOf(r.direct.UserAdd(t.Context(), "me", fixture.Secret)) },
			func() error { return errorOf(r.direct.RoleAdd(t.Context(), "looker")) },
			func() error {
				return errorOf(r.direct.RoleGrantPermission(t.Context(), "looker", "locks/", end, clientv3.PermissionType(clientv3.PermRead)))
			},
			func() error { return errorOf(r.direct.UserGrantRole(t.Context(), "me", "looker")) },
			func() error { return errorOf(r.direct.AuthEnable(t.Context())) },
		} {
			r.NoError(do())
		}
		url := "etcd://me:pass%3Aw%40rd%2F%231@" + r.cluster.Addrs()[0] + "/locks"
		r.wantOneFinding(r.diagnosedAt(url, 0, nil), "rights", driver.VerdictFault, "access denied", "read and write")
		url = "etcd://me:wrong@" + r.cluster.Addrs()[0] + "/locks"
		r.wantOneFinding(r.diagnosedAt(url, 0, nil), "reach", driver.VerdictFault, "access denied", "correct user and password")
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
		r := aloneWith(t, config, 1, "--cert-file="+cert.Cert, "--key-file="+cert.Key)
		url := urlOf(r.cluster.Addrs()...)
		if found := r.diagnosedAt(url, 0, &etcd.Options{TLS: config}); len(found) > 0 {
			t.Errorf("found %+v", found)
		}
		with := func(change func(*tls.Config)) []driver.Finding {
			c := config.Clone()
			c.Certificates = nil
			change(c)
			return r.diagnosedAt(url, 0, &etcd.Options{TLS: c})
		}
		in := func(days time.Duration) func(c *tls.Config) {
			return func(c *tls.Config) { c.Time = func() time.Time { return time.Now().Add(days * 24 * time.Hour) } } // the certificate is valid for 90 days
		}
		r.wantOneFinding(with(in(87)), "tls", driver.VerdictWarning, "certificate ends on ", "in 3 days", "renew it")
		r.wantOneFinding(with(in(91)), "reach", driver.VerdictFault, "expired", "renew its certificate")
		r.wantOneFinding(with(func(c *tls.Config) { c.ServerName = "etcd.example" }), "reach", driver.VerdictFault,
			"etcd.example", "use a name of its certificate", "servername")
		r.wantOneFinding(with(func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }), "reach", driver.VerdictFault, "unknown authority", "give the CA")
		r.wantOneFinding(r.diagnosedAt(url, 0, nil), "reach", driver.VerdictFault, "write etcds://")
		r.NoError(os.Chmod(cert.Key, 0o644))
		safe := "etcds" + strings.TrimPrefix(url, "etcd") + "?ca=" + cert.Cert + "&cert=" + cert.Cert + "&key=" + cert.Key
		r.wantOneFinding(r.diagnosedAt(safe, 0, nil), "files", driver.VerdictWarning, cert.Key, "chmod o= ")
	})
}

// runDoctor returns the doctor's findings for a URL.
func runDoctor(ctx context.Context, url string, ttl time.Duration, opts *etcd.Options) ([]driver.Finding, error) {
	var o etcd.Options
	if opts != nil {
		o = *opts
	}
	o.NoCheck = true
	d, err := etcd.Open(ctx, url, &o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Diagnose(ctx, ttl), nil
}
