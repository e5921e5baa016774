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
	seen := observed{leaders: make(map[holdfast.Token]election.Leader)}
	var watching sync.WaitGroup
	watching.Go(func() { b.observeLeaders(looking, watcher, "k", &seen) })
	all := b.newClients(candidates)
	runTogether(candidates, func(i int) {
		err := b.retryLate(func() error { return b.leadOnce(all[i], fmt.Sprintf("10.0.0.%d:8080", i), &seen) })
		if err != nil {
			b.Errorf("Campaign() = %v", err)
		}
	})
	stop()
	watching.Wait()
	b.checkCleared()
}

// observed has the leaders that an observer has seen.
type observed struct {
	mu      sync.Mutex // guards the fields below
	leaders map[holdfast.Token]election.Leader
	last    holdfast.Token // term of the last leader
}

// leadOnce leads until the observer has seen the leader with value. It returns an error if the lease ended before.
func (b *bench) leadOnce(c *holdfast.Client, value string, seen *observed) error {
	term, err := election.Campaign(b.boundedContext(), c, "k", value, &holdfast.AcquireOptions{TTL: b.long})
	if err != nil {
		return err
	}
	seen.mu.Lock()
	if term.Term() <= seen.last {
		b.Errorf("term %d after %d", term.Term(), seen.last)
	}
	seen.last = term.Term()
	seen.mu.Unlock()
	var leader election.Leader
	b.eventually(fmt.Sprintf("the leader of term %d is observed", term.Term()), func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		leader = seen.leaders[term.Term()]
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
}

// observeLeaders adds each leader that an observer sees to seen, until ctx ends.
func (b *bench) observeLeaders(ctx context.Context, c *holdfast.Client, key string, seen *observed) {
	for leader, err := range election.Observe(ctx, c, key) {
		switch {
		case errors.Is(err, election.ErrTermDecreased):
			b.Error(err)
		case err == nil && leader.Term != 0:
			seen.mu.Lock()
			seen.leaders[leader.Term] = leader
			seen.mu.Unlock()
		}
	}
}
