package goredisfence_test

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/fence/goredisfence"
	"github.com/holdfast-go/holdfast/fence/internal/storetest"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T, server *redisproc.Server) *redisfence.Store {
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { client.Close() })
		return goredisfence.New(client)
	})
}
