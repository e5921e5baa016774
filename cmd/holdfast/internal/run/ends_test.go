//go:build unix

package run

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// TestGuardThatHasKilledLeavesNoCommandToGoOn holds that the end of a guard is told as
// what it is.
func TestGuardThatHasKilledLeavesNoCommandToGoOn(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(memory.New(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lease, err := client.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name           string
		killed, exited bool
		why            Outcome
		goesOn         bool
	}{
		{"Killed", true, false, Lost, false},
		{"KilledBeforeTheCommandWasReaped", true, true, Lost, false},
		{"Died", false, false, "", true},
		{"DiedBesideTheCommand", false, true, "", false},
	} {
		var log bytes.Buffer
		s := &session{plan: &Plan{}, lease: lease, log: slog.New(slog.NewTextHandler(&log, nil)), exited: row.exited}
		s.unguarded(row.killed)
		if s.why != row.why || s.gone != row.killed || strings.Contains(log.String(), "goes on") != row.goesOn {
			t.Errorf("%s: %q, gone %v, log %q", row.name, s.why, s.gone, log.String())
		}
	}
}
