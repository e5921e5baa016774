package etcd_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// startWithLogin starts a rig with a cluster that requires a login. Its drivers log in.
func startWithLogin(t *testing.T, members int, args ...string) *rig {
	t.Helper()
	r := startAlone(t, members, append(args, "--bcrypt-cost=4")...)
	for _, do := range []func() error{
		func() error { return errorOf(r.direct.UserAdd(t.Context(), "root", "root")) },
		func() error { return errorOf(r.direct.UserGrantRole(t.Context(), "root", "root")) },
		func() error { return errorOf(r.direct.UserAdd(t.Context(), "me", fixture.Secret)) },
		func() error { return errorOf(r.direct.RoleAdd(t.Context(), "locker")) },
		func() error {
			return errorOf(r.direct.RoleGrantPermission(t.Context(), "locker", r.opts.Prefix, clientv3.GetPrefixRangeEnd(r.opts.Prefix),
				clientv3.PermissionType(clientv3.PermReadWrite)))
		},
		func() error { return errorOf(r.direct.UserGrantRole(t.Context(), "me", "locker")) },
		func() error { return errorOf(r.direct.AuthEnable(t.Context())) },
	} {
		r.NoError(do())
	}
	r.opts.Username, r.opts.Password = "me", fixture.Secret
	return r
}

// jwtArgument returns an argument of etcd for login tokens that expire after ttl, even if they are used.
func jwtArgument(t *testing.T, ttl string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	var arg strings.Builder
	arg.WriteString("--auth-token=jwt,sign-method=RS256,ttl=" + ttl)
	for name, block := range map[string]*pem.Block{
		"pub-key": {Type: "PUBLIC KEY", Bytes: public}, "priv-key": {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)},
	} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		arg.WriteString("," + name + "=" + file)
	}
	return arg.String()
}

// asRoot calls do with root's client, to change users and roles.
func (r *rig) asRoot(do func(c *clientv3.Client) error) {
	r.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: r.cluster.Addrs(), Username: "root", Password: "root", DialTimeout: fixture.MaxWait()})
	r.NoError(err)
	defer c.Close()
	r.NoError(do(c))
}

// Each member gets one new login, and no lease is lost.
func TestExpiredLoginIsRenewedOnce(t *testing.T) {
	r := startWithLogin(t, 3, jwtArgument(t, "4s"))
	d := r.newDriver()
	began := time.Now()
	holder, waiter := r.Client(d), r.Client(r.newDirectDriver())
	l := r.Acquire(holder, "k", 12*time.Second)
	next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", 12*time.Second) })
	var busy sync.WaitGroup
	done := make(chan struct{})
	for range 8 { // all see at once that the login has expired
		busy.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(20 * time.Millisecond):
					if _, err := holder.Inspect(r.WaitContext(), "k"); err != nil {
						t.Errorf("Inspect() = %v", err)
					}
				}
			}
		})
	}
	r.AwaitRenewals(l, 3) // three times the lifetime of a login
	close(done)
	busy.Wait()
	if err := context.Cause(l.Context()); err != nil {
		t.Errorf("the lease ended: %v", err)
	}
	lives := 2 + int(time.Since(began)/(4*time.Second))
	for i, l := range r.Links(d) {
		if n := l.Count("Authenticate"); n > lives {
			t.Errorf("%d logins at member %d, want at most %d", n, i, lives)
		}
	}
	r.Release(l)
	r.Release(<-next)
}

// The members then reject older JWT tokens.
func TestRoleChangeRenewsLogin(t *testing.T) {
	r := startWithLogin(t, 1, jwtArgument(t, "1h"))
	d := r.newDriver()
	g := r.AcquireGrant(d, "k", longTTL)
	r.asRoot(func(c *clientv3.Client) error { return errorOf(c.UserRevokeRole(t.Context(), "me", "locker")) })
	_, err := d.Acquire(r.WaitContext(), driver.Request{Key: "other", TTL: longTTL, NoWait: true})
	if err == nil || !strings.Contains(err.Error(), "grant a role") {
		t.Errorf("without its role: Acquire() = %v", err)
	}
	if err := d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err; err == nil || !strings.Contains(err.Error(), "grant a role") {
		t.Errorf("without its role: Renew() = %v", err)
	}
	r.asRoot(func(c *clientv3.Client) error { return errorOf(c.UserGrantRole(t.Context(), "me", "locker")) })
	r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
	r.NoError(d.Release(r.WaitContext(), g, 0))
}

