//go:build unix

package run

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// verifyLeases checks whether the leases were still held when the command ended by itself: one may have been
// force-released since its last renewal. An unknown outcome counts as held.
func (s *session) verifyLeases(st *Status) {
	if st.Outcome != Ran {
		return
	}
	var err error
	if s.gone { // lost while the command ran: --on-lost=warn
		err = s.lossReason()
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), pace.RequestTime(s.plan.TTL, s.plan.Service))
		defer cancel()
		if err = checkLeases(ctx, s.leases.All()); err == nil {
			return
		}
		s.gone = true
		s.log.Error("the lease was lost before the command ended: " + err.Error())
	}
	st.Outcome, st.Error = RanLost, err.Error()
}

// finish releases the leases and records the outcome.
func (s *session) finish(st *Status) {
	var err error
	if st.Started {
		s.verifyLeases(st)
		err = s.releaseLeases()
	} else {
		err = s.releaseUnused()
	}
	if err != nil && !s.gone {
		s.log.Warn(fmt.Sprintf("the release was not confirmed; the lock lapses by itself within %v: %s",
			max(s.plan.TTL, s.plan.HoldAtLeast), strings.TrimPrefix(err.Error(), "holdfast: ")))
	}
	st.Held, st.Leases = !s.gone, NewLeases(s.leases)
}

// checkLeases returns the ErrLost of a lost lease. An unknown state counts as nil.
func checkLeases(ctx context.Context, leases []*holdfast.Lease) error {
	errs := make([]error, len(leases))
	var all sync.WaitGroup
	for i, l := range leases {
		all.Go(func() { errs[i] = l.Check(ctx) })
	}
	all.Wait()
	for _, err := range errs {
		if errors.Is(err, holdfast.ErrLost) {
			return err
		}
	}
	return nil
}

// releaseLeases releases the leases. It does not wait long, because the locks expire by themselves.
func (s *session) releaseLeases() error {
	ctx, cancel := context.WithTimeout(context.Background(), pace.ReleaseTime())
	defer cancel()
	return s.leases.Release(ctx)
}

// releaseUnused releases leases under which nothing was run. --hold-at-least does not apply: other machines
// would skip a run that did not happen.
func (s *session) releaseUnused() error {
	err := s.releaseLeases()
	if err != nil || s.plan.HoldAtLeast == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pace.ReleaseTime())
	defer cancel()
	for _, l := range s.leases.All() {
		err = errors.Join(err, s.endMinHold(ctx, l))
	}
	return err
}

// endMinHold frees a lock that is kept for --hold-at-least after the release of its lease.
func (s *session) endMinHold(ctx context.Context, l *holdfast.Lease) error {
	st, err := s.client.Inspect(ctx, l.Key())
	if err != nil || !st.Kept || !strings.HasPrefix(st.Owner, l.Owner()) {
		return err
	}
	if err = s.client.ForceRelease(ctx, l.Key(), 0, ""); errors.Is(err, holdfast.ErrLost) || errors.Is(err, holdfast.ErrUnconfirmed) {
		return nil // no longer kept, or kept by another holder
	}
	return err
}
