package zookeeper_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// spoiler is a protocol that spoils the servers' packets by a script: one byte chooses the fault of a packet,
// and further bytes its details.
type spoiler struct {
	juteProtocol
	mu     *sync.Mutex
	script *[]byte
}

// nextByte returns the next byte of the script. After its end it returns 0, which changes nothing.
func (s *spoiler) nextByte() (b byte) {
	if len(*s.script) > 0 {
		b, *s.script = (*s.script)[0], (*s.script)[1:]
	}
	return b
}

// oddNumbers are numbers that often break parsers.
var oddNumbers = []uint32{0, 1, 0xffffffff, 0x7fffffff, 0x80000000, 0xfffffffe, 0x00100000, 0x04000000, 0xffffff9b, 0xffffff90}

func (s *spoiler) Reply(r io.Reader) (p fixture.Packet, err error) {
	if p, err = s.juteProtocol.Reply(r); err == nil {
		p.Bytes = s.spoilPacket(p.Bytes)
	}
	return p, err
}

// spoilPacket changes a packet of a server.
func (s *spoiler) spoilPacket(p []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	sized := func(p []byte) []byte {
		binary.BigEndian.PutUint32(p, uint32(len(p)-4))
		return p
	}
	if len(p) < 8 {
		return p
	}
	switch s.nextByte() % 16 {
	case 1: // an odd number at some place
		i := 4 + int(s.nextByte())%(len(p)-4)
		n := oddNumbers[int(s.nextByte())%len(oddNumbers)]
		for len(p) < i+4 {
			p = append(p, 0)
		}
		binary.BigEndian.PutUint32(p[i:], n)
		return sized(p)
	case 2: // truncated
		return sized(p[:4+int(s.nextByte())%(len(p)-4)])
	case 3: // another length
		binary.BigEndian.PutUint32(p, oddNumbers[int(s.nextByte())%len(oddNumbers)])
		return p
	case 4: // twice
		return append(p, p...)
	case 5: // an event before it
		event := (&juteWriter{}).int32(-1).int64(-1).int32(0).int32(int32(s.nextByte()) - 2).int32(3).text("/test").packet()
		return append(event, p...)
	case 6: // a pong before it
		return append((&juteWriter{}).int32(-2).int64(int64(s.nextByte())<<56).int32(0).packet(), p...)
	case 7: // nothing
		return nil
	case 8: // replaced by bytes of the script
		n := min(int(s.nextByte()), len(*s.script))
		q := append(make([]byte, 4), (*s.script)[:n]...)
		*s.script = (*s.script)[n:]
		return sized(q)
	case 9: // the same without a length prefix
		n := min(int(s.nextByte()), len(*s.script))
		q := (*s.script)[:n]
		*s.script = (*s.script)[n:]
		return q
	case 10: // one bit
		i := 4 + int(s.nextByte())%(len(p)-4)
		p[i] ^= 1 << (s.nextByte() % 8)
		return p
	}
	return p
}

// FuzzServer makes every call of a client while the servers' packets are spoiled. Nothing panics, and each
// call ends soon after its context.
func FuzzServer(f *testing.F) {
	f.Add([]byte{})
	for kind := range byte(11) {
		f.Add([]byte{0, 0, kind, 20, 3, 0, kind, 9, 1, 0, 0, kind, 30, 5})
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		script = script[:min(len(script), 256)] // a longer one takes seconds, which the fuzzer may count as a hang
		synctest.Test(t, func(t *testing.T) { callSpoiled(t, script) })
	})
}

// callSpoiled makes every call of a client while the servers' packets are spoiled by a script. It returns the
// number of requests.
func callSpoiled(t *testing.T, script []byte) int {
	r := newFakeRig(t, newFake(t, 3))
	holder := r.newDirectDriver()
	g := r.AcquireGrant(holder, "k", longTTL)
	waiting := fixture.RunAsync(func() error {
		_, err := r.newDirectDriver().Acquire(r.Context(), driver.Request{Key: "k", TTL: longTTL})
		return err
	})
	defer func() {
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		r.NoError(<-waiting)
	}()
	var mu sync.Mutex
	links := r.memberLinks()
	opts := zookeeper.WithDial(r.opts, r.dialThrough(links, func() fixture.Protocol { return &spoiler{mu: &mu, script: &script} }))
	call := func(name string, limit time.Duration, do func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		err := do(ctx)
		if took := time.Since(begun); took > 5*time.Second+limit { // clock: virtual time
			t.Errorf("%s returned after %v", name, took)
		}
		if err != nil && ctx.Err() == nil && !hasKind(err) {
			t.Errorf("%s: error %v has no kind", name, err)
		}
	}
	var d *zookeeper.Driver
	call("open", 3*time.Second, func(ctx context.Context) (err error) {
		d, err = zookeeper.New(ctx, r.addrs, opts)
		return err
	})
	if d == nil {
		return 0
	}
	alone := true
	d.Alert(func(string, string) {})
	var own driver.Grant
	call("try", 0, func(ctx context.Context) (err error) {
		own, err = d.Acquire(ctx, driver.Request{Key: "free", TTL: longTTL, NoWait: true})
		alone = err != nil
		return err
	})
	if !alone {
		call("renew", 0, func(ctx context.Context) error { return d.Renew(ctx, []driver.Grant{own, g})[0].Err })
		call("check", 0, func(ctx context.Context) error { return d.Check(ctx, own) })
	}
	call("wait", 0, func(ctx context.Context) error {
		_, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: 15 * time.Second})
		return err
	})
	call("inspect", 0, func(ctx context.Context) error { _, err := d.Inspect(ctx, "k"); return err })
	call("queue", 0, func(ctx context.Context) error { _, err := d.Queue(ctx, "k", 10); return err })
	call("list", 0, func(ctx context.Context) error { return d.List(ctx, "", func(driver.Status) bool { return true }) })
	call("diagnose", 3*time.Second, func(ctx context.Context) error { d.Diagnose(ctx, longTTL); return nil })
	if !alone {
		call("release", time.Second, func(ctx context.Context) error { return d.Release(ctx, own, 0) })
	}
	call("force", 0, func(ctx context.Context) error { _, err := d.Force(ctx, "k", g.Token, "why"); return err })
	call("close", 3*time.Second, func(context.Context) error { return d.Close() })
	return r.fake.requestCount()
}

// hasKind reports whether err matches one of the errors that callers can handle.
func hasKind(err error) bool {
	for _, kind := range []error{
		driver.ErrUnavailable, driver.ErrHeld, driver.ErrLost, driver.ErrInvalid, driver.ErrAuth, driver.ErrConfig, driver.ErrUnsupported,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
