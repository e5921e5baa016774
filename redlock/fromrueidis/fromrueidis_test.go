package fromrueidis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/redlock/fromrueidis"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// guarded is a server that wants TLS and a user, and what a rueidis client of it says.
func guarded(t *testing.T) (*redisproc.Server, rueidis.ClientOption) {
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
	return server, rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, TLSConfig: secure, Username: "app", Password: "s3cret", SelectDB: 3, ClientName: "billing",
		Dialer: net.Dialer{Timeout: 5 * time.Second}, DisableCache: true,
	}
}

// locks acquires and releases a lock by the settings, and wants the connection to be that
// of the user, the database and the name that the client has.
func locks(t *testing.T, server *redisproc.Server, opt rueidis.ClientOption) {
	t.Helper()
	nodes, opts, err := fromrueidis.Settings(opt)
	if err != nil {
		t.Fatal(err)
	}
	connects(t, server, opt.SelectDB, nodes, opts)
}

func connects(t *testing.T, server *redisproc.Server, db int, nodes []redlock.Node, opts *redlock.Options) {
	t.Helper()
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
	server, opt := guarded(t)
	client, err := rueidis.NewClient(opt)
	if err != nil {
		t.Fatal(err)
	}
	err = client.Do(t.Context(), client.B().Set().Key("data").Value("1").Build()).Error()
	client.Close()
	if err != nil {
		t.Fatal(err)
	}
	locks(t, server, opt)
}

func TestTheDialerOfTheClientIsAsked(t *testing.T) {
	server, opt := guarded(t)
	opt.InitAddress = []string{"redis.internal:6379"}
	opt.TLSConfig = opt.TLSConfig.Clone()
	opt.TLSConfig.ServerName = "localhost"
	plain := opt
	plain.DialFn = func(addr string, d *net.Dialer, cfg *tls.Config) (net.Conn, error) {
		if addr != "redis.internal:6379" || d.Deadline.IsZero() {
			return nil, fmt.Errorf("asked for %s, until %v", addr, d.Deadline)
		}
		return tls.DialWithDialer(d, "tcp", server.Addr(), cfg)
	}
	locks(t, server, plain)
	opt.DialFn = func(string, *net.Dialer, *tls.Config) (net.Conn, error) {
		return nil, errors.New("the older one was asked")
	}
	opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, cfg *tls.Config) (net.Conn, error) {
		if addr != "redis.internal:6379" {
			return nil, errors.New("asked for " + addr)
		}
		return (&tls.Dialer{NetDialer: d, Config: cfg}).DialContext(ctx, "tcp", server.Addr())
	}
	locks(t, server, opt)
}

func TestCredentialsComeFromTheirSource(t *testing.T) {
	server, opt := guarded(t)
	opt.Password = "of yesterday"
	opt.AuthCredentialsFn = func(at rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		if at.Address.String() != server.Addr() || at.Address.Network() != "tcp" {
			return rueidis.AuthCredentials{}, fmt.Errorf("asked for %v", at.Address)
		}
		return rueidis.AuthCredentials{Username: "app", Password: "s3cret", RefreshAfter: time.Now()}, nil
	}
	locks(t, server, opt)
}

func TestTheMasterIsFoundAsTheClientFindsIt(t *testing.T) {
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
		Servers: 2, Sentinels: 1, Server: redisproc.Options{Password: "of-replicas", ACL: []string{"app on >s3cret ~* &* +@all"}},
		Sentinel: redisproc.Options{
			TLS: cert, Args: []string{"--tls-replication", "no"}, // to the servers
			ACL: []string{"finder on >of-finder ~* &* +@all"},
		},
	})
	patient := net.Dialer{Timeout: 5 * time.Second}
	opt := rueidis.ClientOption{
		InitAddress: group.Addrs(), Username: "app", Password: "s3cret", SelectDB: 3, ClientName: "billing", Dialer: patient, DisableCache: true,
		Sentinel: rueidis.SentinelOption{MasterSet: redisproc.GroupName, Username: "finder", Password: "of-finder", Dialer: patient, TLSConfig: secure},
	}
	client, err := rueidis.NewClient(opt)
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	locks(t, group.Master(), opt)

	opt.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{}, nil
	}
	if _, _, err = fromrueidis.Settings(opt); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "set Credentials in the result") {
		t.Errorf("%v, want ErrInvalid with the mend", err)
	}
	opt.AuthCredentialsFn, opt.Username, opt.Password = nil, "", "" // the mend
	nodes, opts, err := fromrueidis.Settings(opt)
	if err != nil {
		t.Fatal(err)
	}
	opts.Credentials = func(context.Context, string) (string, string, error) { return "app", "s3cret", nil }
	connects(t, group.Master(), 3, nodes, opts)
}

func TestTheClusterIsReachedAsTheClientReachesIt(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, &redisproc.ClusterOptions{Masters: 2, Server: redisproc.Options{ACL: []string{"app on >s3cret ~* &* +@all"}}})
	opt := rueidis.ClientOption{
		InitAddress: []string{cluster.Servers[0].Addr(), cluster.Servers[1].Addr()}, ClientName: "billing", Dialer: net.Dialer{Timeout: 5 * time.Second},
		AuthCredentialsFn: func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			return rueidis.AuthCredentials{Username: "app", Password: "s3cret"}, nil
		},
	}
	locks(t, cluster.Servers[1], opt)

	opt.InitAddress = opt.InitAddress[:1] // to rueidis a cluster as well
	nodes, opts, err := fromrueidis.Settings(opt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redlock.New(t.Context(), nodes, opts); !errors.Is(err, holdfast.ErrConfig) || !strings.Contains(err.Error(), "Options.Cluster") {
		t.Errorf("%v, want ErrConfig with the mend", err)
	}
	opts.Cluster = true
	connects(t, cluster.Servers[1], 0, nodes, opts)
}

func TestWhatCannotBeCarriedOverIsRefused(t *testing.T) {
	t.Parallel()
	for words, opt := range map[string]rueidis.ClientOption{
		"give that one":               {InitAddress: []string{"h:1", "h:2"}, ForceSingleClient: true, Password: "s3cret"},
		"a server without an address": {Password: "s3cret"},
		"ReplicaOnly cannot be":       {InitAddress: []string{"h:1"}, ReplicaOnly: true},
		"a redirect is a failover":    {InitAddress: []string{"h:1"}, Standalone: rueidis.StandaloneOption{EnableRedirect: true}},
	} {
		_, _, err := fromrueidis.Settings(opt)
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v, want ErrInvalid with %q", err, words)
		}
	}
	for _, opt := range []rueidis.ClientOption{
		{InitAddress: []string{"h:1"}, Sentinel: rueidis.SentinelOption{MasterSet: "m"}},
		{InitAddress: []string{"h:1", "h:2"}},
	} {
		_, _, err := fromrueidis.Settings(rueidis.ClientOption{InitAddress: []string{"i:1"}}, opt)
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "Node with Failover for each") {
			t.Errorf("among several: %v", err)
		}
	}
	if _, _, err := fromrueidis.Settings(); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("without options: %v", err)
	}
}
