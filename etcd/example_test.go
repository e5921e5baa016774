package etcd_test

import (
	"context"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/etcd"
)

func Example() {
	ctx := context.Background()
	drv, err := etcd.Open(ctx, "etcd://e1.example.com:2379,e2.example.com:2379,e3.example.com:2379/locks", nil)
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
