//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/election"
	_ "github.com/holdfast-go/holdfast/etcd"
	_ "github.com/holdfast-go/holdfast/postgres"
	_ "github.com/holdfast-go/holdfast/redis"
	_ "github.com/holdfast-go/holdfast/sqllock/mysql"
	_ "github.com/holdfast-go/holdfast/sqllock/sqlite"
	_ "github.com/holdfast-go/holdfast/zookeeper"
)

// orderVariable has the order for this process if it is a client.
const orderVariable = "SOAK_CLIENT"

const (
	ttl      = 5 * time.Second
	patience = 30 * time.Second // longer than any fault
)

// order holds the settings of a client process.
type order struct {
	Name  string        `json:"name"` // unique name of the process
	URL   string        `json:"url"`
	Board string        `json:"board"`
	Hot   int           `json:"hot"`   // number of names in the relay
	Beat  time.Duration `json:"beat"`  // interval of each name's hand-overs
	Pause time.Duration `json:"pause"` // mean pause of each other worker between two turns
}

// state holds the counts of a client process.
type state struct {
	Granted    int64  `json:"granted"`
	HandedOver int64  `json:"handed_over"` // after a wait, by the service or inside the process
	GivenUp    int64  `json:"given_up"`    // cancelled waits
	Failed     int64  `json:"failed"`      // failed acquisitions and releases
	Lost       int64  `json:"lost"`        // lost leases
	Overlaps   int64  `json:"overlaps"`    // two holders at work at once
	Disorders  int64  `json:"disorders"`   // tokens that did not rise
	Error      string `json:"error,omitempty"`

	Heap       uint64 `json:"heap"`
	Goroutines int    `json:"goroutines"`
	Files      int    `json:"files"`
}

// soaker is a client process.
type soaker struct {
	*order
	client *holdfast.Client
	board  *sharedBoard
	short  time.Duration // minimal TTL of the engine

	granted, handedOver, givenUp, failed, lost, fresh atomic.Int64
	lastError                                         atomic.Pointer[string]
}

// openDriver opens the URL. It retries until ctx ends: servers may be down.
func openDriver(ctx context.Context, url string) (holdfast.Driver, error) {
	for {
		d, err := driver.Open(ctx, url, nil)
		if err == nil || ctx.Err() != nil {
			return d, err
		}
		fmt.Fprintln(os.Stderr, "soak: to be tried again:", err)
		sleepFor(ctx, time.Second)
	}
}

// runClient runs this process as a client. It answers each line of its standard input with its state, and ends
// with the input.
func runClient(text string) error {
	signal.Ignore(os.Interrupt) // the parent gets the signal too, and decides
	s := &soaker{order: new(order)}
	if err := json.Unmarshal([]byte(text), s.order); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var err error
	if s.board, err = openBoard(s.Board); err != nil {
		return err
	}
	drv, err := openDriver(ctx, s.URL)
	if err != nil {
		return err
	}
	s.short = max(drv.Limits().MinTTL, 2*time.Second)
	s.client, err = holdfast.New(drv, &holdfast.Options{Hooks: holdfast.Hooks{
		Acquired: func(e holdfast.AcquiredEvent) {
			if e.WaitReported || e.HandOver {
				s.handedOver.Add(1)
			}
		},
		Lost: func(e holdfast.LostEvent) {
			if !strings.HasPrefix(e.Key, newNames) { // some of these leases expire on purpose
				s.lost.Add(1)
			}
		},
	}})
	if err != nil {
		return err
	}
	var workers sync.WaitGroup
	s.startWorkers(ctx, &workers)
	answers := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := answers.Encode(s.state()); err != nil {
			break
		}
	}
	cancel()
	workers.Wait()
	return s.client.Close()
}

func (s *soaker) state() state {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	st := state{
		Granted: s.granted.Load(), HandedOver: s.handedOver.Load(), GivenUp: s.givenUp.Load(), Failed: s.failed.Load(), Lost: s.lost.Load(),
		Overlaps: s.board.overlaps.Load(), Disorders: s.board.disorders.Load(),
		Heap: m.HeapAlloc, Goroutines: runtime.NumGoroutine(), Files: len(files),
	}
	if e := s.lastError.Load(); e != nil {
		st.Error = *e
	}
	return st
}

