package fromgoredis_test

import (
	"context"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/redlock/fromgoredis"
)

// The program has a client for its data, with all that it takes to reach the server. Locks
// connect in the same way.
func ExampleSettings() {
	ctx := context.Background()
	data, err := redis.ParseURL("rediss://app:s3cret@redis.example.com:6380/1?pool_size=20")
	if err != nil {
		log.Fatal(err)
	}
	client := redis.NewClient(data)
	defer client.Close()

	nodes, opts, err := fromgoredis.Settings(client.Options())
	if err != nil {
		log.Fatal(err)
	}
	opts.Prefix = "billing:lock:"
	drv, err := redlock.New(ctx, nodes, opts)
	if err != nil {
		log.Fatal(err)
	}
	locks, err := holdfast.New(drv, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
}
