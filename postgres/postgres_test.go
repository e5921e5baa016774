package postgres_test

import (
	"testing"

	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/postgres"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]postgres.Options{"listening": {}, "polling": {NoListen: true}} {
		t.Run(name, func(t *testing.T) {
			if opts.NoListen { // nightly; TestSessionSettingsDoNotChangeAnswers compares its statements in each run
				gates.Nightly(t, "sizes")
			}
			t.Parallel()
			locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service {
				r := newRig(t)
				r.opts.NoListen = opts.NoListen
				return r.lockService()
			}})
		})
	}
}
