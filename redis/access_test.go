package redis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

const secretPassword = "hunter2-s3cret"

// permissions are the permissions in docs/operations.md. No others are needed.
var permissions = []string{
	"+auth", "+hello", "+client|setname", "+ping", "+info", "+time",
	"+script|load", "+evalsha",
	"+get", "+set", "+del", "+exists", "+incrby", "+pexpire", "+pttl",
	"+zadd", "+zrangebyscore", "+zcard", "+zcount", "+zscore", "+zrem",
	"+publish", "+pubsub|numsub", "+subscribe", "+unsubscribe",
}

func aclUser(name string, commands ...string) string {
	return fmt.Sprintf("%s on >%s resetkeys ~lock:* ~holdfast:* resetchannels &holdfast:wake:* -@all %s", name, secretPassword, strings.Join(commands, " "))
}

// startLockers starts a server with one user, who may run the given commands, and two clients that log in as
// that user. The first client sends node events to events.
func startLockers(t *testing.T, commands ...string) (r *rig, c, other *holdfast.Client, events <-chan driver.NodeEvent) {
	t.Helper()
	r = startWith(t, &redisproc.Options{ACL: []string{aclUser("locker", commands...)}})
	opts := &redis.Options{Username: "locker", Password: secretPassword}
	told := make(chan driver.NodeEvent, 100)
	hooks := &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) { told <- e }}}
	return r, r.clientOf(r.openDriver(r.nodes(), opts), hooks), r.clientOf(r.openDriver(r.nodes(), opts), nil), told
}

func TestOperationsPageListsPermissions(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	want := "~lock:* ~holdfast:* resetchannels &holdfast:wake:* -@all " + strings.Join(permissions, " ")
	if !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(string(text), "\\\n", " ")), " "), want) {
		t.Errorf("docs/operations.md does not have the ACL line %q", want)
	}
}

// The test uses the ACL of docs/security.md, for two tenants.
func TestTenantsOfSecurityPageAreIsolated(t *testing.T) {
	page, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, acl, found := strings.Cut(string(page), "ACL SETUSER ")
	acl, _, _ = strings.Cut(acl, "```")
	acl = strings.Join(strings.Fields(strings.ReplaceAll(strings.ReplaceAll(acl, "\\\n", " "), "PASSWORD", secretPassword)), " ")
	if !found {
		t.Fatal("docs/security.md has no ACL for tenants")
	}
	r := startWith(t, &redisproc.Options{ACL: []string{acl, strings.ReplaceAll(acl, "billing", "orders")}})
	tenant := func(name string) *holdfast.Client {
		return r.clientOf(r.openDriver(r.nodes(), &redis.Options{Username: name, Password: secretPassword, Prefix: name + ":lock:"}), nil)
	}
	billing, next, orders := tenant("billing"), tenant("billing"), tenant("orders")
	theirs := r.acquire(orders, "k", &holdfast.AcquireOptions{TTL: longTTL})
	l := r.acquire(billing, "k", &holdfast.AcquireOptions{TTL: longTTL})
	waits := fixture.RunAsync(func() *holdfast.Lease { return r.acquire(next, "k", nil) })
	r.awaitWaiters(billing, "k", 1)
	r.release(l)
	r.release(<-waits)
	if denied := r.deniedCommands(); len(denied) != 0 {
		t.Errorf("ACL LOG = %v, want nothing denied", denied)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.servers[0].Addr())
	r.noError(err)
	defer conn.Close()
	raw := resp.NewConn(conn)
	if _, err := server.Ask(raw, []string{"AUTH", "billing", secretPassword}); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range [][]string{
		{"GET", "orders:lock:k"},
		{"SET", "orders:lock:k", "mine"},
		{"DEL", "orders:lock:k"},
		{"PEXPIRE", "orders:lock:k", "1"},
		{"ZADD", wire.QueueKey("orders:lock:k"), "1", "x"},
		{"DEL", wire.QueueKey("orders:lock:k")},
		{"SET", wire.SetKey("orders:lock:"), "x"},
		{"SCAN", "0"},
		{"PSUBSCRIBE", "*"},
		{"MONITOR"},
		{"FLUSHALL"},
		{"CONFIG", "GET", "*"},
		{"CLIENT", "LIST"},
	} {
		if _, err := server.Ask(raw, cmd); err == nil || !server.LacksPermission(err.Error()) {
			t.Errorf("%q = %v, want a missing permission", cmd, err)
		}
	}
	if err := theirs.Check(t.Context()); err != nil {
		t.Error(err)
	}
	r.release(theirs)
}

