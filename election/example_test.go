package election_test

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/election"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/memory"
)

// A worker writes with its term. A worker of an earlier term that has not noticed its end is rejected.
func Example() {
	nodes := memory.New(3)
	first, _ := holdfast.New(nodes, nil)
	second, _ := holdfast.New(nodes.Peer(), nil)
	defer first.Close()
	defer second.Close()
	var storage fence.Guard
	write := func(term *election.Leadership, text string) error {
		return storage.Do("report", term.Term(), term.Lease().Owner(), func() error {
			fmt.Println(text)
			return nil
		})
	}

	ctx := context.Background()
	old, err := election.Campaign(ctx, first, "reporter", "10.0.0.7:8080", nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(write(old, "written by the first leader"))
	old.Resign(ctx)

	term, _ := election.Campaign(ctx, second, "reporter", "10.0.0.8:8080", nil)
	defer term.Resign(ctx)
	fmt.Println(write(term, "written by the second leader"))
	fmt.Println("refused:", write(old, "written too late") != nil)
	// Output:
	// written by the first leader
	// <nil>
	// written by the second leader
	// <nil>
	// refused: true
}

func ExampleObserve() {
	nodes := memory.New(1)
	candidate, _ := holdfast.New(nodes, nil)
	client, _ := holdfast.New(nodes.Peer(), nil)
	defer candidate.Close()
	defer client.Close()
	ctx := context.Background()
	term, _ := election.Campaign(ctx, candidate, "scheduler", "10.0.0.7:8080", nil)
	defer term.Resign(ctx)

	for leader, err := range election.Observe(ctx, client, "scheduler") {
		if err != nil {
			continue // during an outage the leader is unknown
		}
		fmt.Println(leader.Value, leader.Term == term.Term())
		break
	}
	// Output:
	// 10.0.0.7:8080 true
}

func ExampleRun() {
	client, _ := holdfast.New(memory.New(1), nil)
	defer client.Close()
	err := election.Run(context.Background(), client, "scheduler", "", nil, election.Callbacks{
		OnStartedLeading: func(ctx context.Context, term holdfast.Token) { fmt.Println("leading", term > 0) },
		OnStoppedLeading: func() { fmt.Println("stopped") },
	})
	fmt.Println(err)
	// Output:
	// leading true
	// stopped
	// <nil>
}
