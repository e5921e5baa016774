package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/election"
)

var electingCases = []testCase{
	{"LeadersFollowInTurn", leadersFollowInTurn},
}

// leadersFollowInTurn lets candidates lead in turn. An observer sees each leader, in terms that rise.
func leadersFollowInTurn(b *bench) {
	if c := b.newClient(); !b.limits.Token {
		_, err := election.Campaign(b.Context(), c, "k", "x", nil)
		b.checkError(err, holdfast.ErrUnsupported)
		return
	}
	b.skipWithout(b.can.inspect, "driver.Inspector")
	const candidates = 3
	watcher := b.newClient()
	looking, stop := context.WithCancel(b.Context())
	defer stop()
	seen := make(chan election.Leader)
	var watching sync.WaitGroup
	watching.Go(func() { b.observeLeaders(looking, watcher, "k", seen) })
	var mu sync.Mutex // guards last
	var last holdfast.Token
	all := b.newClients(candidates)
	runTogether(candidates, func(i int) {
		var term *election.Leadership
		value := fmt.Sprintf("10.0.0.%d:8080", i)
		err := b.retryLate(func() (err error) {
			term, err = election.Campaign(b.contextInTime(), all[i], "k", value, &holdfast.AcquireOptions{TTL: b.long})
			return err
		})
		if err != nil {
			b.Errorf("Campaign() = %v", err)
			return
		}
		mu.Lock()
		if term.Term() <= last {
			b.Errorf("term %d after %d", term.Term(), last)
		}
		last = term.Term()
		mu.Unlock()
		select {
		case leader := <-seen:
			if leader.Term != term.Term() || leader.Value != value || leader.Holder.PID == 0 {
				b.Errorf("observed %+v, want term %d and %q", leader, term.Term(), value)
			}
		case <-time.After(b.patience):
			b.Errorf("the leader of term %d was not observed", term.Term())
		}
		if err := term.Resign(b.Context()); err != nil && !b.isStall(err) {
			b.Errorf("Resign() = %v", err)
		}
	})
	stop()
	watching.Wait()
	b.checkCleared()
}

// observeLeaders sends each leader that an observer sees to seen, until ctx ends.
func (b *bench) observeLeaders(ctx context.Context, c *holdfast.Client, key string, seen chan<- election.Leader) {
	for leader, err := range election.Observe(ctx, c, key) {
		switch {
		case errors.Is(err, election.ErrTermDecreased):
			b.Error(err)
		case err == nil && leader.Term != 0:
			select {
			case seen <- leader:
			case <-ctx.Done():
			}
		}
	}
}
