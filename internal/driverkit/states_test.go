package driverkit_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// The test repeats this for each server as the first choice.
func TestAvailableServersAreAskedFirst(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d"}
	begun := make(map[string]bool)
	for range 100 {
		states := driverkit.NewStates(names...)
		begun[driverkit.AskOrder(states, names, -1)[0]] = true
		states.Report(0, errors.New("refused"))
		states.Report(2, driverkit.StallError{Err: errors.New("silent")})
		for leader, want := range map[int][]string{-1: {"bdac", "bdca", "dbac", "dbca"}, 0: {"abdc", "adbc"}, 2: {"cbda", "cdba"}, 3: {"dbac", "dbca"}} {
			if got := strings.Join(driverkit.AskOrder(states, names, leader), ""); !slices.Contains(want, got) {
				t.Errorf("Order(%d) = %s, want one of %s", leader, got, want)
			}
		}
	}
	if len(begun) != len(names) {
		t.Errorf("a hundred clients begin with %v, want all of %v", begun, names)
	}
}
