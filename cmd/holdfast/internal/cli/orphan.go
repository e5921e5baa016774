package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/sharding"
)

// orphan holds the leases whose holder has died. The guard gets it through a pipe, and forwards it through
// another, so that no other process can read the leases or a password of the backend.
type orphan struct {
	Backend   string        `json:"backend"`
	Leases    []run.Lease   `json:"leases"` // with the owners of their grants
	TTL       time.Duration `json:"ttl"`
	KeepUntil boot.Instant  `json:"keep_until"` // --hold-at-least
}

func (a *app) encodeOrphan(held run.Held, ttl, least time.Duration) []byte {
	o := orphan{Backend: a.backend, TTL: ttl, KeepUntil: boot.Now().Add(least)}
	for _, l := range held.All() {
		owner, first := driver.GrantOf(l.Owner(), int64(l.Token()))
		o.Leases = append(o.Leases, run.Lease{Name: l.Key(), Token: first, Owner: owner})
	}
	return jsonLine(o)
}

// finishOrphan does the remaining work after a guard has killed a group.
func finishOrphan(in io.Reader, log *slog.Logger) exitcode.Code {
	var did proc.Killing
	err := json.NewDecoder(in).Decode(&did)
	switch {
	case err != nil:
		err = exitcode.Usagef("%s is for the guard of a run alone: %w", proc.HeirName, err)
		log.Error(oneLine(err))
		return exitcode.Of(err)
	case did.Error != "":
		log.Error(fmt.Sprintf("guard: %s; process group %d could not be killed: %s", did.Why, did.Group, did.Error))
		return exitcode.OK
	}
	log.Error(fmt.Sprintf("guard: %s; killed process group %d", did.Why, did.Group))
	if did.Lease == nil {
		return exitcode.OK
	}
	if err = releaseOrphan(did.Lease); err != nil {
		log.Error("guard: the lock was not released, and lapses by itself: " + oneLine(err))
	}
	return exitcode.Of(err)
}

// releaseOrphan releases the locks of an orphan, or keeps them for the rest of --hold-at-least.
func releaseOrphan(text []byte) error {
	var o orphan
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pace.HintTime())
	defer cancel()
	drv, err := sharding.Open(ctx, o.Backend, &driver.OpenOptions{ClientName: "holdfast"})
	if err != nil {
		return err
	}
	keep := max(o.KeepUntil.Sub(boot.Now()), 0)
	if keep > 0 {
		keep = max(keep, drv.Limits().MinTTL)
	}
	errs := make([]error, len(o.Leases))
	var all sync.WaitGroup
	for i, l := range o.Leases {
		all.Go(func() { errs[i] = drv.Release(ctx, driver.Grant{Key: l.Name, Owner: l.Owner, TTL: o.TTL}, keep) })
	}
	all.Wait()
	return errors.Join(errors.Join(errs...), drv.Close())
}
