package sharding_test

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/sharding"
)

func Example() {
	// A program with several sets calls redis.Open for each of them.
	drv, err := sharding.New([]sharding.Set{
		{Name: "eu-1", Driver: memory.New(3)},
		{Name: "eu-2", Driver: memory.New(3)},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := holdfast.New(drv, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	for _, name := range []string{"nightly-report", "job-2"} {
		lease, err := client.Acquire(context.Background(), name, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(name, "is in", drv.Home(name))
		lease.Release(context.Background())
	}
	// Output:
	// nightly-report is in eu-1
	// job-2 is in eu-2
}