func TestUserWithMinimalPermissionsCanLock(t *testing.T) {
	r, c, other, events := startLockers(t, permissions...)
	for range 3 {
		l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL})
		next := r.waitAndRelease(other, "k", nil)
		r.awaitWaiters(c, "k", 1)
		if err := r.retryLate(func() error { return l.Extend(t.Context(), longTTL) }); err != nil {
			t.Error(err)
		}
		r.release(l)
		if err := <-next; err != nil {
			t.Errorf("the waiter: %v", err)
		}
		// After a force-release the server gives the lock to the next waiter.
		l = r.acquire(c, "k", nil)
		if err := other.ForceRelease(t.Context(), "k", l.Token(), ""); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			t.Error(err)
		}
	}
	r.checkCleared()
	if denied := r.deniedCommands(); len(denied) != 0 {
		t.Errorf("ACL LOG = %v, want nothing denied", denied)
	}
	if told := eventsOfChanges(events); len(told) > 0 {
		t.Errorf("node events %+v", told)
	}
	// Listing locks needs one more permission.
	for _, err := range c.List(t.Context(), "") {
		checkMentions(t, err, "NOPERM", "grant it +scan")
		if !errors.Is(err, driver.ErrAuth) {
			t.Errorf("%v does not match driver.ErrAuth", err)
		}
	}
}

// deniedCommands returns the commands that the ACL of the first server has denied.
func (r *rig) deniedCommands() []any {
	list, _ := r.do(0, "ACL", "LOG").([]any)
	return list
}

// awaitWaiters blocks until every node has n waiters for key.
func (r *rig) awaitWaiters(c *holdfast.Client, key string, n int) {
	r.Helper()
	r.eventually(fmt.Sprintf("%d waiters on every node", n), func() bool {
		st, err := c.Inspect(r.Context(), key)
		if err != nil {
			return false
		}
		for _, node := range st.Nodes {
			if node.Waiters != n {
				return false
			}
		}
		return true
	})
}

// A missing permission is reported when the driver is opened, not when the first lock is released.
func TestOpenNamesMissingPermission(t *testing.T) {
	var users []string
	for i := range permissions {
		less := append(append([]string(nil), permissions[:i]...), permissions[i+1:]...)
		users = append(users, aclUser(fmt.Sprintf("user%d", i), less...))
	}
	users = append(users, strings.Replace(aclUser("nofence", permissions...), "~holdfast:*", "~holdfast:set ~holdfast:queue:* ~holdfast:client:*", 1))
	users = append(users, strings.Replace(aclUser("nolock", permissions...), "~lock:*", "", 1))
	r := startWith(t, &redisproc.Options{ACL: users})
	addr := r.servers[0].Addr()
	for i, right := range permissions {
		name := strings.TrimPrefix(right, "+")
		command, _, _ := strings.Cut(name, "|")
		opts := &redis.Options{Username: fmt.Sprintf("user%d", i), Password: secretPassword}
		switch name {
		case "auth", "hello", "ping", "client|setname", "publish", "pubsub|numsub", "subscribe", "unsubscribe":
			continue // tested below
		}
		d, err := r.open(r.nodes(), opts)
		if err == nil {
			d.Close()
			t.Errorf("without %s: Open succeeded", right)
			continue
		}
		if !errors.Is(err, driver.ErrAuth) {
			t.Errorf("without %s: %v does not match driver.ErrAuth", right, err)
		}
		checkMentions(t, err, addr, "docs/operations.md")
		if !strings.Contains(strings.ToLower(err.Error()), command) {
			t.Errorf("without %s: %v does not name it", right, err)
		}
	}
	for _, name := range []string{"nofence", "nolock"} {
		r.checkRejected(r.nodes(), &redis.Options{Username: name, Password: secretPassword}, driver.ErrAuth, addr, "key", "docs/operations.md")
	}
}

