package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"

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
	var mu sync.Mutex // guards the fields below
	seen := make(map[holdfast.Token]election.Leader)
	var last holdfast.Token
	var watching sync.WaitGroup
	watching.Go(func() {
		b.observeLeaders(looking, watcher, "k", func(l election.Leader) {
			mu.Lock()
			defer mu.Unlock()
			seen[l.Term] = l
		})
	})
	all := b.newClients(candidates)
	runTogether(candidates, func(i int) {
		value := fmt.Sprintf("10.0.0.%d:8080", i)
		err := b.retryLate(func() error {
			term, err := election.Campaign(b.boundedContext(), all[i], "k", value, &holdfast.AcquireOptions{TTL: b.long})
			if err != nil {
				return err
			}
			mu.Lock()
			if term.Term() <= last {
				b.Errorf("term %d after %d", term.Term(), last)
			}
			last = term.Term()
			mu.Unlock()
			var leader election.Leader
			b.eventually(fmt.Sprintf("the leader of term %d is observed", term.Term()), func() bool {
				mu.Lock()
				defer mu.Unlock()
				leader = seen[term.Term()]
				return leader.Term != 0 || term.Context().Err() != nil
			})
			if leader.Term == 0 {
				return context.Cause(term.Context())
			}
			if leader.Value != value || leader.Holder.PID == 0 {
				b.Errorf("observed %+v, want the value %q", leader, value)
			}
			if err := term.Resign(b.Context()); err != nil && !b.isStall(err) {
				b.Errorf("Resign() = %v", err)
			}
			return nil
		})
		if err != nil {
			b.Errorf("Campaign() = %v", err)
		}
	})
	stop()
	watching.Wait()
	b.checkCleared()
}

// observeLeaders calls seen with each leader that an observer sees, until ctx ends.
func (b *bench) observeLeaders(ctx context.Context, c *holdfast.Client, key string, seen func(election.Leader)) {
	for leader, err := range election.Observe(ctx, c, key) {
		switch {
		case errors.Is(err, election.ErrTermDecreased):
			b.Error(err)
		case err == nil && leader.Term != 0:
			seen(leader)
		}
	}
}
