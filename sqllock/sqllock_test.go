package sqllock_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/locktest"
)

// TestConformance runs the suite on each server with default sessions; TestSessionSettingsDoNotChangeAnswers has others.
// SQLite runs it in a bubble: see package sqlite.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, b := range servers {
		t.Run(b.name, func(t *testing.T) {
			if testing.Short() && b.name != onMariaDB.name {
				t.Skip("-short goes through the suite on MariaDB")
			}
			t.Parallel()
			locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service { return newRig(t, b).lockService() }})
		})
	}
}
