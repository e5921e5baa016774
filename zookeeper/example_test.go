package zookeeper_test

import (
	"context"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/zookeeper"
)

func Example() {
	ctx := context.Background()
	const url = "zk://z1.example.com:2181,z2.example.com:2181,z3.example.com:2181/locks"
	client, err := holdfast.Open(ctx, url, nil) // import _ "github.com/holdfast-go/holdfast/zookeeper"
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
