package etcd_test

import (
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

// A storage with tokens of Redis or PostgreSQL accepts the tokens, and each Inspect of a lock shows the same
// token.
func TestTokensBeginAtClock(t *testing.T) {
	inBubble(t, func(r *rig) {
		before := time.Now().UnixMicro()
		d := r.newDirectDriver()
		g := r.AcquireGrant(d, "k", longTTL)
		if g.Token < before || g.Token > before+time.Minute.Microseconds() {
			r.Errorf("token %d at %d", g.Token, before)
		}
		other := r.newDirectDriver()
		if st, err := other.Inspect(r.WaitContext(), "k"); err != nil || st.Token != g.Token {
			r.Errorf("Inspect() = %+v, %v, want token %d", st, err, g.Token)
		}
		for _, token := range []int64{g.Token - 1, g.Token + int64(g.Block)} {
			if done, err := other.Force(r.WaitContext(), "k", token, ""); done || err != nil {
				r.Errorf("Force with the unused token %d = %v, %v", token, done, err)
			}
		}
		if done, err := other.Force(r.WaitContext(), "k", g.Token+1, ""); !done || err != nil {
			r.Errorf("Force() = %v, %v", done, err)
		}
	})
}

// A new client may raise the base, and a person may delete it.
func TestTokensRiseWhenBaseChanges(t *testing.T) {
	inBubble(t, func(r *rig) {
		key := r.opts.Prefix + ",tokens"
		drivers := []driver.Driver{r.newDirectDriver(), r.newDirectDriver()}
		last := int64(0)
		next := func(what string) {
			for i, d := range drivers {
				g := r.AcquireGrant(d, "k", longTTL)
				if g.Token < last {
					r.Errorf("%s: driver %d: token %d after %d", what, i, g.Token, last)
				}
				last = g.Token + int64(g.Block)
				r.NoError(d.Release(r.WaitContext(), g, 0))
			}
		}
		next("at first")
		r.NoError(errorOf(r.direct.Put(r.WaitContext(), key, strconv.FormatInt(last+time.Hour.Microseconds(), 10))))
		next("after a client with a clock that is fast")
		if last < time.Now().Add(30*time.Minute).UnixMicro() {
			r.Errorf("token %d is not above the base", last)
		}
		drivers = append(drivers, r.newDirectDriver())
		next("for a client that begins")
		r.NoError(errorOf(r.direct.Put(r.WaitContext(), key, "0")))
		next("after somebody has set it back")
		r.NoError(errorOf(r.direct.Delete(r.WaitContext(), key)))
		next("after somebody has deleted it")
		r.NoError(errorOf(r.direct.Delete(r.WaitContext(), r.opts.Prefix, clientv3.WithPrefix())))
		next("after somebody has deleted all")
	})
}

// A client raises the base only at its start.
func TestTokenBaseBehindClockIsRaised(t *testing.T) {
	inBubble(t, func(r *rig) {
		key := r.opts.Prefix + ",tokens"
		r.NoError(errorOf(r.direct.Put(r.WaitContext(), key, "1000")))
		now := time.Now().UnixMicro()
		d := r.newDirectDriver()
		g := r.AcquireGrant(d, "k", longTTL)
		if g.Token < now {
			r.Errorf("token %d at %d", g.Token, now)
		}
		r.NoError(d.Release(r.WaitContext(), g, 0))
		resp, err := r.direct.Get(r.WaitContext(), key)
		r.NoError(err)
		d = r.newDirectDriver()
		r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
		again, err := r.direct.Get(r.WaitContext(), key)
		r.NoError(err)
		if again.Kvs[0].ModRevision != resp.Kvs[0].ModRevision {
			r.Error("a second client raised the base again")
		}
	})
}