func TestPasswordWorksOnEachKindOfServer(t *testing.T) {
	r := startWith(t, &redisproc.Options{Password: secretPassword})
	addr := r.servers[0].Addr()
	r.checkRejected(r.nodes(), nil, driver.ErrAuth, addr, "asks for a password", "give user and password")
	r.checkRejected(r.nodes(), &redis.Options{Password: "wrong-" + secretPassword}, driver.ErrAuth, addr, "correct user and password")
	r.checkRejected(r.nodes(), &redis.Options{Username: "nobody", Password: secretPassword}, driver.ErrAuth, addr, "correct user and password")
	for _, opts := range []redis.Options{{Password: secretPassword}, {Username: "default", Password: secretPassword}} {
		c := r.clientOf(r.openDriver(r.nodes(), &opts), nil)
		r.release(r.acquire(c, "k", nil))
	}
	// A node's own password replaces the password in the options.
	node := redis.Node{Addr: addr, Password: secretPassword}
	c := r.clientOf(r.openDriver([]redis.Node{node}, &redis.Options{Password: "wrong"}), nil)
	r.release(r.acquire(c, "k", nil))

	open := redistest.Start(t, nil)
	d, err := r.open([]redis.Node{{Addr: open.Addr()}}, &redis.Options{Password: secretPassword})
	if err == nil {
		d.Close()
	} else {
		checkMentions(t, err, open.Addr(), "correct user and password")
	}
}

func TestErrorsHidePasswords(t *testing.T) {
	r := startWith(t, &redisproc.Options{Password: secretPassword})
	addr := r.servers[0].Addr()
	host, port, _ := net.SplitHostPort(addr)
	var shown []error
	for _, url := range []string{
		"redis://:wrong-" + secretPassword + "@" + addr, "redis://user:" + secretPassword + "@" + addr, "redis://:" + secretPassword + "@" + addr + "/notanumber",
		"redis://:" + secretPassword + "%zz@" + addr, "redis://:" + secretPassword + "@" + addr + "?bogus=1", "redis://:" + secretPassword + "@" + addr + "," + addr,
		"redis://:" + secretPassword + "@" + host + ":99999", "redis://:" + secretPassword + "@", "redlock://:" + secretPassword + "@" + addr + "," + addr, "redis://:" + secretPassword + "/x@" + addr,
		"redis://:" + secretPassword + "?x@" + addr, "redis://:" + secretPassword + "#x@" + addr, "http://:" + secretPassword + "@" + addr, ":" + secretPassword + "@" + addr,
		"redis://:" + secretPassword + "@" + host + ":" + port + "?ca=/no/such/file", "rediss://:" + secretPassword + "@" + addr, "redis://" + secretPassword + "@" + addr,
		"redis://:a@b," + secretPassword + "@" + addr, "redis://:" + secretPassword + "\x00@" + addr, "redis://:" + secretPassword + "@[" + addr,
	} {
		d, err := redis.Open(t.Context(), url, nil)
		if err == nil {
			d.Close()
			t.Errorf("%q opened", url)
			continue
		}
		shown = append(shown, err)
	}
	d := r.openDriver(r.nodes(), &redis.Options{Password: secretPassword})
	c := r.clientOf(d, nil)
	r.do(0, "CONFIG", "SET", "requirepass", "another")
	r.servers[0].Kill()
	_, err := c.TryAcquire(t.Context(), "k", nil)
	for _, err := range append(shown, err) {
		if strings.Contains(err.Error(), secretPassword) || strings.Contains(fmt.Sprintf("%+v %#v", err, err), secretPassword) {
			t.Errorf("%q contains the password", err)
		}
	}
}

