package fence_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/memory"
)

// A holder that was paused beyond the end of its lease writes too late, and the guard rejects the write.
func ExampleGuard_Do() {
	nodes := memory.New(3)
	client, _ := holdfast.New(nodes, nil)
	defer client.Close()
	other, _ := holdfast.New(nodes.Peer(), nil)
	defer other.Close()

	var guard fence.Guard
	balance := 100
	ctx := context.Background()

	paused, _ := client.Acquire(ctx, "account/7", &holdfast.AcquireOptions{TTL: 50 * time.Millisecond, NoRenew: true})
	<-paused.Context().Done() // the holder sleeps through the end of its lease

	lease, _ := other.Acquire(ctx, "account/7", nil)
	guard.Do("account/7", lease.Token(), lease.Owner(), func() error { balance += 20; return nil })

	err := guard.Do("account/7", paused.Token(), paused.Owner(), func() error { balance = 0; return nil })
	fmt.Println("stale:", errors.Is(err, fence.ErrStale))
	fmt.Println("balance:", balance)
	// Output:
	// stale: true
	// balance: 120
}

// A read that feeds a write claims its token first.
func ExampleGuard_Claim() {
	var guard fence.Guard
	fmt.Println(guard.Claim("report", 64, "newer"))
	fmt.Println(guard.Do("report", 32, "older", func() error { return nil }))
	// Output:
	// <nil>
	// stale fencing token: "report" has seen token 64, and 32 is older
}

func ExampleGuard_Check() {
	var guard fence.Guard
	guard.Claim("report", 64, "newer")
	fmt.Println(guard.Check("report", 64, "another lease"))
	// Output: stale fencing token: token 64 of "report" belongs to another lease
}

func ExampleGuard_Handler() {
	var guard fence.Guard
	guarded := guard.Handler(
		func(r *http.Request) string { return r.URL.Path },
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "stored") }),
	)
	for _, token := range []string{"64", "32"} {
		r := httptest.NewRequest(http.MethodPut, "/report", nil)
		r.Header.Set(fence.KeyHeader, "/report")
		r.Header.Set(fence.TokenHeader, token)
		r.Header.Set(fence.OwnerHeader, "lease of "+token)
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, r)
		fmt.Println(token, w.Code)
	}
	// Output:
	// 64 200
	// 32 412
}
