//go:build unix

package run

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
)

// releaseTimeout bounds the wait for a release to be confirmed: a lock that is
// not released lapses by itself.
const releaseTimeout = 2 * time.Second

// settle gives the lease back and notes what became of it.
func (s *session) settle(st *Status) {
	var err error
	if st.Started {
		err = release(s.lease)
	} else {
		err = giveBack(s.client, s.lease, s.plan)
	}
	if err != nil && !s.gone {
		s.log.Warn("the release was not confirmed; the lock lapses by itself: " + err.Error())
	}
	st.Held, st.Token, st.Owner = !s.gone, s.lease.Token(), s.lease.Owner()
}

// release gives a lease up. It does not wait longer than a lock is worth that
// lapses by itself.
func release(lease *holdfast.Lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	return lease.Release(ctx)
}

// giveBack releases a lease under which nothing was run. --hold-at-least is not for
// it: the other machines would skip a run that nobody made.
func giveBack(client *holdfast.Client, lease *holdfast.Lease, p *Plan) error {
	err := release(lease)
	if err != nil || p.HoldAtLeast == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if err = client.ForceRelease(ctx, p.Name, lease.Token()); errors.Is(err, holdfast.ErrLost) {
		return nil // that time is over already
	}
	return err
}
