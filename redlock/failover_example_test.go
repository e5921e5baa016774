package redlock_test

import (
	"context"
	"log"
	"os"

	"github.com/holdfast-go/holdfast/redlock"
)

func ExampleFailover() {
	nodes := []redlock.Node{{Failover: &redlock.Failover{
		Sentinels: []string{"s1:26379", "s2:26379", "s3:26379"}, Master: "mymaster", Password: os.Getenv("SENTINEL_PASSWORD"),
	}}}
	drv, err := redlock.New(context.Background(), nodes, &redlock.Options{Username: "locker", Password: os.Getenv("REDIS_PASSWORD")})
	if err != nil {
		log.Fatal(err)
	}
	defer drv.Close()
}
