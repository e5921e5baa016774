//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// In classes with the duty passing, holders hand leases over to other processes through a storage, and an
// operator force-releases locks. In classes with the duty handing there is no operator, and a process hands
// over its leases when it ends: no lease is lost.

// offer names a lease that another process may adopt.
type offer struct {
	Key   string         `json:"key"`
	N     int            `json:"n"`  // number of the lock
	By    string         `json:"by"` // name of the offering process
	Owner string         `json:"owner"`
	Token holdfast.Token `json:"token"`
}

func offersKey(s *span) string { return fmt.Sprintf("offers:%d", s.index) }

// makeOffer offers a lease to a number of processes.
func (w *worker) makeOffer(ctx context.Context, s *span, o offer, times int) {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // cannot fail: all fields can be marshalled
	}
	ctx = context.WithoutCancel(ctx) // the process may be ending
	for range times {
		w.stores.redis.Do(ctx, w.stores.redis.B().Lpush().Key(offersKey(s)).Element(string(text)).Build())
	}
}

// takeOffer returns the oldest offer, unless this process made it, or nil.
func (w *worker) takeOffer(ctx context.Context, s *span) *offer {
	text, err := w.stores.redis.Do(ctx, w.stores.redis.B().Rpop().Key(offersKey(s)).Build()).AsBytes()
	o := new(offer)
	if err != nil || json.Unmarshal(text, o) != nil {
		return nil
	}
	if o.By == w.Name {
		w.makeOffer(ctx, s, *o, 1)
		return nil
	}
	return o
}

// endHold ends a holder's time with a lock: it releases the lock or hands it over. Some holders misbehave: they
// offer a released lease, keep using an offered one, or force-release a lock that they have lost.
func (w *worker) endHold(ctx context.Context, s *span, j job, try string, h heldLock) {
	o := offer{Key: j.key, N: j.n, By: w.Name, Token: h.token, Owner: h.id}
	leave := func() { w.rec.record(event{Kind: leaving, Key: j.key, Try: try}) }
	release := func() {
		err := h.release(context.WithoutCancel(ctx))
		w.rec.record(event{Kind: released, Key: j.key, Try: try, Err: errorText(err)})
	}
	locks, _ := w.locks.(*holdfasts)
	fate := rand.N(10)
	switch {
	case !j.duty.handsOver(), fate <= 5 && !locks.adopts, fate == 5 && j.as.least > 0:
		fate = 9
	case j.duty == handing && ctx.Err() != nil && locks.adopts:
		fate = 0
	case j.duty == handing && fate > 2:
		fate = 9
	}
	switch fate {
	case 0, 1, 2:
		leave()
		if err := h.lease.Detach(); err == nil {
			w.makeOffer(ctx, s, o, 1+rand.N(2))
		}
	case 3:
		leave()
		release()
		w.makeOffer(ctx, s, o, 1)
	case 4:
		w.makeOffer(ctx, s, o, 1)
		sleep(ctx, rand.N(300*time.Millisecond))
		leave()
		release()
	case 5:
		leave()
		release()
		locks.forceLock(ctx, try+"/again", event{Key: j.key, ID: h.id, From: h.id, Token: int64(h.token)})
	default:
		leave()
		release()
	}
}

// adoptOffer adopts the lease of an offer.
func (h *holdfasts) adoptOffer(ctx context.Context, o *offer, as lockRequest) (heldLock, error) {
	lease, err := h.current.Load().Adopt(ctx, o.Key, o.Owner, o.Token, h.requestOptions(as))
	if err != nil {
		return heldLock{}, err
	}
	return h.newHeld(lease, o.Key), nil
}

// canAdopt reports whether the driver can adopt leases.
func canAdopt(d driver.Driver) bool {
	_, ok := d.(driver.Adopter)
	return ok
}

// operatorRole is the role of the process that force-releases locks.
const operatorRole = "operator"

// forceInterval is the mean time between two force-releases.
const forceInterval = 250 * time.Millisecond

// runOperator force-releases locks in each window with the duty passing.
func (h *holdfasts) runOperator(ctx context.Context) {
	for i := range h.spans {
		s := &h.spans[i]
		if h.order.Schedule.backend().classes[s.Class].duty != passing {
			continue
		}
		sleep(ctx, time.Duration(s.start-monotonicNow()))
		for ; ctx.Err() == nil && monotonicNow() < s.end-int64(tail); sleep(ctx, forceInterval/2+rand.N(forceInterval)) {
			h.seizeLock(ctx, s)
		}
	}
}

// seizeLock force-releases a lock of the window.
func (h *holdfasts) seizeLock(ctx context.Context, s *span) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var held []holdfast.Status
	for st, err := range h.current.Load().List(ctx, s.prefix()) {
		if err == nil && st.Held && !st.Kept { // a kept lock cannot be force-released
			held = append(held, st)
		}
	}
	if len(held) > 0 {
		st := pickRandom(held)
		h.forceLock(ctx, fmt.Sprintf("%s/%d", h.order.Name, monotonicNow()), event{Key: st.Key, ID: st.Owner, Token: int64(st.Token)})
	}
}

// forceLock force-releases the lock of the event.
func (h *holdfasts) forceLock(ctx context.Context, try string, e event) {
	e.Kind, e.Try = forcing, try
	h.rec.record(e)
	err := h.current.Load().ForceRelease(ctx, e.Key, holdfast.Token(e.Token), "an operator wants it")
	e.Kind, e.Err = forced, errorText(err)
	h.rec.record(e)
}
