package goredis

import (
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/rig/storetest"
	"github.com/holdfast-go/holdfast/verify/examples"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

const busyDialTimeout = 5 * time.Second // dial time-out for a busy machine

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
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), TLSConfig: secure, Username: "app", Password: "s3cret", DB: 3, ClientName: "billing"})
	defer client.Close()
	examples.Lock(t, server, 3)(Locks(t.Context(), client))
}

func TestLocksUseFailoverClientsMaster(t *testing.T) {
	t.Parallel()
	group := redistest.StartGroup(t, &redisproc.GroupOptions{
		Servers: 2, Sentinels: 1, Server: redisproc.Options{Password: "of-replicas", ACL: examples.ACL},
		Sentinel: redisproc.Options{ACL: []string{"finder on >of-finder ~* &* +@all"}},
	})
	examples.Admit(t, "redis+sentinel://app:s3cret@"+group.Addrs()[0]+"/"+redisproc.GroupName+"/3?sentinel_username=finder&sentinel_password=of-finder")
	examples.Lock(t, group.Master(), 3)(FailoverLocks(t.Context(), &redis.FailoverOptions{
		SentinelAddrs: group.Addrs(), MasterName: redisproc.GroupName, SentinelUsername: "finder", SentinelPassword: "of-finder",
		Username: "app", Password: "s3cret", DB: 3, ClientName: "billing", DialTimeout: busyDialTimeout,
	}))
}

func TestLocksUseClientsCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, &redisproc.ClusterOptions{Masters: 2, Server: redisproc.Options{ACL: examples.ACL}})
	addr := cluster.Servers[0].Addr()
	examples.Admit(t, "redis+cluster://app:s3cret@"+addr)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, Username: "app", Password: "s3cret", ClientName: "billing"})
	defer client.Close()
	examples.Lock(t, cluster.Servers[1], 0)(ClusterLocks(t.Context(), client))
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T, server *redisproc.Server) *redisfence.Store {
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { client.Close() })
		return Store(client)
	})
}