// otherWorkers are the workers beside the relay. Each pauses between its turns.
var otherWorkers = []func(*soaker, context.Context){
	(*soaker).takeNewName, (*soaker).takeNewName, (*soaker).takeCrowded, (*soaker).takeCrowded, (*soaker).takeCrowded, (*soaker).giveUpSoon,
	(*soaker).takeSlot, (*soaker).takeSlot, (*soaker).takeAsReader, (*soaker).takeAsReader, (*soaker).takeSeveral, (*soaker).leadBriefly,
}

// startWorkers starts all workers, which end with ctx.
func (s *soaker) startWorkers(ctx context.Context, workers *sync.WaitGroup) {
	for n := range s.Hot {
		workers.Go(func() {
			for ctx.Err() == nil {
				s.takeRelayed(ctx, n)
			}
		})
	}
	for _, turn := range otherWorkers {
		workers.Go(func() {
			for ctx.Err() == nil {
				sleepFor(ctx, rand.N(2*s.Pause))
				turn(s, ctx)
			}
		})
	}
}

// takeLock acquires a lock, holds it for a time, recorded on the board, and releases it.
func (s *soaker) takeLock(ctx context.Context, acquire acquirer, hold time.Duration, cells func(*holdfast.Lease) []int) {
	s.takeUntil(ctx, acquire, func() time.Duration { return hold }, cells)
}

// acquirer acquires a lock, a slot, or a reader's or the writer's part.
type acquirer func(context.Context, *holdfast.AcquireOptions) (*holdfast.Lease, error)

// lockAcquirer returns the acquirer of key as a lock.
func (s *soaker) lockAcquirer(key string) acquirer {
	return func(ctx context.Context, opts *holdfast.AcquireOptions) (*holdfast.Lease, error) {
		return s.client.Acquire(ctx, key, opts)
	}
}

// takeUntil is takeLock with a duration that hold decides after the grant.
func (s *soaker) takeUntil(ctx context.Context, acquire acquirer, hold func() time.Duration, cells func(*holdfast.Lease) []int) {
	l, err := acquire(ctx, &holdfast.AcquireOptions{TTL: ttl, Wait: patience})
	if err != nil {
		s.countFailure(ctx, err)
		return
	}
	s.holdLeases(ctx, []*holdfast.Lease{l}, cells, hold())
	s.releaseLease(l)
}

// holdLeases works under new leases.
func (s *soaker) holdLeases(ctx context.Context, leases []*holdfast.Lease, cells func(*holdfast.Lease) []int, hold time.Duration) {
	s.granted.Add(1)
	var leave []func()
	for _, l := range leases {
		for _, n := range cells(l) {
			leave = append(leave, s.board.enterCell(n, l))
		}
	}
	sleepFor(ctx, hold)
	for _, f := range leave {
		f()
	}
}

