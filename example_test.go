package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

func Example() {
	client, err := holdfast.New(memory.New(5), nil) // or redis.Open
	if err != nil {
		panic(err)
	}
	defer client.Close()

	err = client.Do(context.Background(), "invoice/42", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		fmt.Println("paying, token is positive:", lease.Token() > 0)
		return ctx.Err() // ctx ends when the lease is lost
	})
	fmt.Println(err)
	// Output:
	// paying, token is positive: true
	// <nil>
}

func ExampleClient_TryAcquire() {
	nodes := memory.New(1)
	mine, _ := holdfast.New(nodes, nil)
	defer mine.Close()
	other, _ := holdfast.New(nodes.Peer(), &holdfast.Options{Holder: holdfast.Holder{Host: "web-3", PID: 4121}})
	defer other.Close()

	lease, _ := other.TryAcquire(context.Background(), "report", nil)
	_, err := mine.TryAcquire(context.Background(), "report", nil)
	if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
		fmt.Println("busy:", held.Holder)
	}
	lease.Release(context.Background())
	// Output:
	// busy: web-3 pid 4121
}

func ExampleLease_Detach() {
	nodes := memory.New(3)
	first, _ := holdfast.New(nodes, nil)
	second, _ := holdfast.New(nodes.Peer(), nil)
	defer second.Close()

	lease, _ := first.Acquire(context.Background(), "upload", &holdfast.AcquireOptions{Adoptable: true})
	lease.Detach() // instead of Release
	first.Close()  // the program passes Owner and Token to the other process

	adopted, err := second.Adopt(context.Background(), "upload", lease.Owner(), lease.Token(), nil)
	if err != nil {
		panic(err)
	}
	defer adopted.Release(context.Background())
	fmt.Println(context.Cause(lease.Context()))
	fmt.Println("a later token:", adopted.Token() > lease.Token())
	// Output:
	// lease was detached
	// a later token: true
}

func ExampleClient_Acquire() {
	client, _ := holdfast.New(memory.New(3), nil)
	defer client.Close()
	opts := &holdfast.AcquireOptions{TTL: 8 * time.Second, Wait: 5 * time.Second}

	lease, err := client.Acquire(context.Background(), "report", opts)
	if err != nil {
		panic(err)
	}
	defer lease.Release(context.Background())
	fmt.Println(lease.Key(), time.Until(lease.Deadline()) > 7*time.Second)
	// Output:
	// report true
}

func ExampleClient_AcquireAll() {
	client, _ := holdfast.New(memory.New(3), nil)
	defer client.Close()

	leases, err := client.AcquireAll(context.Background(), []string{"account/7", "account/3"}, nil)
	if err != nil {
		panic(err)
	}
	defer leases.Release(context.Background())
	for _, lease := range leases.All() {
		fmt.Println(lease.Key(), lease.Token() > 0)
	}
	fmt.Println(leases.Context().Err()) // ends as soon as one of the leases is lost
	// Output:
	// account/3 true
	// account/7 true
	// <nil>
}

func ExampleLease_Context() {
	nodes := memory.New(1)
	client, _ := holdfast.New(nodes, nil)
	defer client.Close()
	lease, _ := client.Acquire(context.Background(), "report", &holdfast.AcquireOptions{TTL: 50 * time.Millisecond})

	nodes.Node(0).Stop() // the service is down: renewals fail
	<-lease.Context().Done()
	fmt.Println(errors.Is(context.Cause(lease.Context()), holdfast.ErrLost))
	// Output:
	// true
}

func ExampleClient_ForceRelease() {
	nodes := memory.New(3)
	stuck, _ := holdfast.New(nodes, nil)
	defer stuck.Close()
	operator, _ := holdfast.New(nodes.Peer(), nil)
	defer operator.Close()
	lease, _ := stuck.Acquire(context.Background(), "report", nil)

	status, _ := operator.Inspect(context.Background(), "report")
	err := operator.ForceRelease(context.Background(), "report", status.Token, "")
	fmt.Println(err, errors.Is(lease.Check(context.Background()), holdfast.ErrLost))
	// Output:
	// <nil> true
}

func ExampleClient_List() {
	client, _ := holdfast.New(memory.New(1), nil)
	defer client.Close()
	client.Acquire(context.Background(), "jobs/backup", nil)
	for status, err := range client.List(context.Background(), "jobs/") {
		fmt.Println(status.Key, status.Held, err)
	}
	// Output:
	// jobs/backup true <nil>
}

// A program can wrap a lease as a sync.Locker. Package holdfast has no such type, because a Locker cannot
// report a lost lease.
type mutex struct {
	client *holdfast.Client
	key    string
	lease  *holdfast.Lease
}

func (m *mutex) Lock() {
	lease, err := m.client.Acquire(context.Background(), m.key, nil)
	if err != nil {
		panic(err)
	}
	m.lease = lease
}

func (m *mutex) Unlock() { m.lease.Release(context.Background()) }

var _ sync.Locker = (*mutex)(nil)

func Example_mutex() {
	client, _ := holdfast.New(memory.New(1), nil)
	defer client.Close()
	m := &mutex{client: client, key: "report"}
	m.Lock()
	defer m.Unlock()
	fmt.Println("locked")
	// Output:
	// locked
}

func ExampleClient_RWLock() {
	client, err := holdfast.New(memory.New(3), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	catalogue := client.RWLock("catalogue", 16)
	one, err := catalogue.AcquireRead(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	two, err := catalogue.AcquireRead(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = catalogue.TryAcquireWrite(ctx, nil)
	fmt.Println("two read; a writer is kept out:", errors.Is(err, holdfast.ErrHeld))
	one.Release(ctx)
	two.Release(ctx)
	writer, err := catalogue.AcquireWrite(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the writer's token is above theirs:", writer.Token() > max(one.Token(), two.Token()))
	writer.Release(ctx)
	// Output:
	// two read; a writer is kept out: true
	// the writer's token is above theirs: true
}

func ExampleClient_Semaphore() {
	client, err := holdfast.New(memory.New(3), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	thumbnails := client.Semaphore("thumbnails", 2) // the same number for every caller of the name
	one, err := thumbnails.Acquire(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	two, err := thumbnails.Acquire(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer two.Release(ctx)
	fmt.Println("slots:", min(one.Slot(), two.Slot()), max(one.Slot(), two.Slot()))
	_, err = thumbnails.TryAcquire(ctx, nil)
	fmt.Println("a third is kept out:", errors.Is(err, holdfast.ErrHeld))
	one.Release(ctx)
	third, err := thumbnails.TryAcquire(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer third.Release(ctx)
	fmt.Println("it gets the slot that was released:", third.Slot() == one.Slot())
	// Output:
	// slots: 0 1
	// a third is kept out: true
	// it gets the slot that was released: true
}
