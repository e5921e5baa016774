//go:build unix

package run

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// releaseTimeout bounds the wait for a release to be confirmed: a lock that is
// not released lapses by itself.
const releaseTimeout = 2 * time.Second

// verify asks whether the lease still stood when the command had ended by itself: it may
// have been taken away since it was last renewed. An unknown outcome counts as success.
func (s *session) verify(st *Status) {
	if st.Outcome != Ran {
		return
	}
	var err error
	if s.gone { // and the command went on: --on-lost=warn
		err = s.loss()
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), s.plan.roundTrip())
		defer cancel()
		if err = s.lease.Check(ctx); !errors.Is(err, holdfast.ErrLost) {
			return
		}
		s.gone = true
		s.log.Error("the lease was lost before the command ended: " + err.Error())
	}
	st.Outcome, st.Error = RanLost, err.Error()
}

// settle releases the lease and notes the outcome.
func (s *session) settle(st *Status) {
	var err error
	if st.Started {
		s.verify(st)
		err = release(s.lease)
	} else {
		err = s.releaseUnused()
	}
	if err != nil && !s.gone {
		s.log.Warn("the release was not confirmed; the lock lapses by itself: " + err.Error())
	}
	st.Held, st.Token, st.Owner = !s.gone, s.lease.Token(), s.lease.Owner()
}

// release releases a lease. It does not wait long, because the lock lapses by
// itself.
func release(lease *holdfast.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	return lease.Release(ctx)
}

// releaseUnused releases a lease under which nothing was run. --hold-at-least is not for
// it: the other machines would skip a run that did not happen.
func (s *session) releaseUnused() error {
	err := release(s.lease)
	if err != nil || s.plan.HoldAtLeast == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	st, err := s.client.Inspect(ctx, s.plan.Name)
	if err != nil || !st.Kept || !strings.HasPrefix(st.Owner, s.lease.Owner()) {
		return err
	}
	if err = s.client.ForceRelease(ctx, s.plan.Name, 0, ""); errors.Is(err, holdfast.ErrLost) || errors.Is(err, holdfast.ErrUnconfirmed) {
		return nil // that time is over already, or its holder is this command, which does not come back
	}
	return err
}
