package direct_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/direct"
)

func TestServersThatAreUpAreAskedBeforeTheOthers(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d"}
	states := direct.NewStates(names...)
	states.Report(0, errors.New("refused"))
	states.Report(2, direct.Stall{Err: errors.New("silent")})
	for first, want := range map[int]string{-1: "bdac", 0: "abdc", 2: "cbda", 3: "dbac"} {
		if got := strings.Join(direct.Order(states, names, first), ""); got != want {
			t.Errorf("Order(%d) = %s, want %s", first, got, want)
		}
	}
}
