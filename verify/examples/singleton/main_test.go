package main

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/verify/examples"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// machine stands for one machine. It leads until its context ends, and counts the leaders.
type machine struct {
	leading *atomic.Int32
	began   chan *holdfast.Lease
	why     chan error
}

func (m *machine) lead(ctx context.Context, lease *holdfast.Lease) error {
	if m.leading.Add(1) != 1 {
		return errors.New("another machine leads")
	}
	m.began <- lease
	<-ctx.Done()
	m.leading.Add(-1)
	m.why <- context.Cause(ctx)
	return context.Cause(ctx)
}

func TestNextMachineLeadsAfterRelease(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t, nil).Addr()
	m := &machine{new(atomic.Int32), make(chan *holdfast.Lease), make(chan error, 3)}
	start := func() (context.CancelFunc, <-chan error) {
		return examples.Start(t, func(ctx context.Context) error { return run(ctx, url, m.lead) })
	}
	stop, ended := start()
	first := examples.Soon(t, "the first machine leads", m.began)
	start()
	stop()
	if err := examples.Soon(t, "the first machine ends", ended); err != nil {
		t.Errorf("a machine that was told to stop returned %v", err)
	}
	second := examples.Soon(t, "the second machine leads", m.began)
	if second.Token() <= first.Token() {
		t.Errorf("tokens %d, %d; want them to rise", first.Token(), second.Token())
	}
}

func TestMachineWithoutLockStopsLeading(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t, nil).Addr()
	m := &machine{new(atomic.Int32), make(chan *holdfast.Lease), make(chan error, 3)}
	examples.Start(t, func(ctx context.Context) error { return run(ctx, url, m.lead) })
	examples.Soon(t, "the machine leads", m.began)
	examples.Take(t, url, "scheduler")
	if err := examples.Soon(t, "its context ends", m.why); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("the context ended with %v, want ErrLost", err)
	}
	examples.Soon(t, "the machine leads again", m.began)
}

func TestLoopEndsWithContext(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t, nil).Addr()
	stop, ended := examples.Start(t, func(ctx context.Context) error { return run(ctx, url, runSchedule) })
	locks := examples.Client(t, url)
	for {
		status, err := locks.Inspect(t.Context(), "scheduler")
		if err != nil {
			t.Fatal(err)
		}
		if status.Held {
			break
		}
	}
	stop()
	if err := examples.Soon(t, "the program ends", ended); err != nil {
		t.Error(err)
	}
	examples.Free(t, url, "scheduler")
}
