package postgres_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/postgres"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]postgres.Options{"listening": {}, "polling": {NoListen: true}} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && opts.NoListen {
				t.Skip("-short goes through the suite once")
			}
			t.Parallel()
			locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service {
				r := newRig(t)
				r.opts.NoListen = opts.NoListen
				return r.service()
			}})
		})
	}
}
