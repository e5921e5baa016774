package redisfence_test

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// A script changes several keys under one guard.
func ExampleStore_Eval() {
	server, err := redisproc.Start(context.Background(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Stop()
	const move = `
		redis.call('DECRBY', KEYS[1], ARGV[1])
		return redis.call('INCRBY', KEYS[2], ARGV[1])`
	store := newPlainStore(server)
	reply, err := store.Eval(context.Background(), move, "accounts", 8841, "lease-1", []string{"ann", "bob"}, "30")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(reply)
	// Output: 30
}
