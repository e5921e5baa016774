package run

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
)

// renewal is what a round of renewal came to.
type renewal struct {
	trusted boot.Instant // until when the lease can be trusted
	err     error        // matches ErrLost: it is gone; otherwise another round is under way
}

// keeper renews a lease. The client's own watchdog is off: it does not know
// --renew, and would go on after TERM was sent.
type keeper struct {
	renewals <-chan renewal // nil: there is no lease
	stop     func()         // blocks until no renewal is under way
}

func (p *Plan) keep(lease *holdfast.Lease) keeper {
	if lease == nil {
		return keeper{stop: func() {}}
	}
	ctx, cancel := context.WithCancel(context.Background())
	renewals := make(chan renewal)
	var wg sync.WaitGroup
	wg.Go(func() { p.renew(ctx, lease, renewals) })
	return keeper{renewals: renewals, stop: func() { cancel(); wg.Wait() }}
}

// renew goes on until the lease is lost or ctx ends.
func (p *Plan) renew(ctx context.Context, lease *holdfast.Lease, renewals chan<- renewal) {
	for pause := p.Renew; ; {
		select {
		case <-ctx.Done():
			return
		case <-lease.Context().Done():
		case <-time.After(pause):
		}
		start := time.Now()
		r := p.round(ctx, lease)
		pause = max(p.Renew-time.Since(start), 0)
		if r.err != nil {
			pause = p.roundTrip() / 4
		}
		select {
		case renewals <- r:
		case <-ctx.Done():
			return
		}
		if errors.Is(r.err, holdfast.ErrLost) {
			return
		}
	}
}

func (p *Plan) round(ctx context.Context, lease *holdfast.Lease) renewal {
	ctx, cancel := context.WithTimeout(ctx, p.roundTrip())
	defer cancel()
	err := lease.Extend(ctx, p.TTL)
	return renewal{trusted: boot.At(lease.Deadline()), err: err}
}
