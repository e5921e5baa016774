package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/internal/redisproc"
	"github.com/holdfast-go/holdfast/memory"
)

// A holder who was paused beyond his lease writes too late, and Redis refuses him.
func Example() {
	server, err := redisproc.Start(context.Background(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Stop()
	data, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer data.Close()
	store := redisfence.New(data)

	nodes := memory.New(3)
	locks, _ := holdfast.New(nodes, nil)
	defer locks.Close()
	others, _ := holdfast.New(nodes.Peer(), nil)
	defer others.Close()
	ctx := context.Background()

	paused, _ := locks.Acquire(ctx, "report", &holdfast.AcquireOptions{TTL: 50 * time.Millisecond, NoRenew: true})
	<-paused.Context().Done() // the holder sleeps through the end of his lease

	lease, _ := others.Acquire(ctx, "report", nil)
	fmt.Println(store.Set(ctx, "report", lease.Token(), lease.ID(), "new"))
	err = store.Set(ctx, "report", paused.Token(), paused.ID(), "old")
	fmt.Println("stale:", errors.Is(err, fence.ErrStale))
	// Output:
	// <nil>
	// stale: true
}

// A script changes several keys under one guard.
func ExampleStore_Eval() {
	server, err := redisproc.Start(context.Background(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Stop()
	data, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer data.Close()

	move := redisfence.NewScript(`
		redis.call('DECRBY', KEYS[1], ARGV[1])
		return redis.call('INCRBY', KEYS[2], ARGV[1])`)
	store := redisfence.New(data)
	reply, err := store.Eval(context.Background(), move, "accounts", 8841, "lease-1", []string{"ann", "bob"}, "30")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(reply.ToInt64())
	// Output: 30 <nil>
}
