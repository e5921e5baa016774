package etcd_test

import (
	"context"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/etcd"
)

func Example() {
	ctx := context.Background()
	const url = "etcd://e1.example.com:2379,e2.example.com:2379,e3.example.com:2379/locks"
	client, err := holdfast.Open(ctx, url, nil) // import _ "github.com/holdfast-go/holdfast/etcd"
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
