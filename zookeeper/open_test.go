package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/zookeeper"
)

func openPlain(ctx context.Context, url string) (*zookeeper.Driver, error) {
	return zookeeper.Open(ctx, url, nil)
}

// No error shows a password.
func TestBadURLErrorNamesTheFix(t *testing.T) {
	t.Parallel()
	fixture.CheckBadURLs(t, openPlain, map[string]string{
		"h1:2181":                           "zk://host:2181",
		"http://h1:2181":                    "zk://host:2181",
		"zk://":                             "host 1 of 1 is missing",
		"zk:///path":                        "host 1 of 1 is missing",
		"zk://h1:port":                      "host 1 of 1",
		"zk://h1:1:2":                       "host 1 of 1",
		"zk://h1:70000":                     "host 1 of 1",
		"zk://h1,,h2/path":                  "host 2 of 3 is missing",
		"zk://h1,h1:2181":                   "named twice",
		"zk://h1/a//b":                      "not a path for locks",
		"zk://h1/a/../b":                    "not a path for locks",
		"zk://h1/a%00b":                     "not a path for locks",
		"zk://h1/zookeeper/quota":           "the servers' own",
		"zk://h1/locks/lock:team":           "are locks",
		"zk://me:h1dden%zz@h1:2181":         "%-escape",
		"zk://me@h1:2181":                   "without a password",
		"zk://me%3Ayou:h1dden@h1:2181":      "may not have a colon",
		"zk://me:h1dden@h1:2181/p?ca=x":     "parameter ca",
		"zk://me:h1dden@h1:2181/p?tls=yes":  "neither true nor false",
		"zks://me:h1dden@h1/p?tls=false":    "leave out one of them",
		"zks://me:h1dden@h1:2181/p?chroot=": "parameter 1 of 1 after ? is not known",
		"zks://h1:2181/?cert=x":             "both or neither",
		"zks://h1:2181/?ca=/no/such/file":   "/no/such/file",
		"zks://h1:2181/?ca=open_test.go":    "no certificate",
		"zk://h1:2181/path#h1dden":          "# as %23",
	})
}

// A lock taken through one URL is held for a driver with the same path, and for no other.
func TestURLNamesMembersAndPath(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		url := "zk://" + strings.Join(r.addrs, ",")
		for path, node := range map[string]string{"/a/b/c": "/a/b/c", "/d/": "/d", "": "/holdfast", "/": "/holdfast"} {
			d, err := zookeeper.Open(r.WaitContext(), url+path, zookeeper.WithDial(zookeeper.Options{}, r.fake.dial))
			r.NoError(err)
			g := r.AcquireGrant(d, t.Name(), longTTL)
			for other, held := range map[string]bool{node: true, "/a": false} {
				looker, err := r.openAt(other)
				r.NoError(err)
				if st, err := looker.Inspect(r.WaitContext(), t.Name()); err != nil || st.Held != held {
					t.Errorf("%q: below %s held is %v, %v", path, other, st.Held, err)
				}
				r.NoError(looker.Close())
			}
			r.NoError(d.Release(r.WaitContext(), g, 0))
			r.NoError(d.Close())
		}
	})
}

// Open does not fail, because the ensemble may return soon.
func TestOpenAcceptsEnsembleThatIsDown(t *testing.T) {
	t.Parallel()
	d, err := zookeeper.Open(t.Context(), "zk://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", nil)
	fixture.CheckOpensWhenDown(t, d, err)
}

// Another user, or one with a wrong password, gets an error that names the cause.
func TestNodesArePrivateToUser(t *testing.T) {
	r := startRig(t)
	open := func(login string) (*zookeeper.Driver, error) {
		return zookeeper.Open(r.WaitContext(), "zk://"+login+strings.Join(r.ensemble.Addrs(), ",")+r.opts.Path, nil)
	}
	const login = "me:" + fixture.Escaped + "@"
	d, err := open(login)
	r.NoError(err)
	defer d.Close()
	r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
	for _, login := range []string{"me:wr0ng@", "nobody:wr0ng@", ""} {
		d, err := open(login)
		if err == nil {
			_, err = d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL})
			d.Close()
		}
		fixture.CheckDenied(t, login, err, driver.ErrAuth, "correct user and password")
	}
	other, err := open(login)
	r.NoError(err)
	defer other.Close()
	holder, waiter := r.Client(d), r.Client(other)
	l := r.Acquire(holder, "k", longTTL)
	next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", longTTL) })
	r.NoError(l.Extend(r.WaitContext(), longTTL))
	r.Release(l)
	r.Release(<-next)
}

