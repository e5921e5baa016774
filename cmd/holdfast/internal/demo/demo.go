// Package demo demonstrates locks under failures, in a few seconds: several clients append to one ledger, two
// of five nodes are stopped, and a holder is paused beyond its lease.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	ttl  = time.Second
	act  = time.Second            // duration of each part of the story
	read = 500 * time.Microsecond // pause between a read of the ledger and the write
)

var names = []string{"ada", "ben", "cleo", "dan"}

// ErrBroken is returned if a write was lost or doubled, or a stale one was accepted.
var ErrBroken = errors.New("the ledger is broken")

// stage holds the state of one demonstration.
type stage struct {
	nodes  Nodes
	out    io.Writer
	begun  time.Time
	ledger ledger
	failed atomic.Int64 // attempts that ended with an error

	clients map[string]*holdfast.Client
	written map[string]int // by client: number of written entries
	longest map[string]time.Duration
	stale   error // the error of the paused holder
	err     error // the first error of writing to out
}

// Run runs the demonstration and prints its story. It blocks for about five seconds.
func Run(ctx context.Context, nodes Nodes, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, pace.DemoTime()) // end even if something breaks
	defer cancel()
	s := &stage{nodes: nodes, out: out, begun: time.Now(), clients: make(map[string]*holdfast.Client)}
	defer s.close()
	s.say("%v are up; a majority of three decides", nodes)
	if err := s.open(ctx); err != nil {
		return err
	}
	if err := s.play(ctx); err != nil {
		return err
	}
	return errors.Join(s.sum(), s.err)
}

func (s *stage) open(ctx context.Context) error {
	for _, name := range names {
		drv, err := s.nodes.Open(ctx)
		if err != nil {
			return err
		}
		client, err := newClient(drv, name)
		if err != nil {
			return err
		}
		s.clients[name] = client
	}
	return nil
}

// newClient returns the client of an actor. It logs nothing: the story reports failures.
func newClient(drv driver.Driver, name string) (*holdfast.Client, error) {
	return holdfast.New(drv, &holdfast.Options{Holder: holdfast.Holder{Program: name}, Logger: slog.New(slog.DiscardHandler)})
}

func (s *stage) close() {
	var all sync.WaitGroup
	for _, c := range s.clients {
		all.Go(func() { c.Close() })
	}
	all.Wait()
}

// play runs the story.
func (s *stage) play(ctx context.Context) error {
	s.say("%s append to one ledger, each under the lock %q", strings.Join(names, ", "), key)
	working, stop := context.WithCancel(ctx)
	writers := s.write(working)
	defer writers.Wait()
	defer stop()

	s.pass(ctx, act)
	before := s.ledger.len()
	s.say("%d entries, about %d a second", before, before*int(time.Second)/int(act))
	s.nodes.Stop(1)
	s.nodes.Stop(3)
	s.say("nodes 2 and 4 are stopped; the other three go on")
	s.pass(ctx, act)
	s.say("%d entries more", s.ledger.len()-before)

	if err := s.pauseHolder(ctx); err != nil {
		return err
	}
	for _, i := range []int{1, 3} {
		if err := s.nodes.Start(ctx, i); err != nil {
			return err
		}
	}
	before = s.ledger.len()
	s.say("nodes 2 and 4 are back")
	s.pass(ctx, act)
	s.say("%d entries more", s.ledger.len()-before)
	stop()
	writers.Wait()
	return ctx.Err()
}

// write makes every client append until ctx ends.
func (s *stage) write(ctx context.Context) *sync.WaitGroup {
	counts, waits := make([]int, len(names)), make([]time.Duration, len(names))
	var all, counted sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			for ctx.Err() == nil {
				waited, err := s.appendOne(ctx, name, counts[i])
				waits[i] = max(waits[i], waited)
				switch {
				case err == nil:
					counts[i]++
				case ctx.Err() == nil:
					s.failed.Add(1)
				}
			}
		})
	}
	counted.Go(func() {
		all.Wait()
		s.written, s.longest = make(map[string]int), make(map[string]time.Duration)
		for i, name := range names {
			s.written[name], s.longest[name] = counts[i], waits[i]
		}
	})
	return &counted
}