// The password in the file may be replaced, and one password is used per connection.
func TestPasswordFileIsReadForEachConnection(t *testing.T) {
	r := startWith(t, &redisproc.Options{ACL: []string{aclUser("app", permissions...)}})
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		r.noError(os.WriteFile(file, []byte(text), 0o600))
	}
	write(secretPassword + "\n")
	at := "redis://app@" + r.servers[0].Addr() + "?passwordfile="
	d := openURL(t, at+url.QueryEscape(file), nil)
	c := r.clientOf(d, nil)
	l := r.acquire(c, "k", nil)
	r.do(0, "ACL", "SETUSER", "app", "resetpass", ">another")
	write("another")
	r.do(0, "CLIENT", "KILL", "USER", "app")
	r.eventually("a connection with the new password", func() bool { return l.Extend(t.Context(), longTTL) == nil })
	r.release(l)
	for _, refused := range []string{at + "/no/such/file", strings.Replace(at, "app@", "app:"+secretPassword+"@", 1) + url.QueryEscape(file)} {
		if _, err := redis.Open(t.Context(), refused, nil); !errors.Is(err, holdfast.ErrInvalid) || strings.Contains(err.Error(), secretPassword) {
			t.Errorf("%s: %v", refused, err)
		}
	}
}

func TestCredentialsAreRequestedForEachConnection(t *testing.T) {
	r := startWith(t, &redisproc.Options{ACL: []string{aclUser("old", permissions...), aclUser("new", permissions...)}})
	var name atomic.Value
	name.Store("old")
	var asked atomic.Int32
	c := r.clientOf(r.openDriver(r.nodes(), &redis.Options{
		Username: "nobody", Password: "nothing",
		Credentials: func(ctx context.Context, addr string) (string, string, error) {
			asked.Add(1)
			if addr != r.servers[0].Addr() {
				return "", "", fmt.Errorf("asked for %s", addr)
			}
			return name.Load().(string), secretPassword, nil
		},
	}), nil)
	l := r.acquire(c, "k", nil)
	before := asked.Load()
	name.Store("new")
	r.do(0, "ACL", "DELUSER", "old") // also ends its connections
	r.eventually("a connection of the new user", func() bool { return l.Extend(t.Context(), longTTL) == nil })
	if asked.Load() == before {
		t.Error("Credentials was not called again")
	}
	r.release(l)

	boom := errors.New("vault is sealed") // a temporary error
	r.checkRejected(r.nodes(), &redis.Options{Credentials: func(context.Context, string) (string, string, error) { return "", "", boom }},
		driver.ErrUnavailable, r.servers[0].Addr(), "credentials", boom.Error())
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	strict, lax := redistest.Start(t, &redisproc.Options{TLS: cert, AuthClients: true}), redistest.Start(t, &redisproc.Options{TLS: cert})
	plain := redistest.Start(t, nil)
	both, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	ca, pair := "?ca="+cert.Cert, "&cert="+cert.Cert+"&key="+cert.Key

	works := func(d *redis.Driver, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("open: %v", err)
			return
		}
		c := openClient(t, d, nil)
		l, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Error(err)
			return
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	works(redis.Open(t.Context(), "rediss://"+lax.Addr()+ca, &redis.Options{Timeout: busyTimeout()}))
	works(redis.Open(t.Context(), "redlock://"+lax.Addr()+ca, &redis.Options{Timeout: busyTimeout()}))
	works(redis.Open(t.Context(), "rediss://"+strict.Addr()+ca+pair, &redis.Options{Timeout: busyTimeout()}))
	works(redis.Open(t.Context(), "rediss://"+lax.Addr()+ca+"&servername=localhost", &redis.Options{Timeout: busyTimeout()})) // the certificate has this name
	works(redis.Open(t.Context(), "rediss://"+lax.Addr(), &redis.Options{Timeout: busyTimeout(), TLS: &tls.Config{RootCAs: both.RootCAs}}))
	works(redis.New(t.Context(), []redis.Node{{Addr: lax.Addr()}}, &redis.Options{Timeout: busyTimeout(), TLS: &tls.Config{RootCAs: both.RootCAs}}))
	works(redis.New(t.Context(), []redis.Node{{Addr: strict.Addr()}}, &redis.Options{Timeout: busyTimeout(), TLS: both}))

	for url, words := range map[string][]string{
		"rediss://" + lax.Addr():                                    {lax.Addr(), "give the CA that signed its certificate by ca"},
		"rediss://" + strict.Addr() + ca:                            {strict.Addr(), "client certificate", "cert and key"},
		"rediss://" + lax.Addr() + ca + "&servername=other.example": {lax.Addr(), "other.example", "use a name of its certificate", "servername"},
		"rediss://" + plain.Addr() + ca:                             {plain.Addr(), "speak TLS"},
		"redis://" + lax.Addr():                                     {lax.Addr(), "TLS"},
	} {
		d, err := redis.Open(t.Context(), url, &redis.Options{NoQuarantine: true, Timeout: busyTimeout()})
		if err == nil {
			d.Close()
			t.Errorf("%s opened", url)
			continue
		}
		checkMentions(t, err, words...)
	}
	late := both.Clone()
	late.Time = func() time.Time { return time.Now().Add(100 * 24 * time.Hour) } // the certificate is valid for 90 days
	_, err = redis.New(t.Context(), []redis.Node{{Addr: lax.Addr()}}, &redis.Options{Timeout: busyTimeout(), TLS: late})
	checkMentions(t, err, lax.Addr(), "expired", "renew its certificate")
}

