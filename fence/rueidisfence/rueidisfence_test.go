package rueidisfence_test

import (
	"os"
	"testing"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/fence/internal/storetest"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/fence/rueidisfence"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T, server *redisproc.Server) *redisfence.Store {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return rueidisfence.New(client)
	})
}