// writeKeyStore writes the key and the certificate to one file, for a server, and returns its path.
func writeKeyStore(t *testing.T, cert *redisproc.Certificate) string {
	var both []byte
	for _, name := range []string{cert.Key, cert.Cert} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, text...)
	}
	name := filepath.Join(t.TempDir(), "store.pem")
	if err := os.WriteFile(name, both, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Both the members and the client present a certificate.
func TestClientConnectsWithMutualTLS(t *testing.T) {
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	r := startAlone(t, 1, "secureClientPort", "ssl.keyStore.location="+writeKeyStore(t, cert), "ssl.trustStore.location="+cert.Cert, "ssl.trustStore.type=PEM")
	m := r.ensemble.Members[0]
	fixture.CheckTLSFix(r.Rig, openPlain, map[string]string{
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
		d, err := zookeeper.Open(r.WaitContext(), url, opts)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		g := r.AcquireGrant(d, "k", longTTL)
		r.NoError(d.Release(r.WaitContext(), g, 0))
		r.NoError(d.Close())
	}
}

// The servers would silently shorten or lengthen the session.
func TestTTLOutsideServerLimitsIsRejected(t *testing.T) {
	r := startAlone(t, 1, "minSessionTimeout=5000", "maxSessionTimeout=9000")
	c := r.Client(r.newDirectDriver())
	for ttl, want := range map[time.Duration]string{
		2 * time.Second:         "no TTL under 5s, and 2s was asked for; take a longer TTL, or give the servers a shorter minSessionTimeout",
		10 * time.Second:        "no TTL over 9s, and 10s was asked for; take a shorter TTL, or give the servers a longer maxSessionTimeout",
		9001 * time.Millisecond: "no TTL over 9s",
	} {
		_, err := c.Acquire(r.WaitContext(), "k", &holdfast.AcquireOptions{TTL: ttl})
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("Acquire() = %v, want ErrInvalid and %q", err, want)
		}
	}
	for _, ttl := range []time.Duration{5 * time.Second, 9 * time.Second} {
		r.Release(r.Acquire(c, "k", ttl))
	}
	if st, err := c.Inspect(r.WaitContext(), "k"); err != nil || st.Held {
		t.Errorf("Inspect() = %+v, %v", st, err)
	}
}

// Otherwise the servers would keep the session until it expires.
func TestRejectedSessionIsClosed(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		for n := range 3 {
			_, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: 2 * time.Minute})
			if !errors.Is(err, driver.ErrInvalid) {
				t.Fatalf("Acquire() = %v, want ErrInvalid, as these servers grant 1m", err)
			}
			if counts := r.Counts(d); counts["greeting"] != n+1 || counts["close"] != n+1 {
				t.Errorf("%d sessions were opened and %d closed, want %d", counts["greeting"], counts["close"], n+1)
			}
		}
	})
}

// The locks of one ensemble do not exclude holders in the other.
func TestMembersOfTwoEnsemblesAreRejected(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		r.addEnsemble(newFake(t, 1))
		d, err := zookeeper.New(r.WaitContext(), r.addrs, &r.opts)
		if err == nil {
			d.Close()
		}
		if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "lead two ensembles") {
			t.Errorf("New() = %v", err)
		}
		d = r.newDirectDriver()
		synctest.Wait() // the driver has probed all members
		if g, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL}); err == nil || !strings.Contains(err.Error(), "lead two ensembles") {
			t.Errorf("Acquire() = %+v, %v", g, err)
		}
	})
}

// A deposed leader reports that it leads until it notices.
func TestDeposedLeaderIsNotSecondEnsemble(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		r.fake.members[0].words = "Zookeeper version: 3.8.0\nZxid: 0x5\nMode: leader\n"
		d, err := zookeeper.New(t.Context(), r.addrs, &r.opts)
		d = fixture.CloseAtEnd(r.Rig, d, err)
		r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
	})
}

