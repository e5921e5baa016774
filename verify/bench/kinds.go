package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

// callersPerName is the number of callers that read or write one name.
const callersPerName = 64

// measureKinds measures read-write locks and semaphores.
func measureKinds(ctx context.Context, s *session) error {
	for _, part := range []struct {
		name string
		run  func(context.Context, *session) error
	}{{"readers", readWrites}, {"semaphores", measureSemaphores}} {
		if !s.wantsPart(part.name) {
			continue
		}
		if err := part.run(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// readWrites measures the cost of read-write locks.
func readWrites(ctx context.Context, s *session) error {
	rates := [][]string{{"nodes", "clients", "callers", "locks/s", "longest wait ms"}}
	waits := [][]string{{"nodes", "clients", "readers", "longest reader ms", "writes", "writer waits p50 ms", "p90 ms", "longest ms"}}
	costs := [][]string{{"nodes", "a writer beside", "to take p50 ms", "to release p50 ms", "requests"}}
	err := s.eachService(ctx, func(sv *service) error {
		if sv.redis == nil {
			return nil
		}
		nodes := fmt.Sprint(sv.nodes)
		for _, clients := range []int{1, 8} {
			_, c, stop, err := s.openClients(ctx, sv, clients)
			if err != nil {
				return err
			}
			defer stop()
			for _, side := range []struct {
				name string
				kind kind
			}{
				{"readers", kind{readers: callersPerName, shared: true}},
				{"writers", kind{readers: callersPerName}},
				{"of a plain lock", kind{}},
			} {
				fmt.Fprintf(s.progress, "%d %s on %s with %d client(s) …\n", callersPerName, side.name, sv.name, clients)
				each, longest, err := s.runCrowd(ctx, c, side.kind, func() time.Duration { return time.Millisecond })
				if err != nil {
					return err
				}
				rates = append(rates, []string{
					nodes, fmt.Sprint(clients), fmt.Sprintf("%d %s", callersPerName, side.name),
					formatDigits(float64(sumOf(each)) / s.settings.time.Seconds()), formatDigits(inMillis(longest)),
				})
			}
			line, err := s.measureWriterWait(ctx, c)
			if err != nil {
				return err
			}
			waits = append(waits, append([]string{nodes, fmt.Sprint(clients)}, line...))
		}
		for _, readers := range []int{0, 8, 16, callersPerName} {
			line, err := s.writerCost(ctx, sv, readers)
			if err != nil {
				return err
			}
			costs = append(costs, append([]string{nodes}, line...))
		}
		return nil
	})
	fmt.Fprintf(s.out, "%d callers of one name, with 1 ms of work:\n\n%s", callersPerName, markdownTable(rates, 3))
	fmt.Fprintf(s.out, "\nA writer who comes every 50 ms among readers that come and go, with up to 20 ms of work:\n\n%s", markdownTable(waits, 0))
	fmt.Fprintf(s.out, "\nOne caller alone, against as many places; 0 is a plain lock:\n\n%s", markdownTable(costs, 0))
	return err
}

// openClients opens n clients of sv, and returns them with a lock name that was never used.
func (s *session) openClients(ctx context.Context, sv *service, n int) (name string, clients []*holdfast.Client, stop func(), err error) {
	name, addrs, _, err := sv.prepareService(noFault)
	if err != nil {
		return "", nil, nil, err
	}
	stop = func() {
		for _, c := range clients {
			c.Close()
		}
	}
	for range n {
		c, err := sv.libraries[0].open(ctx, addrs, callersPerName) // the first library is Holdfast
		if err != nil {
			stop()
			return "", nil, nil, err
		}
		clients = append(clients, c.(holdfastClient).Client)
	}
	return name, clients, stop, nil
}

// sumOf returns the sum of each.
func sumOf(each []int) (sum int) {
	for _, n := range each {
		sum += n
	}
	return sum
}

// kind is a lock, a semaphore of slots, or a read-write lock of readers, acquired as a reader or as the
// writer.
type kind struct {
	slots, readers int
	shared         bool
}

// acquirerFor returns the function by which c acquires key as that kind.
func (k kind) acquirerFor(c *holdfast.Client, key string) acquirer {
	switch {
	case k.slots > 0:
		return c.Semaphore(key, k.slots).Acquire
	case k.shared:
		return c.RWLock(key, k.readers).AcquireRead
	case k.readers > 0:
		return c.RWLock(key, k.readers).AcquireWrite
	}
	return func(ctx context.Context, opts *holdfast.AcquireOptions) (*holdfast.Lease, error) {
		return c.Acquire(ctx, key, opts)
	}
}

type acquirer func(context.Context, *holdfast.AcquireOptions) (*holdfast.Lease, error)

// runCrowd makes callers acquire and release one name for the time of a run. It returns the number of turns of
// each caller, and the longest wait.
func (s *session) runCrowd(
	ctx context.Context, clients []*holdfast.Client, k kind, work func() time.Duration,
) (each []int, longest time.Duration, err error) {
	each = make([]int, callersPerName)
	var mu sync.Mutex
	var all sync.WaitGroup
	end := time.Now().Add(s.settings.time)
	for i := range callersPerName {
		all.Go(func() {
			for time.Now().Before(end) {
				asked := time.Now()
				l, failed := k.acquirerFor(clients[i%len(clients)], "crowd")(ctx, nil)
				waited := time.Since(asked)
				if failed == nil {
					time.Sleep(work())
					failed = l.Release(ctx)
				}
				mu.Lock()
				if longest = max(longest, waited); time.Now().Before(end) {
					each[i]++
				}
				if failed != nil {
					err = failed
				}
				mu.Unlock()
				if failed != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return each, longest, err
}

// measureWriterWait returns the time that a writer waits among readers that come and go.
func (s *session) measureWriterWait(ctx context.Context, clients []*holdfast.Client) ([]string, error) {
	var waits []time.Duration
	var mu sync.Mutex
	var longest time.Duration
	failed := make(chan error, 1)
	over, stop := context.WithTimeout(ctx, s.settings.time)
	defer stop()
	go func() {
		var err error
		for over.Err() == nil && err == nil {
			var l *holdfast.Lease
			asked := time.Now()
			if l, err = clients[0].RWLock("crowd", callersPerName).AcquireWrite(ctx, nil); err != nil {
				break
			}
			waits = append(waits, time.Since(asked))
			err = l.Release(ctx)
			time.Sleep(50 * time.Millisecond) // pause, while others take turns
		}
		failed <- err
	}()
	_, _, err := s.runCrowd(ctx, clients, kind{readers: callersPerName, shared: true}, func() time.Duration {
		work := rand.N(20 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		longest = max(longest, work)
		return work
	})
	if other := <-failed; err == nil {
		err = other
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(waits)
	at := func(share float64) string {
		return formatDigits(inMillis(waits[min(int(share*float64(len(waits))), len(waits)-1)]))
	}
	return []string{fmt.Sprint(callersPerName), formatDigits(inMillis(longest)), fmt.Sprint(len(waits)), at(0.5), at(0.9), at(1)}, nil
}

// writerCost measures a writer beside readers places, for one caller alone.
func (s *session) writerCost(ctx context.Context, sv *service, readers int) ([]string, error) {
	_, c, stop, err := s.openClients(ctx, sv, 1)
	if err != nil {
		return nil, err
	}
	defer stop()
	var take, release []time.Duration
	turns := max(int(300*s.scale), 3)
	before, err := sv.requestCount()
	if err != nil {
		return nil, err
	}
	for range turns {
		took, released, err := timeLock(ctx, kind{readers: readers}.acquirerFor(c[0], "alone"))
		if err != nil {
			return nil, err
		}
		take, release = append(take, took), append(release, released)
	}
	after, err := sv.requestCount()
	if err != nil {
		return nil, err
	}
	slices.Sort(take)
	slices.Sort(release)
	return []string{
		fmt.Sprint(readers), formatDigits(inMillis(take[turns/2])), formatDigits(inMillis(release[turns/2])), formatDigits(float64(after-before) / float64(turns)),
	}, nil
}
