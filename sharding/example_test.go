package sharding_test

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/sharding"
)

func Example() {
	// One redlock.Open for each set, in a program that has several.
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
		fmt.Println(name, "is in", drv.Homes(name)[0])
		lease.Release(context.Background())
	}
	// Output:
	// nightly-report is in eu-1
	// job-2 is in eu-2
}

// A third set joins. When all clients have this list, and Wait is over since, they get the new
// list: the same without Change.
func ExampleSet_change() {
	drv, err := sharding.New([]sharding.Set{
		{Name: "eu-1", Driver: memory.New(3)},
		{Name: "eu-2", Driver: memory.New(3)},
		{Name: "eu-3", Driver: memory.New(3), Change: sharding.Joins},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer drv.Close()
	fmt.Println(drv.Homes("job-2"), drv.Homes("order/17"))
	fmt.Println("wait for", drv.Wait())
	// Output:
	// [eu-2 eu-3] [eu-1]
	// wait for 10m0s
}