// A session under one name goes on under the other.
func TestTwoNamesOfLeaderAreOneEnsemble(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		opts := zookeeper.WithDial(r.opts, func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == "alias:2181" {
				addr = r.fake.members[2].addr
			}
			return r.fake.dial(ctx, addr)
		})
		addrs := append(r.addrs, "alias:2181")
		d, err := zookeeper.New(t.Context(), addrs, opts)
		d = fixture.CloseAtEnd(r.Rig, d, err)
		synctest.Wait()
		r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
		for _, f := range r.findingsAt(urlOf(addrs...), 0, *opts) {
			if f.Bad() {
				t.Errorf("the doctor finds %+v", f)
			}
		}
	})
}

// Held locks survive.
func TestFullQuotaRejectsNewLocks(t *testing.T) {
	r := startAlone(t, 1, "enforceQuota=true")
	d := r.newDirectDriver()
	held := r.AcquireGrant(d, "held", longTTL)
	quota := "/zookeeper/quota" + r.opts.Path
	r.NoError(d.Put(r.WaitContext(), quota+"/zookeeper_limits", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=5"))
	r.NoError(d.Put(r.WaitContext(), quota+"/zookeeper_stats", "count=5,bytes=0"))
	var err error
	for i := 0; err == nil && i < 10; i++ {
		_, err = d.Acquire(r.WaitContext(), driver.Request{Key: fmt.Sprint("k", i), TTL: longTTL})
	}
	if err == nil || !strings.Contains(err.Error(), "quota") || !strings.Contains(err.Error(), "raise it") {
		t.Errorf("Acquire() = %v, want what to do about the quota", err)
	}
	r.NoError(d.Renew(r.WaitContext(), []driver.Grant{held})[0].Err)
	r.NoError(d.Release(r.WaitContext(), held, 0))
	r.AcquireGrant(d, "held", longTTL) // there is room for one again
}

// A lock below an inner path is not a waiter for the outer path's lock with that name, neither while it is held
// nor afterwards.
func TestNestedPathsAreIndependent(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		within := func(more string) *zookeeper.Driver {
			d, err := r.openAt(r.opts.Path + more)
			return fixture.CloseAtEnd(r.Rig, d, err)
		}
		outer, inner := within(""), within("/team")
		listed := func(d *zookeeper.Driver) (keys []string) {
			r.NoError(d.List(r.WaitContext(), "", func(st driver.Status) bool { keys = append(keys, st.Key); return true }))
			slices.Sort(keys)
			return keys
		}
		for _, name := range []string{"job-7", "ABCDEFGHIJKLMNOPQRSTUVWXYZ.1-0000000000", "lock:job-7", "-1"} {
			below := r.AcquireGrant(inner, name, longTTL)
			for _, held := range []bool{true, false} {
				if st, err := outer.Inspect(r.WaitContext(), "team"); err != nil || st.Held {
					t.Errorf("%q held is %v below: Inspect() of the outer lock = %+v, %v", name, held, st, err)
				}
				g, err := outer.Acquire(r.WaitContext(), driver.Request{Key: "team", TTL: longTTL, NoWait: true})
				if err != nil {
					t.Fatalf("%q held is %v below: the outer lock: %v", name, held, err)
				}
				if n := outer.Renew(r.WaitContext(), []driver.Grant{g})[0]; n.Err != nil || n.Waiters != 0 {
					t.Errorf("%q held is %v below: Renew() = %+v", name, held, n)
				}
				if keys := listed(outer); !slices.Equal(keys, []string{"team"}) {
					t.Errorf("the outer path contains %q", keys)
				}
				if keys := listed(inner); held != slices.Equal(keys, []string{name}) || !held && len(keys) > 0 {
					t.Errorf("the inner path contains %q, and %q held is %v", keys, name, held)
				}
				r.NoError(outer.Release(r.WaitContext(), g, 0))
				if held {
					r.NoError(inner.Check(r.WaitContext(), below))
					r.NoError(inner.Release(r.WaitContext(), below, 0))
				}
			}
		}
	})
}
