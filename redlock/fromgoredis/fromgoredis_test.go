package fromgoredis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/redlock/fromgoredis"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

const busy = 5 * time.Second // for a dial, on a machine that does other things

// guarded is a server that wants TLS and a user, and what a go-redis client of it says.
func guarded(t *testing.T) (*redisproc.Server, *redis.Options) {
	t.Helper()
	t.Parallel()
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secure, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	server := redistest.Start(t, &redisproc.Options{TLS: cert, ACL: []string{"app on >s3cret ~* &* +@all"}})
	return server, &redis.Options{
		Addr: server.Addr(), TLSConfig: secure, Username: "app", Password: "s3cret", DB: 3, ClientName: "billing", DialTimeout: busy,
	}
}

// locks acquires and releases a lock by the settings, and wants the connection to be that
// of the user, the database and the name that the client has.
func locks(t *testing.T, server *redisproc.Server, all ...*redis.Options) {
	t.Helper()
	connects(t, server, 3)(fromgoredis.Settings(all...))
}

// connects is locks for any settings.
func connects(t *testing.T, server *redisproc.Server, db int) func(nodes []redlock.Node, opts *redlock.Options, err error) {
	t.Helper()
	return func(nodes []redlock.Node, opts *redlock.Options, err error) {
		t.Helper()
		connect(t, server, db, nodes, opts, err)
	}
}

func connect(t *testing.T, server *redisproc.Server, db int, nodes []redlock.Node, opts *redlock.Options, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	opts.NoQuarantine = true
	drv, err := redlock.New(t.Context(), nodes, opts)
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfast.New(drv, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lease, err := client.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := server.Do("CLIENT", "LIST")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name=billing ", fmt.Sprintf(" db=%d ", db), " user=app "} {
		if !strings.Contains(fmt.Sprint(list), want) {
			t.Errorf("CLIENT LIST has no %q:\n%v", want, list)
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLocksConnectAsTheClientDoes(t *testing.T) {
	server, opts := guarded(t)
	locks(t, server, opts)

	client := redis.NewClient(opts) // fills in defaults, a dialer among them
	defer client.Close()
	if err := client.Set(t.Context(), "data", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	locks(t, server, client.Options())
}

func TestTheDialerOfTheClientIsAsked(t *testing.T) {
	server, opts := guarded(t)
	var asked atomic.Int32
	secure := opts.TLSConfig.Clone()
	secure.ServerName = "localhost"
	opts.Addr, opts.TLSConfig = "redis.internal:6379", nil
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		asked.Add(1)
		if network != "tcp" || addr != "redis.internal:6379" {
			return nil, fmt.Errorf("asked for %s %s", network, addr)
		}
		return (&tls.Dialer{Config: secure}).DialContext(ctx, network, server.Addr())
	}
	locks(t, server, opts)
	if asked.Load() == 0 {
		t.Error("the dialer was not asked")
	}
}

// provider gives credentials as a stream.
type provider struct{ subscribed atomic.Int32 }

func (p *provider) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	p.subscribed.Add(1)
	return auth.NewBasicCredentials("app", "s3cret"), func() error { p.subscribed.Add(-1); return nil }, nil
}

func TestCredentialsComeFromTheirSource(t *testing.T) {
	server, opts := guarded(t)
	opts.Username, opts.Password = "app", "of yesterday"
	opts.CredentialsProvider = func() (string, string) { return "app", "s3cret" }
	locks(t, server, opts)

	opts.CredentialsProvider = func() (string, string) { return "app", "of yesterday" }
	opts.CredentialsProviderContext = func(context.Context) (string, string, error) { return "app", "s3cret", nil }
	locks(t, server, opts)

	opts.CredentialsProviderContext = func(context.Context) (string, string, error) { return "", "", errors.New("the vault is sealed") }
	nodes, settings, err := fromgoredis.Settings(opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redlock.New(t.Context(), nodes, settings); !errors.Is(err, holdfast.ErrUnavailable) || !strings.Contains(err.Error(), "the vault is sealed") {
		t.Errorf("Open() = %v, want ErrUnavailable with the error of the provider", err)
	}

	stream := &provider{}
	opts.StreamingCredentialsProvider = stream
	locks(t, server, opts)
	if n := stream.subscribed.Load(); n != 0 {
		t.Errorf("%d subscriptions are left", n)
	}
}

func TestAUnixSocketIsCarriedOver(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "socket") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	server := redistest.Start(t, &redisproc.Options{Args: []string{"--unixsocket", path}, ACL: []string{"app on >s3cret ~* &* +@all"}})
	opts := &redis.Options{Addr: path, Username: "app", Password: "s3cret", DB: 3, ClientName: "billing", DialTimeout: busy}
	locks(t, server, opts)
	opts.Network = "unix"
	locks(t, server, opts)
}

func TestClientsOfSeveralServersAreASet(t *testing.T) {
	server, first := guarded(t)
	all := []*redis.Options{first}
	for i := range 2 {
		pass := fmt.Sprint("of server ", i)
		other := redistest.Start(t, &redisproc.Options{ACL: []string{`app on ` + `>` + strings.ReplaceAll(pass, " ", "_") + ` ~* &* +@all`}})
		all = append(all, &redis.Options{
			Addr: other.Addr(), Username: "app", Password: strings.ReplaceAll(pass, " ", "_"), DB: 3, ClientName: "billing", DialTimeout: busy,
		})
	}
	locks(t, server, all...)
}

func TestTheMasterIsFoundAsTheFailoverClientFindsIt(t *testing.T) {
	t.Parallel()
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secure, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	group := redistest.StartGroup(t, &redisproc.GroupOptions{
		Servers: 2, Sentinels: 1, Server: redisproc.Options{TLS: cert, Password: "of-replicas", ACL: []string{"app on >s3cret ~* &* +@all"}},
		Sentinel: redisproc.Options{TLS: cert, Password: "of-sentinels", ACL: []string{"finder on >of-finder ~* &* +@all"}},
	})
	all := &redis.UniversalOptions{
		Addrs: group.Addrs(), MasterName: redisproc.GroupName, SentinelUsername: "finder", SentinelPassword: "of-finder",
		Username: "app", Password: "s3cret", TLSConfig: secure, DB: 3, ClientName: "billing", DialTimeout: busy,
	}
	opts := all.Failover()
	client := redis.NewFailoverClient(opts)
	defer client.Close()
	if err := client.Set(t.Context(), "data", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	connects(t, group.Master(), 3)(fromgoredis.Failover(opts))

	var asked atomic.Int32
	opts.TLSConfig, opts.SentinelUsername, opts.SentinelPassword = nil, "", "of-sentinels"
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		asked.Add(1)
		return (&tls.Dialer{Config: secure}).DialContext(ctx, network, addr)
	}
	connects(t, group.Master(), 3)(fromgoredis.Failover(opts))
	if asked.Load() < 2 {
		t.Error("the dialer was not asked for Sentinel and server")
	}
	opts.SentinelUsername, opts.SentinelPassword = "nobody", "" // go-redis gives no user without a password
	nodes, _, err := fromgoredis.Failover(opts)
	if err != nil || nodes[0].Failover.Username != "" {
		t.Errorf("%+v, %v", nodes[0].Failover, err)
	}
}

func TestTheClusterIsReachedAsTheClientReachesIt(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, &redisproc.ClusterOptions{Masters: 2, Server: redisproc.Options{ACL: []string{"app on >s3cret ~* &* +@all"}}})
	var mu sync.Mutex // guards dialled
	dialled := make(map[string]bool)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Servers[0].Addr()}, Username: "app", Password: "s3cret", ClientName: "billing", DialTimeout: busy,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			dialled[addr] = true
			mu.Unlock()
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	defer client.Close()
	connects(t, cluster.Servers[1], 0)(fromgoredis.Cluster(client.Options()))
	if len(dialled) != 2 {
		t.Errorf("the dialer was asked for %v", dialled)
	}
}

