package driver_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/member"
)

// A cause that several nodes share is printed once, with all their names.
func TestNodesWithSameCauseAreNamedTogether(t *testing.T) {
	t.Parallel()
	young, refused := errors.New("too young"), errors.New("refused")
	soon, later := &member.QuarantineError{Left: 59 * time.Second}, fmt.Errorf("new: %w", &member.QuarantineError{Left: time.Minute})
	for want, e := range map[string]*driver.UnavailableError{
		"node a: refused": {Need: 1, Nodes: []driver.NodeError{{Node: "a", Err: refused}}},
		"need 2 nodes: nodes a, c: too young; node b: refused": {
			Need: 2, Nodes: []driver.NodeError{{Node: "a", Err: young}, {Node: "b", Err: refused}, {Node: "c", Err: errors.New("too young")}},
		},
		"need 2 nodes: node a: <nil>":      {Need: 2, Nodes: []driver.NodeError{{Node: "a"}}},
		"need 2 nodes":                     {Need: 2},
		"need 1 node: nodes a, b: refused": {Need: 1, Nodes: []driver.NodeError{{Node: "a", Err: refused}, {Node: "b", Err: refused}}},
		"nodes a, b: refused":              {Nodes: []driver.NodeError{{Node: "a", Err: refused}, {Node: "b", Err: refused}}},
		"refused":                          {Err: refused},
		"lock service is unavailable":      {},
		"need 2 nodes: nodes a, c: " + later.Error() + "; node b: refused": {
			Need: 2, Nodes: []driver.NodeError{{Node: "a", Err: soon}, {Node: "b", Err: refused}, {Node: "c", Err: later}},
		},
	} {
		if got := e.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