// A new connection tries the permissions on a counter that many locks share, and must not change it.
func TestPermissionCheckKeepsCounters(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			r := startRig(t, n)
			r.newClient()
			set, get, want := []string{"MSET"}, []string{"MGET"}, []any{}
			for i := range wire.Counters {
				counter, value := wire.Fence+strconv.Itoa(i), strconv.Itoa(1<<51+i)
				set, get, want = append(set, counter, value), append(get, counter), append(want, value)
			}
			for i := range n {
				r.do(i, set...)
			}
			for range 2 {
				r.newClient()
			}
			for i := range n {
				for at, got := range r.do(i, get...).([]any) {
					if got != want[at] {
						t.Errorf("node %d: %s is %v, want %v", i, get[1+at], got, want[at])
					}
				}
			}
		})
	}
}

// The files of ca, cert and key may be replaced while a client runs, also some time after the server has its
// own: the client then waits for them.
func TestCertificatesAreReadForEachConnection(t *testing.T) {
	t.Parallel()
	old, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	next, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, servers: []*redisproc.Server{redistest.Start(t, &redisproc.Options{TLS: old, AuthClients: true})}}
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")}
	put := func(c *redisproc.Certificate) {
		for i, from := range []string{c.Cert, c.Cert, c.Key} {
			text, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(files[i], text, 0o600)
			}
			r.noError(err)
		}
	}
	put(old)
	var conns connections
	at := "rediss://" + r.servers[0].Addr() + "?timeout=" + busyTimeout().String() + "&ca=" + files[0] + "&cert=" + files[1] + "&key=" + files[2]
	events := make(chan driver.NodeEvent, 100)
	d := openURL(t, at, &redis.Options{Dial: conns.dial})
	c := r.clientOf(d, &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) { events <- e }}})
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL})
	r.do(0, "CONFIG", "SET", "tls-cert-file", next.Cert, "tls-key-file", next.Key, "tls-ca-cert-file", next.Cert)
	conns.closeAll()
	for refused := false; !refused; {
		select {
		case e := <-events:
			refused = e.State == driver.NodeDown && strings.Contains(fmt.Sprint(e.Err), "TLS handshake")
		case <-r.boundedContext().Done():
			t.Fatal("the server's new certificate was not used")
		}
	}
	put(next)
	r.eventually("a connection with the new files", func() bool { return l.Extend(t.Context(), longTTL) == nil })
	r.release(l)
}
