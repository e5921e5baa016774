package goredisfence_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/goredisfence"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/memory"
)

// A holder that was paused beyond its lease writes too late, and Redis refuses the
// write.
func Example() {
	server, err := redisproc.Start(context.Background(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Stop()
	data := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer data.Close()
	store := goredisfence.New(data)

	nodes := memory.New(3)
	locks, _ := holdfast.New(nodes, nil)
	defer locks.Close()
	others, _ := holdfast.New(nodes.Peer(), nil)
	defer others.Close()
	ctx := context.Background()

	paused, _ := locks.Acquire(ctx, "report", &holdfast.AcquireOptions{TTL: 50 * time.Millisecond, NoRenew: true})
	<-paused.Context().Done() // the holder sleeps through the end of its lease

	lease, _ := others.Acquire(ctx, "report", nil)
	fmt.Println(store.Set(ctx, "report", lease.Token(), lease.Owner(), "new"))
	err = store.Set(ctx, "report", paused.Token(), paused.Owner(), "old")
	fmt.Println("stale:", errors.Is(err, fence.ErrStale))
	// Output:
	// <nil>
	// stale: true
}
