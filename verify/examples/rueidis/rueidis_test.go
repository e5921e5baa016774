package rueidis

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/rig/storetest"
	"github.com/holdfast-go/holdfast/verify/examples"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// busyDialer is a dialer with a time-out for a busy machine.
var busyDialer = net.Dialer{Timeout: 5 * time.Second}

func TestLocksUseClientsConnectionOptions(t *testing.T) {
	t.Parallel()
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secure, err := cert.Client()
	if err != nil {
		t.Fatal(err)
	}
	server := redistest.Start(t, &redisproc.Options{TLS: cert, ACL: examples.ACL})
	examples.Lock(t, server, 3)(Locks(t.Context(), rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, TLSConfig: secure, Username: "app", Password: "s3cret", SelectDB: 3, ClientName: "billing", Dialer: busyDialer,
	}))
}

func TestLocksUseSentinelClientsMaster(t *testing.T) {
	t.Parallel()
	group := redistest.StartGroup(t, &redisproc.GroupOptions{
		Servers: 2, Sentinels: 1, Server: redisproc.Options{Password: "of-replicas", ACL: examples.ACL},
		Sentinel: redisproc.Options{ACL: []string{"finder on >of-finder ~* &* +@all"}},
	})
	examples.Admit(t, "redis+sentinel://app:s3cret@"+group.Addrs()[0]+"/"+redisproc.GroupName+"/3?sentinel_username=finder&sentinel_password=of-finder")
	examples.Lock(t, group.Master(), 3)(Locks(t.Context(), rueidis.ClientOption{
		InitAddress: group.Addrs(), Username: "app", Password: "s3cret", SelectDB: 3, ClientName: "billing", Dialer: busyDialer,
		Sentinel: rueidis.SentinelOption{MasterSet: redisproc.GroupName, Username: "finder", Password: "of-finder"},
	}))
}

func TestLocksUseClientsCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, &redisproc.ClusterOptions{Masters: 2, Server: redisproc.Options{ACL: examples.ACL}})
	some := []string{cluster.Servers[0].Addr(), cluster.Servers[1].Addr()}
	examples.Admit(t, "redis+cluster://app:s3cret@"+some[0])
	examples.Lock(t, cluster.Servers[1], 0)(Locks(t.Context(), rueidis.ClientOption{
		InitAddress: some, Username: "app", Password: "s3cret", ClientName: "billing", Dialer: busyDialer,
	}))
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T, server *redisproc.Server) *redisfence.Store {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return Store(client)
	})
}
