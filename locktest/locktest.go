// Package locktest is the conformance suite that every driver of Holdfast passes. It is for authors of
// drivers: their test starts the service, describes it by a Harness, and calls Run.
//
// The suite checks the promises of packages holdfast and driver: one holder at a time, tokens that rise from
// holder to holder, waits that end when they should, leases that end by their deadline, and nothing left
// behind on the service or in the process. It does not measure speed, and says nothing about a service that
// loses its data.
//
// The suite uses only the abilities that the driver declares: it scales its TTLs to driver.Driver.Limits, and
// skips a test of a missing ability with a message. One test checks that such an ability is rejected and not
// ignored (UndeclaredAbilityIsRejected). Tests that need more of a Service than it offers are skipped as well.
package locktest

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Harness gives the suite access to the driver under test.
type Harness struct {
	// Start prepares a service for one test, and undoes that in t.Cleanup. Tests run concurrently and must not
	// see each other's locks: each has its own service or, on a shared one, its own name space. Required.
	Start func(t testing.TB) Service

	// Bubble runs each test in a bubble of package testing/synctest, with virtual time. It is for drivers that
	// do no I/O. Start is called inside the bubble.
	Bubble bool

	// Cases names the tests to run. Default all. Use it for a real service whose driver also runs all tests in
	// memory.
	Cases []string
}

// Service is a running lock service. Open is required; the other fields are faults that a test may cause. If
// one is nil, the suite skips the tests that need it. No function is called by two goroutines at once, but any
// may be called while drivers are in use.
type Service struct {
	// Open returns the driver of another client. The suite closes it.
	Open func() (driver.Driver, error)

	// Nodes is the number of nodes that decide on a lock, which driver.Status and driver.UnavailableError then
	// list. 0: the service does not distinguish its nodes, and a fault of k nodes affects the whole service.
	Nodes int

	// Servers is the number of nodes that driver.Notifier reports, if each lock is kept by some of them only.
	// 0: Nodes.
	Servers int

	// Disconnect makes the service unreachable for drv, which Open returned: no request arrives in time, and there is
	// no answer and no error. It may cut off other clients as well. Reconnect ends that.
	Disconnect, Reconnect func(drv driver.Driver)

	// LoseReplies lets each node execute the next k requests and loses their replies.
	LoseReplies func(k int)

	// Delay makes each answer take d longer from now on.
	Delay func(d time.Duration)

	// StopNodes stops k nodes, which keep their data. StartNodes starts them again.
	StopNodes  func(k int)
	StartNodes func()

	// NoAlerts reports that no alert reaches a client here, as behind a connection pooler.
	NoAlerts bool

	// Leftovers names every lock and every queue entry that is still on any node. Counters of tokens and
	// descriptions of clients do not count.
	Leftovers func() ([]string, error)
}

type testCase struct {
	name string
	run  func(b *bench)
}

// allCases is the suite, theme by theme.
var allCases = concatThemes(exclusionCases, waitingCases, keepingCases, faultCases,
	inspectionCases, namingCases, nestingCases, severalCases, electingCases, closingCases)

func concatThemes(themes ...[]testCase) []testCase {
	var all []testCase
	for _, theme := range themes {
		all = append(all, theme...)
	}
	return all
}

// Run runs the suite, each test as a parallel subtest of t.
func Run(t *testing.T, h Harness) {
	if h.Start == nil {
		t.Fatal("locktest: Harness.Start is nil")
	}
	for _, name := range h.Cases {
		if !slices.ContainsFunc(allCases, func(c testCase) bool { return c.name == name }) {
			t.Errorf("locktest: Harness.Cases: there is no test %q", name)
		}
	}
	for _, c := range allCases {
		if h.Cases != nil && !slices.Contains(h.Cases, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if h.Bubble {
				synctest.Test(t, func(t *testing.T) { h.run(t, c) })
				return
			}
			h.run(t, c)
		})
	}
}

func (h Harness) run(t *testing.T, c testCase) {
	s := h.Start(t)
	if s.Open == nil {
		t.Fatal("locktest: Service.Open is nil")
	}
	watchGoroutines(t)
	b := &bench{T: t, Service: s, virtual: h.Bubble}
	b.learnLimits()
	c.run(b)
}

// keyOf returns a key that shows its origin.
func keyOf(i int) string { return fmt.Sprintf("locktest/%d", i) }