// releaseLease releases a lease, or leases.
func (s *soaker) releaseLease(l interface{ Release(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := l.Release(ctx); err != nil {
		s.noteError(err)
	}
}

// countFailure counts an acquisition that failed, unless the process is ending.
func (s *soaker) countFailure(ctx context.Context, err error) {
	if ctx.Err() == nil {
		s.noteError(err)
		sleepFor(ctx, 100*time.Millisecond)
	}
}

func (s *soaker) noteError(err error) {
	s.failed.Add(1)
	text := err.Error()
	s.lastError.Store(&text)
}

func inCells(cells ...int) func(*holdfast.Lease) []int {
	return func(*holdfast.Lease) []int { return cells }
}

// takeRelayed acquires a name for which a worker of the other process always waits: each release is a
// hand-over. It happens at the next beat of the clock that all processes share, so that a slow hand-over
// delays no later one.
func (s *soaker) takeRelayed(ctx context.Context, n int) {
	s.takeUntil(ctx, s.lockAcquirer(fmt.Sprintf("relay/%d", n)), func() time.Duration {
		beat := int64(s.Beat)
		rest := beat - (monotonicTime()+beat*int64(n)/int64(s.Hot))%beat
		if rest < beat/2 { // the next waiter may not be there yet
			rest += beat
		}
		return time.Duration(rest)
	}, inCells(n))
}

// takeCrowded acquires a name that has several callers in each process.
func (s *soaker) takeCrowded(ctx context.Context) {
	s.takeLock(ctx, s.lockAcquirer("crowd"), rand.N(s.Pause/4), inCells(crowdCell))
}

const newNames = "new/"

// takeNewName acquires a new name, and lets every fifth lease expire. The hash tag keeps the names in few slots
// of a Redis Cluster, which keeps a counter for each slot that was ever used.
func (s *soaker) takeNewName(ctx context.Context) {
	n := s.fresh.Add(1)
	key := fmt.Sprintf("%s{%d}/%s/%d", newNames, n%64, s.Name, n)
	if n%5 > 0 {
		s.takeLock(ctx, s.lockAcquirer(key), time.Millisecond, inCells())
		return
	}
	//holdfastvet:ignore it is left to lapse
	if _, err := s.client.Acquire(ctx, key, &holdfast.AcquireOptions{TTL: s.short, NoRenew: true, Wait: patience}); err != nil {
		s.countFailure(ctx, err)
		return
	}
	s.granted.Add(1)
}

// giveUpSoon waits for a lock with a short timeout.
func (s *soaker) giveUpSoon(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, rand.N(50*time.Millisecond))
	defer cancel()
	l, err := s.client.Acquire(wait, "relay/0", &holdfast.AcquireOptions{TTL: ttl})
	switch {
	case err == nil:
		s.holdLeases(ctx, []*holdfast.Lease{l}, inCells(0), 0)
		s.releaseLease(l)
	case errors.Is(err, context.DeadlineExceeded):
		s.givenUp.Add(1)
	default:
		s.countFailure(ctx, err)
	}
}

// takeSlot acquires a slot of a semaphore.
func (s *soaker) takeSlot(ctx context.Context) {
	s.takeLock(ctx, s.client.Semaphore("semaphore", places).Acquire, rand.N(s.Pause/2), func(l *holdfast.Lease) []int {
		return []int{placeCell + l.Slot()%places}
	})
}

// takeAsReader acquires a lock as a reader, or one time in five as the writer.
func (s *soaker) takeAsReader(ctx context.Context) {
	shared := rand.N(5) > 0
	acquire := s.client.RWLock("readers", readers).AcquireWrite
	if shared {
		acquire = s.client.RWLock("readers", readers).AcquireRead
	}
	s.takeLock(ctx, acquire, rand.N(s.Pause/4), func(l *holdfast.Lease) []int {
		if shared {
			return []int{readerCell + l.Slot()%readers}
		}
		return []int{readerCell, readerCell + 1, readerCell + 2, readerCell + 3}
	})
}

// takeSeveral acquires two of three locks at once.
func (s *soaker) takeSeveral(ctx context.Context) {
	keys := []string{"bundle/0", "bundle/1", "bundle/2"}
	i := rand.N(len(keys))
	all, err := s.client.AcquireAll(ctx, []string{keys[i], keys[(i+1)%len(keys)]}, &holdfast.AcquireOptions{TTL: ttl, Wait: patience})
	if err != nil {
		s.countFailure(ctx, err)
		return
	}
	s.holdLeases(ctx, all.All(), func(l *holdfast.Lease) []int {
		for n, key := range keys {
			if key == l.Key() {
				return []int{bundleCell + n}
			}
		}
		return nil
	}, rand.N(s.Pause/4))
	s.releaseLease(all)
}

// leadBriefly campaigns, leads for a while and resigns.
func (s *soaker) leadBriefly(ctx context.Context) {
	term, err := election.Campaign(ctx, s.client, "leader", s.Name, &holdfast.AcquireOptions{TTL: ttl, Wait: patience})
	if err != nil {
		s.countFailure(ctx, err)
		return
	}
	s.holdLeases(ctx, []*holdfast.Lease{term.Lease()}, inCells(leaderCell), rand.N(s.Pause/2))
	s.releaseLease(term.Lease())
}

func sleepFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
