//go:build unix

package run

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/memory"
)

// The report names the end of the guard as the cause.
func TestKilledCommandIsNotContinued(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(memory.New(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	leases, err := client.AcquireAll(t.Context(), []string{"k"}, nil)
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
		s := &session{plan: &Plan{}, leases: leases, log: slog.New(slog.NewTextHandler(&log, nil)), exited: row.exited}
		s.guardEnded(row.killed)
		if s.why != row.why || s.gone != row.killed || strings.Contains(log.String(), "goes on") != row.goesOn {
			t.Errorf("%s: %q, gone %v, log %q", row.name, s.why, s.gone, log.String())
		}
	}
}

// Processes that end with the command, or were killed with it, are not reported. Others are reported once.
func TestDyingProcessesAreNotReported(t *testing.T) {
	t.Parallel()
	job, err := proc.Start(proc.Command{Path: "/bin/sleep", Args: []string{"sleep", "300"}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name    string
		killing bool
		after   time.Duration // time after the end of the command
		want    int
	}{
		{"AtOnce", false, 0, 0},
		{"Soon", false, pace.LingerTime(), 1},
		{"KilledAtOnce", true, pace.LingerTime(), 0},
		{"KilledAndStillThere", true, pace.StrayTime(), 1},
	} {
		var log bytes.Buffer
		s := &session{plan: &Plan{OnLost: Policy{Warn: true}}, job: job, log: slog.New(slog.NewTextHandler(&log, nil)), killing: row.killing}
		s.handleEvent(proc.Event{Kind: proc.Exited}, true)
		for range 2 {
			s.reportMembers(s.endedAt.Add(row.after))
		}
		if got := strings.Count(log.String(), "go on"); got != row.want {
			t.Errorf("%s: told %d times, want %d: %s", row.name, got, row.want, log.String())
		}
	}
	job.Signal(unix.SIGKILL)
	for range job.Events {
	}
	job.Close()
}
