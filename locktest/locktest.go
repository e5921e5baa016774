// Package locktest is the conformance suite that every driver of Holdfast
// passes. It is for authors of drivers: their test starts the service,
// describes it by a Harness, and calls Run.
//
// The suite holds a driver to what packages holdfast and driver promise: one
// holder at a time, tokens that rise from holder to holder, waits that end when
// they should, leases that end by their deadline, and nothing left behind on the
// service or in the process. It does not measure speed, and passing it proves
// nothing about a service that forgets what it was told.
//
// The suite asks for no more than the driver declares: driver.Driver.Limits scales its
// TTLs, and a test of an ability that the driver does not have is skipped and says so.
// That such an ability is rejected, and not ignored, is a test of its own
// (WhatIsNotDeclaredIsRefused). Tests that need more of a Service than it offers are
// skipped as well.
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
	// Start prepares a service for one test, and has t.Cleanup undo that. Tests
	// run at the same time, so that no two may see each other's locks: each has
	// a service of its own or, on a shared one, a name space of its own. Required.
	Start func(t testing.TB) Service

	// Bubble runs each test in a bubble of package testing/synctest, where time
	// is virtual. It is for drivers that do no I/O, and Start is called inside.
	Bubble bool

	// Cases are the names of the tests to run. Default all. It is for a real service
	// beside one in memory that all tests run on.
	Cases []string
}

// Service is a running lock service. Open is required; the rest says what else
// a test may do to the service. The suite leaves out the tests that need a
// function which is nil. No function is called by two goroutines at once, but
// any may be called while drivers are in use.
type Service struct {
	// Open returns the driver of one more client. The suite closes it.
	Open func() (driver.Driver, error)

	// Nodes is the number of nodes that decide on a lock, which driver.Status and
	// driver.UnavailableError then list. 0: the service has no nodes to be told apart, and
	// k nodes mean the service.
	Nodes int

	// Servers is the number of nodes that driver.Notifier reports, if each lock is kept by some of
	// them only. 0: Nodes.
	Servers int

	// Cut makes the service unreachable for drv, which Open returned, without
	// an answer and without an error: no request arrives in time. It may cut
	// off other clients as well. Mend ends that.
	Cut, Mend func(drv driver.Driver)

	// LoseReplies lets each node execute the next k requests and loses their
	// replies.
	LoseReplies func(k int)

	// Delay makes each answer take d longer than it would, from now on.
	Delay func(d time.Duration)

	// StopNodes stops k nodes, which keep what they know. StartNodes starts them
	// again.
	StopNodes  func(k int)
	StartNodes func()

	// Deaf means that no alert reaches a client here, as behind a pooler of connections.
	Deaf bool

	// Leftovers names every lock and every place in a queue that is still on any
	// node. Token counters and what describes clients do not count.
	Leftovers func() ([]string, error)
}

type testCase struct {
	name string
	run  func(b *bench)
}

// cases is the suite, theme by theme.
var cases = concatThemes(exclusion, waiting, keeping, faults, looking, naming, nesting, several, electing, closing)

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
		if !slices.ContainsFunc(cases, func(c testCase) bool { return c.name == name }) {
			t.Errorf("locktest: Harness.Cases: there is no test %q", name)
		}
	}
	for _, c := range cases {
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

// keyOf returns a name that tells where it comes from.
func keyOf(i int) string { return fmt.Sprintf("locktest/%d", i) }
