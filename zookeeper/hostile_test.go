package zookeeper_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// Each call ends with its context, and pauses between requests.
func TestInvalidAnswersSlowRequestsDown(t *testing.T) {
	empty := func(j *juteWriter) { j.b = append((&juteWriter{}).int32(0).b, make([]byte, 68)...) }
	for name, lie := range map[string]func(op, code int32, out *juteWriter) int32{
		"the own node is never there": func(op, code int32, out *juteWriter) int32 {
			if op == opGetChildren {
				empty(out)
				return 0
			}
			return code
		},
		"the folder is never there": func(op, code int32, _ *juteWriter) int32 {
			if op == opCreate2 {
				return errNoNode
			}
			return code
		},
		"the first has always gone": func(op, code int32, _ *juteWriter) int32 {
			if op == opGetData {
				return errNoNode
			}
			return code
		},
		"the session is always over": func(op, code int32, _ *juteWriter) int32 {
			if op == opCreate2 || op == opGetChildren {
				return errExpired
			}
			return code
		},
		"an error that no server has": func(int32, int32, *juteWriter) int32 { return 262144 },
		"each request is cut":         func(int32, int32, *juteWriter) int32 { return errCut },
		"a transaction without parts": func(op, code int32, out *juteWriter) int32 {
			if op == opMulti {
				out.b = (&juteWriter{}).int32(-1).bool(true).int32(-1).b
			}
			return code
		},
		"a node without a path": func(op, code int32, out *juteWriter) int32 {
			if op == opCreate2 && code == 0 {
				out.b = append((&juteWriter{}).text("").b, out.b[len(out.b)-68:]...)
			}
			return code
		},
		"the node of another": func(op, code int32, out *juteWriter) int32 {
			if op == opCreate2 && code == 0 {
				out.b = append((&juteWriter{}).text("/elsewhere/A.1-0000000000").b, out.b[len(out.b)-68:]...)
			}
			return code
		},
	} {
		t.Run(name, func(t *testing.T) {
			runInBubble(t, func(t *testing.T, r *rig) {
				holder := r.newDirectDriver()
				g := r.AcquireGrant(holder, "k", longTTL)
				d := r.newDirectDriver()
				r.fake.update(func() { r.fake.lie = lie })
				for call, do := range map[string]func(ctx context.Context) error{
					"acquire": func(ctx context.Context) error {
						_, err := d.Acquire(ctx, driver.Request{Key: "free", TTL: longTTL})
						return err
					},
					"wait": func(ctx context.Context) error {
						_, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: longTTL})
						return err
					},
					"try": func(ctx context.Context) error {
						_, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: longTTL, NoWait: true})
						return err
					},
					"inspect": func(ctx context.Context) error { _, err := d.Inspect(ctx, "k"); return err },
					"renew":   func(ctx context.Context) error { return holder.Renew(ctx, []driver.Grant{g})[0].Err },
					"force": func(ctx context.Context) error {
						_, err := d.Force(ctx, "k", g.Token+1, "")
						return err
					},
				} {
					ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
					begun, before := time.Now(), r.fake.requestCount()
					err := do(ctx)
					cancel()
					if took := time.Since(begun); took > 10500*time.Millisecond {
						t.Errorf("%s returned after %v", call, took)
					}
					if n := r.fake.requestCount() - before; n > 1000 {
						t.Errorf("%s: %d requests, and %v", call, n, err)
					}
					if err != nil && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost) {
						t.Errorf("%s: error %v has no kind", call, err)
					}
				}
				r.fake.update(func() { r.fake.lie = nil })
			})
		})
	}
}

// An announced length allocates no memory, and an answer longer than requested ends the connection.
func TestAnnouncedLengthIsNotAllocated(t *testing.T) {
	for name, c := range map[string]struct {
		length    uint32
		come, max int // bytes that arrive, and bytes that may be allocated
	}{
		"announced":     {8 << 20, 1000, 64 << 10},
		"more than all": {8<<20 + 1, 9 << 20, 64 << 10},
		"negative":      {1 << 31, 9 << 20, 64 << 10},
		"all":           {8 << 20, 9 << 20, 40 << 20},
	} {
		packet := io.MultiReader(bytes.NewReader(binary.BigEndian.AppendUint32(nil, c.length)), io.LimitReader(zeroSender{}, int64(c.come)))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n, err := zookeeper.ReadPacket(packet, 8<<20)
		runtime.ReadMemStats(&after)
		if took := int(after.TotalAlloc - before.TotalAlloc); took > c.max {
			t.Errorf("%s: %d bytes taken", name, took)
		}
		if (err == nil) != (name == "all") || err == nil && n != 8<<20 {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
}

// zeroSender is a member that sends zeros without end.
type zeroSender struct{}

func (zeroSender) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