// The members are restarted one by one, and each forgets its logins.
func TestLoginSurvivesMemberRestarts(t *testing.T) {
	r := startWithLogin(t, 3)
	const clients = 10
	var leases []*holdfast.Lease
	var drivers []driver.Driver
	for i := range clients {
		drivers = append(drivers, r.newDriver())
		leases = append(leases, r.Acquire(r.Client(drivers[i]), string(rune('a'+i)), 12*time.Second))
	}
	for _, m := range r.cluster.Members {
		m.Kill()
		r.NoError(m.Restart(r.WaitContext()))
		for _, l := range leases {
			r.AwaitRenewals(l, 1)
		}
	}
	for i, l := range leases {
		if err := context.Cause(l.Context()); err != nil {
			t.Errorf("lease %d ended: %v", i, err)
		}
		for j, link := range r.Links(drivers[i]) {
			if n := link.Count("Authenticate"); n > 4 {
				t.Errorf("client %d logged in %d times at member %d", i, n, j)
			}
		}
		r.Release(l)
	}
}

// A member expires a login that is not used for a while.
func TestExpiredLoginIsRenewedOnAllMembers(t *testing.T) {
	r := startWithLogin(t, 3, "--auth-token-ttl=1")
	d := r.newDriver()
	c := r.Client(d)
	l := r.Acquire(c, "k", 10*time.Second)
	for _, m := range r.cluster.Members {
		r.AwaitRenewals(l, 1) // takes seconds
		r.NoError(m.Pause())
		other := r.Acquire(c, "other", 5*time.Second)
		r.Release(other)
		r.NoError(m.Resume())
	}
	if err := context.Cause(l.Context()); err != nil {
		t.Errorf("the lease ended: %v", err)
	}
	r.Release(l)
}

// The error names the login. The login continues after its caller has left.
func TestErrorNamesUnansweredLogin(t *testing.T) {
	r := startWithLogin(t, 1)
	d := r.newDriver()
	r.AcquireGrant(d, "k", longTTL)
	r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Stop, l.Halted = "Authenticate", true })
	r.asRoot(func(c *clientv3.Client) error {
		return errorOf(c.UserChangePassword(t.Context(), "me", fixture.Secret))
	}) // ends all logins
	var err error
	r.Eventually("the login is asked for", func() bool {
		_, err = d.Acquire(r.WaitContext(), driver.Request{Key: "other", TTL: 2 * time.Second, NoWait: true}) // short: it is not granted
		return err != nil && strings.Contains(err.Error(), "login: no answer in")
	})
	before := r.Counts(d)["Authenticate"]
	r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Stop, l.Halted = "", false })
	g := r.AcquireGrant(d, "other", longTTL)
	if n := r.Counts(d)["Authenticate"]; n > before+1 {
		t.Errorf("%d more logins, want none or one", n-before)
	}
	r.NoError(d.Release(r.WaitContext(), g, 0))
}

// The old login has expired by the time its connection is cut.
func TestNewLoginRestartsWatches(t *testing.T) {
	r := startWithLogin(t, 1, jwtArgument(t, "4s"))
	waiting := r.newDriver()
	l := r.Acquire(r.Client(r.newDirectDriver()), "k", 5*time.Second)
	waiter := r.Client(waiting)
	next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", 30*time.Second) })
	r.Eventually("the waiter watches", func() bool { return r.Counts(waiting)["Watch"] > 0 })
	logins := r.Counts(waiting)["Authenticate"]
	r.Eventually("its login has run out", func() bool { return r.Counts(waiting)["Authenticate"] > logins })
	before := r.Counts(waiting)["Watch"]
	for _, l := range r.Links(waiting) {
		l.Cut()
	}
	r.Eventually("the waiter watches again", func() bool { return r.Counts(waiting)["Watch"] > before })
	r.Release(l)
	r.Release(<-next)
}

// A cluster may turn authentication on while clients have leases.
func TestLeaseSurvivesEnablingAuthentication(t *testing.T) {
	r := startWithLogin(t, 1)
	r.asRoot(func(c *clientv3.Client) error { return errorOf(c.AuthDisable(t.Context())) })
	d, err := etcd.New(r.Context(), r.cluster.Addrs(), withoutCheck(r.opts))
	r.NoError(err)
	defer d.Close()
	g := r.AcquireGrant(d, "k", longTTL)
	r.NoError(errorOf(r.direct.AuthEnable(t.Context())))
	r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
	r.NoError(d.Release(r.WaitContext(), g, 0))
}
