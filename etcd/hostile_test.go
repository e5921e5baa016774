package etcd_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

var hostile = flag.Int("hostile", 150, "how many seeds TestHostileAnswersDoNotPanic tries, beginning with -seed")

// answerSpoiler changes answers at random: draw(n) returns a number below n.
type answerSpoiler struct {
	mu   sync.Mutex // guards the fields below
	draw func(n int) int
	odds int // one of odds fields is changed
}

func (s *answerSpoiler) IntN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draw(n)
}

// garbleBytes changes a byte that arrives over a connection, or ends the connection.
func (s *answerSpoiler) garbleBytes(b []byte) error {
	switch s.IntN(4 * s.odds) {
	case 0:
		if len(b) > 0 {
			b[s.IntN(len(b))] ^= 1 << s.IntN(8)
		}
	case 1:
		if len(b) > 0 {
			b[s.IntN(len(b))] = byte(s.IntN(256))
		}
	case 2:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// spoilMessage changes fields of a message and of the messages in it.
func (s *answerSpoiler) spoilMessage(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if s.IntN(s.odds) == 0 {
			s.setField(m, f)
			continue
		}
		switch {
		case f.IsList() && f.Message() != nil:
			for j := range m.Get(f).List().Len() {
				s.spoilMessage(m.Get(f).List().Get(j).Message())
			}
		case !f.IsList() && f.Message() != nil && m.Has(f):
			s.spoilMessage(m.Get(f).Message())
		}
	}
}

// setField sets a field to an odd value, or clears it.
func (s *answerSpoiler) setField(m protoreflect.Message, f protoreflect.FieldDescriptor) {
	odd := []int64{-1, 0, 1, 2, math.MaxInt64, math.MinInt64, math.MaxInt64/int64(time.Second) + 1}
	n := odd[s.IntN(len(odd))]
	switch kind := f.Kind(); {
	case f.IsList() && s.IntN(2) == 0 && m.Get(f).List().Len() > 0:
		m.Mutable(f).List().Truncate(m.Get(f).List().Len() - 1)
	case f.IsList() && f.Message() != nil && s.IntN(2) == 0:
		m.Mutable(f).List().AppendMutable() // an empty element
	case f.IsList() || s.IntN(3) == 0:
		m.Clear(f)
	case kind == protoreflect.Int64Kind:
		m.Set(f, protoreflect.ValueOfInt64(n))
	case kind == protoreflect.Uint64Kind:
		m.Set(f, protoreflect.ValueOfUint64(uint64(n)))
	case kind == protoreflect.BoolKind:
		m.Set(f, protoreflect.ValueOfBool(n < 1))
	case kind == protoreflect.BytesKind:
		m.Set(f, protoreflect.ValueOfBytes([]byte(",.,{")[:s.IntN(5)]))
	default:
		m.Clear(f)
	}
}

// Another program at a member's address may send anything. Every call ends with its context, without a panic.
func TestHostileAnswersDoNotPanic(t *testing.T) {
	t.Parallel()
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	t.Logf("-seed=%d", first)
	seeds := *hostile
	if testing.Short() {
		seeds /= 4
	}
	for i := range seeds {
		synctest.Test(t, func(t *testing.T) {
			if callEverything(t, rand.New(rand.NewPCG(first+uint64(i), 0)).IntN); t.Failed() {
				t.Logf("-seed=%d", first+uint64(i))
			}
		})
	}
}

// FuzzServer spoils answers by a script. Each byte decides about one field, or one piece of a connection. After
// the end of the script nothing is changed.
func FuzzServer(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{9, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 2, 0, 1, 0})
	f.Add([]byte{0, 1, 1, 1, 0, 1, 1, 1, 0, 3, 1, 2})
	f.Fuzz(func(t *testing.T, script []byte) {
		script = script[:min(len(script), 1024)] // a longer one takes seconds, which the fuzzer may count as a hang
		synctest.Test(t, func(t *testing.T) {
			callEverything(t, func(n int) int {
				if len(script) == 0 {
					return n - 1
				}
				b := script[0]
				script = script[1:]
				return int(b) % n
			})
		})
	})
}