func TestWhatCannotBeCarriedOverIsRefused(t *testing.T) {
	t.Parallel()
	sentinels := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}})
	defer sentinels.Close()
	for words, servers := range map[string][]*redis.Options{
		"at least one client":                nil,
		"h:1: Limiter cannot be carried":     {{Addr: "h:1", Limiter: limiter{}, Password: "s3cret"}},
		"OnConnect cannot be carried":        {{OnConnect: func(context.Context, *redis.Conn) error { return nil }, Password: "s3cret"}},
		"give fromgoredis.Failover":          {sentinels.Options()},
		"h:1 and i:1 have databases 0 and 1": {{Addr: "h:1", Password: "s3cret"}, {Addr: "i:1", DB: 1, Password: "s3cret"}},
		`names "a" and "b"`:                  {{Addr: "h:1", ClientName: "a"}, {Addr: "i:1", ClientName: "b"}},
	} {
		_, _, err := fromgoredis.Settings(servers...)
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v, want ErrInvalid with %q", err, words)
		}
	}
	refused := func(words string) func(_ []redlock.Node, _ *redlock.Options, err error) {
		return func(_ []redlock.Node, _ *redlock.Options, err error) {
			t.Helper()
			if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), words) {
				t.Errorf("%v, want ErrInvalid with %q", err, words)
			}
		}
	}
	hook := func(context.Context, *redis.Conn) error { return nil }
	refused("m: OnConnect cannot be carried")(fromgoredis.Failover(&redis.FailoverOptions{MasterName: "m", OnConnect: hook}))
	refused("written to the master")(fromgoredis.Failover(&redis.FailoverOptions{ReplicaOnly: true}))
	refused("h:1,i:1: OnConnect cannot be carried")(fromgoredis.Cluster(&redis.ClusterOptions{Addrs: []string{"h:1", "i:1"}, OnConnect: hook}))
	special := func(o *redis.Options) *redis.Client { return redis.NewClient(o) }
	refused("NewClient cannot be carried")(fromgoredis.Cluster(&redis.ClusterOptions{NewClient: special}))
	byReplica := redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}})
	defer byReplica.Close()
	refused("redis.FailoverOptions to Failover")(fromgoredis.Cluster(byReplica.Options()))
}

type limiter struct{}

func (limiter) Allow() error       { return nil }
func (limiter) ReportResult(error) {}
