package redis_test

import (
	"context"
	"log"
	"os"

	"github.com/holdfast-go/holdfast/redis"
)

func ExampleFailover() {
	nodes := []redis.Node{{Failover: &redis.Failover{
		Sentinels: []string{"s1:26379", "s2:26379", "s3:26379"}, Master: "mymaster", Password: os.Getenv("SENTINEL_PASSWORD"),
	}}}
	drv, err := redis.New(context.Background(), nodes, &redis.Options{Username: "locker", Password: os.Getenv("REDIS_PASSWORD")})
	if err != nil {
		log.Fatal(err)
	}
	defer drv.Close()
}