// callEverything makes every call of a driver to a member that draw spoils.
func callEverything(t *testing.T, draw func(n int) int) {
	r := newFakeRig(t, 1)
	s := &answerSpoiler{draw: draw}
	s.odds = 2 + s.IntN(40)
	sound := r.newDirectDriver()
	g, err := sound.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL, Adoptable: true, WillRenew: true})
	r.NoError(err)
	r.net.setGarble(s.garbleBytes)
	d := r.newDirectDriver()
	spoil := func(on bool) {
		r.fake.members[0].update(func(m *fakeMember) {
			m.twist, m.again = nil, nil
			if on {
				m.twist = func(_ string, reply proto.Message) {
					time.Sleep(time.Millisecond) // let a loop notice the end of its context
					s.spoilMessage(reply.ProtoReflect())
					if w, ok := reply.(*pb.WatchResponse); ok && w.Created {
						w.Canceled = false // it would leave goroutines of etcd's client behind (node.close)
					}
				}
				m.again = func() bool { return s.IntN(s.odds) == 0 }
			}
		})
	}
	spoil(true)
	var all sync.WaitGroup
	begin := time.Now()
	for what, call := range map[string]func(ctx context.Context){
		"wait": func(ctx context.Context) {
			if g, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: 5 * time.Second, WillRenew: true}); err == nil {
				d.Release(ctx, g, 0)
			}
		},
		"try": func(ctx context.Context) {
			for range 5 {
				if g, err := d.Acquire(ctx, driver.Request{Key: "free", TTL: 5 * time.Second, NoWait: true}); err == nil {
					d.Renew(ctx, []driver.Grant{g})
					d.Release(ctx, g, 2*time.Second)
				}
			}
		},
		"look": func(ctx context.Context) {
			d.Check(ctx, g)
			d.Inspect(ctx, "k")
			d.Queue(ctx, "k", 10)
			d.List(ctx, "", func(driver.Status) bool { return true })
			d.Diagnose(ctx, 0)
		},
		"change": func(ctx context.Context) {
			d.Renew(ctx, []driver.Grant{g})
			d.Adopt(ctx, g)
			d.Force(ctx, "k", g.Token, "why")
		},
	} {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
			defer cancel()
			call(ctx)
			if took := time.Since(begin); took > 15*time.Second { // clock: virtual time
				t.Errorf("%s took %v, with a context of 10 s", what, took)
			}
		})
	}
	all.Wait()
	r.NoError(d.Close())
	r.net.setGarble(nil)
	spoil(false)
	r.NoError(sound.Close())
}

// Events without a key, and a watch that ends twice, would panic in etcd's client.
func TestInvalidWatchEventsDoNotPanic(t *testing.T) {
	for what, odd := range map[string]struct {
		twist func(*pb.WatchResponse)
		again bool
	}{
		"no key":    {func(w *pb.WatchResponse) { w.Events = append(w.Events, &mvccpb.Event{}) }, false},
		"two ends":  {func(w *pb.WatchResponse) { w.Canceled = !w.Created }, true},
		"no header": {func(w *pb.WatchResponse) { w.Header = nil }, false},
		"fragments": {func(w *pb.WatchResponse) { w.Fragment = true }, true},
	} {
		t.Run(what, func(t *testing.T) {
			inBubbleOf(t, 1, func(r *rig) {
				r.fake.members[0].update(func(m *fakeMember) {
					m.twist = func(_ string, reply proto.Message) {
						if w, ok := reply.(*pb.WatchResponse); ok {
							odd.twist(w)
						}
					}
					sent := 0
					m.again = func() bool { sent++; return odd.again && sent%4 != 0 }
				})
				l := r.Acquire(r.Client(r.newDirectDriver()), "k", longTTL)
				waiter := r.Client(r.newDirectDriver())
				next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", longTTL) })
				r.awaitKeys("k", 2)
				r.Release(l)
				r.Release(<-next)
			})
		})
	}
}

// An answer may be as long as the keys that its request asks for.
func TestAnswerLongerThanItsRequestIsRejected(t *testing.T) {
	inBubbleOf(t, 1, func(r *rig) {
		d := r.newDirectDriver()
		g := r.AcquireGrant(d, "k", longTTL)
		long := strings.Repeat("x", 100<<10)
		r.fake.members[0].update(func(m *fakeMember) {
			m.twist = func(_ string, reply proto.Message) {
				if a, ok := reply.(*pb.RangeResponse); ok && len(a.Kvs) > 0 {
					a.Kvs[0].Value = []byte(long)
				}
			}
		})
		if err := d.Check(r.WaitContext(), g); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "the answer has more than 34 KB") {
			t.Errorf("Check() = %v, want ErrUnavailable for the length", err)
		}
		if err := d.List(r.WaitContext(), "", func(driver.Status) bool { return true }); err != nil {
			t.Errorf("List() = %v, want that it takes a key of 100 KB", err)
		}
	})
}

// A page of List has room for the longest names.
func TestListTakesLongestNames(t *testing.T) {
	inBubbleOf(t, 1, func(r *rig) {
		const count = 600 // more than a page
		name := strings.Repeat("\xff", 508)
		value := `{"host":"` + strings.Repeat("h", 64) + `","pid":4194304,"program":"holdfast","note":"` + strings.Repeat("n", 64) +
			`","since":"2026-01-01T00:00:00.000000001Z"}`
		for i := range count {
			key := fmt.Sprintf("%s%s%04d,client.1", r.opts.Prefix, url.PathEscape(name), i)
			r.NoError(errorOf(r.direct.Put(r.WaitContext(), key, value)))
		}
		found := 0
		r.NoError(r.newDirectDriver().List(r.WaitContext(), "", func(driver.Status) bool {
			found++
			return true
		}))
		if found != count {
			t.Errorf("%d locks were listed, want %d", found, count)
		}
	})
}
