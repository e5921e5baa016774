package zookeeper_test

import (
	"context"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/zookeeper"
)

func Example() {
	ctx := context.Background()
	drv, err := zookeeper.Open(ctx, "zk://z1.example.com:2181,z2.example.com:2181,z3.example.com:2181/locks", nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(drv, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = client.Do(ctx, "nightly-report", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		fmt.Println("token", lease.Token())
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}