// appendOne writes one entry under the lock.
func (s *stage) appendOne(ctx context.Context, name string, own int) (waited time.Duration, err error) {
	asked := time.Now()
	err = s.clients[name].Do(ctx, key, &holdfast.AcquireOptions{TTL: ttl}, func(_ context.Context, lease *holdfast.Lease) error {
		waited = time.Since(asked)
		last, err := s.ledger.read(lease)
		if err != nil {
			return err
		}
		time.Sleep(read) // the gap that the lock protects
		return s.ledger.append(lease, entry{number: last + 1, client: name, own: own})
	})
	return waited, err
}

// pauseHolder lets one more client acquire the lock and sleep past the end of its lease, as in a long garbage
// collection or on a suspended machine.
func (s *stage) pauseHolder(ctx context.Context) error {
	drv, err := s.nodes.Open(ctx)
	if err != nil {
		return err
	}
	client, err := newClient(drv, "eve")
	if err != nil {
		return err
	}
	defer client.Close()
	lease, err := client.Acquire(ctx, key, &holdfast.AcquireOptions{TTL: ttl, NoRenew: true}) // the pause also stops the watchdog
	if err != nil {
		return err
	}
	last, err := s.ledger.read(lease)
	if err != nil {
		return err
	}
	s.say("eve gets the lock, token %d, reads that %d entries are there, and is paused", lease.Token(), last)
	paused := time.Now()
	<-lease.Context().Done() // eve does not check it: she sleeps
	for s.ledger.len() == last && ctx.Err() == nil {
		s.pass(ctx, 10*time.Millisecond)
	}
	s.say("her lease of %v runs out; the others wait for that and no longer, then write on", ttl)
	s.pass(ctx, act/2)
	s.say("after %v eve wakes up, believes that she has the lock, and writes entry %d", time.Since(paused).Round(10*time.Millisecond), last+1)
	s.stale = s.ledger.append(lease, entry{number: last + 1, client: "eve"})
	if s.stale == nil {
		s.say("the ledger takes it: that is the accident which tokens are for")
		return nil
	}
	s.say("the ledger rejects her: %v", s.stale)
	return nil
}

// sum prints the summary.
func (s *stage) sum() error {
	a := s.ledger.check(s.written)
	s.say("done")
	s.print("\nSummary\n")
	for _, name := range names {
		s.print("  %-5s %5d entries, longest wait %v\n", name, s.written[name], s.longest[name].Round(time.Millisecond))
	}
	worst := slices.Max([]int{a.lost, a.doubled, a.unordered})
	s.print("  %d entries in the ledger: %d lost, %d doubled, %d with a token lower than the one before\n", a.entries, a.lost, a.doubled, a.unordered)
	s.print("  attempts that failed and were made again: %d\n", s.failed.Load())
	refused := errors.Is(s.stale, fence.ErrStale)
	s.print("  stale writes rejected: %d of 1\n", map[bool]int{true: 1}[refused])
	if worst > 0 || !refused || a.entries == 0 {
		s.print("  verdict: BROKEN\n")
		return ErrBroken
	}
	s.print("  verdict: no write lost, none doubled\n")
	return nil
}

// say prints an event with its time.
func (s *stage) say(format string, args ...any) {
	s.print("%6.2fs  %s\n", time.Since(s.begun).Seconds(), fmt.Sprintf(format, args...))
}

func (s *stage) print(format string, args ...any) {
	if _, err := fmt.Fprintf(s.out, format, args...); err != nil && s.err == nil {
		s.err = err
	}
}

func (s *stage) pass(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
