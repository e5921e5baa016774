package holdfast_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
)

// hookTime is the time that each hook takes.
const hookTime = 5 * time.Second

// slowHooks returns hooks that take the time slow.
func slowHooks() holdfast.Hooks {
	return holdfast.Hooks{
		Waiting:  func(holdfast.WaitingEvent) { passTime(hookTime) },
		Acquired: func(holdfast.AcquiredEvent) { passTime(hookTime) },
		Renewed:  func(holdfast.RenewedEvent) { passTime(hookTime) },
		AtRisk:   func(holdfast.AtRiskEvent) { passTime(hookTime) },
		Lost:     func(holdfast.LostEvent) { passTime(hookTime) },
		Released: func(holdfast.ReleasedEvent) { passTime(hookTime) },
		Node:     func(holdfast.NodeEvent) { passTime(hookTime) },
	}
}

// slowLog is a log handler that takes the time slow for each line.
type slowLog struct{}

func (slowLog) Enabled(context.Context, slog.Level) bool  { return true }
func (slowLog) Handle(context.Context, slog.Record) error { passTime(hookTime); return nil }
func (l slowLog) WithAttrs([]slog.Attr) slog.Handler      { return l }
func (l slowLog) WithGroup(string) slog.Handler           { return l }

// inSlowBubble is inBubble with a client whose hooks and Logger are slow.
func inSlowBubble(t *testing.T, fn func(t *testing.T, b *bench)) {
	inBubbleWith(t, &holdfast.Options{Hooks: slowHooks(), Logger: slog.New(slowLog{})}, func(t *testing.T, b *bench) {
		fn(t, b)
		b.client.Close()
		passTime(time.Hour) // the hooks finish
	})
}

func TestSlowHookDoesNotDelayLoss(t *testing.T) {
	inSlowBubble(t, func(t *testing.T, b *bench) {
		var leases []*holdfast.Lease
		for i := range 10 {
			leases = append(leases, b.acquire(b.client, fmt.Sprint(i), &holdfast.AcquireOptions{TTL: time.Second, NoRenew: true}))
		}
		for _, l := range leases {
			<-l.Context().Done()
			if late := time.Since(l.Deadline()); late > 0 {
				t.Errorf("context of %q ended %v after the deadline", l.Key(), late)
			}
		}
	})
}

func TestSlowHookDoesNotDelayRenewal(t *testing.T) {
	inSlowBubble(t, func(t *testing.T, b *bench) {
		b.acquire(b.client, "lost", &holdfast.AcquireOptions{TTL: time.Second, NoRenew: true})
		var leases []*holdfast.Lease
		for i := range 10 {
			leases = append(leases, b.acquire(b.client, fmt.Sprint(i), &holdfast.AcquireOptions{TTL: time.Second}))
		}
		passTime(10 * time.Second)
		for _, l := range leases {
			if err := l.Context().Err(); err != nil {
				t.Errorf("lease on %q ended: %v", l.Key(), err)
			}
			b.release(l)
		}
	})
}

func TestSlowHookDoesNotDelayCalls(t *testing.T) {
	inSlowBubble(t, func(t *testing.T, b *bench) {
		begin := time.Now()
		for range 10 {
			l := b.acquire(b.client, "k", nil)
			got := make(chan *holdfast.Lease)
			go func() { got <- b.acquire(b.client, "k", nil) }()
			synctest.Wait()
			b.release(l)
			b.release(<-got)
		}
		for i := range 5 {
			b.drv.Node(i).Stop()
			b.drv.Node(i).Start()
		}
		if took := time.Since(begin); took > 0 {
			t.Errorf("took %v", took)
		}
	})
}

// eventLog records the events that hooks and log receive, in order.
type eventLog struct {
	mu   sync.Mutex
	told []string
}

func (r *eventLog) add(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, what)
}

func TestEventsKeepTheirOrder(t *testing.T) {
	var r eventLog
	hooks := holdfast.Hooks{
		Acquired: func(e holdfast.AcquiredEvent) { passTime(time.Millisecond); r.add(fmt.Sprint("acquired ", e.Token)) },
		Released: func(e holdfast.ReleasedEvent) { r.add(fmt.Sprint("released ", e.Token)) },
	}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		var want []string
		for range 20 {
			l := b.acquire(b.client, "k", nil)
			b.release(l)
			want = append(want, fmt.Sprint("acquired ", l.Token()), fmt.Sprint("released ", l.Token()))
		}
		b.client.Close()
		if !slices.Equal(r.told, want) {
			t.Errorf("received %q, want %q: Close must wait for the hooks", r.told, want)
		}
	})
}

// Events that do not fit the queue are dropped, and their number is reported.
func TestDroppedEventsAreCountedAndReported(t *testing.T) {
	t.Parallel()
	const all = 17_000 // the queue holds 16,384
	var acquired, dropped int
	var log eventLog
	var hung chan struct{} // created inside the bubble
	opts := &holdfast.Options{
		Hooks: holdfast.Hooks{
			Acquired: func(holdfast.AcquiredEvent) { acquired++; <-hung },
			Dropped:  func(e holdfast.DroppedEvent) { dropped += e.Count },
		},
		Logger: slog.New(slog.NewTextHandler(writer(func(p []byte) { log.add(string(p)) }), &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		})),
	}
	synctest.Test(t, func(t *testing.T) {
		hung = make(chan struct{})
		c, err := holdfast.New(newOneNode(), opts)
		if err != nil {
			t.Fatal(err)
		}
		for range all {
			l, err := c.TryAcquire(t.Context(), "k", nil)
			if err != nil {
				t.Fatal(err)
			}
			l.Release(t.Context())
		}
		close(hung)
		c.Close()
	})
	if dropped == 0 || acquired+dropped != all {
		t.Errorf("%d events delivered and %d reported as dropped, of %d", acquired, dropped, all)
	}
	want := fmt.Sprintf("level=WARN msg=\"events dropped; a hook or the Logger is too slow\" count=%d\n", dropped)
	if !slices.Equal(log.told, []string{want}) {
		t.Errorf("log = %q, want %q", log.told, want)
	}
}

type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

func TestHangingHookDoesNotBlockClose(t *testing.T) {
	hooks := holdfast.Hooks{Acquired: func(holdfast.AcquiredEvent) { passTime(time.Hour) }}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		b.acquire(b.client, "k", nil)
		begin := time.Now()
		b.client.Close()
		if took := time.Since(begin); took > 4*time.Second {
			t.Errorf("Close took %v", took)
		}
		b.release(b.acquire(b.newPeer(), "k", nil))
		passTime(time.Hour)
	})
}

func TestHookMayCloseClient(t *testing.T) {
	var c *holdfast.Client
	var errs []error
	hooks := holdfast.Hooks{Lost: func(e holdfast.LostEvent) {
		l, err := c.Acquire(context.Background(), e.Key, nil)
		if err == nil {
			err = l.Release(context.Background())
		}
		errs = append(errs, err, c.Close())
	}}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		c = b.client
		b.acquire(c, "k", &holdfast.AcquireOptions{TTL: time.Second, NoRenew: true})
		passTime(10 * time.Second)
		synctest.Wait()
		if !slices.Equal(errs, []error{nil, nil}) {
			t.Errorf("errors %v", errs)
		}
		_, err := c.TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrClosed)
	})
}

func TestEventsReportWhetherWaitWasAnnounced(t *testing.T) {
	var waiting, most int
	end := func(told bool) {
		if told {
			waiting--
		}
	}
	hooks := holdfast.Hooks{
		Waiting:  func(holdfast.WaitingEvent) { waiting++; most = max(most, waiting) },
		Acquired: func(e holdfast.AcquiredEvent) { end(e.WaitReported) },
		Failed:   func(e holdfast.FailedEvent) { end(e.WaitReported) },
	}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		for range 50 { // some waiters give up at the moment in which they get the lock
			l := b.acquire(b.client, "k", nil)
			ctx, cancel := context.WithCancel(t.Context())
			for range 3 {
				go func() {
					if l, err := b.client.Acquire(ctx, "k", nil); err == nil {
						b.release(l)
					}
				}()
			}
			synctest.Wait()
			b.client.TryAcquire(t.Context(), "k", nil) // does not wait
			b.release(l)
			cancel()
			passTime(time.Second)
		}
		synctest.Wait()
		if waiting != 0 || most < 2 {
			t.Errorf("%d waiters at the end, at most %d; want 0 and several", waiting, most)
		}
	})
}

func TestRenewedEventReportsLateness(t *testing.T) {
	var late []time.Duration
	hooks := holdfast.Hooks{Renewed: func(e holdfast.RenewedEvent) { late = append(late, e.Lag) }}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 9 * time.Second})
		passTime(4 * time.Second)
		b.freezeNodes()
		passTime(4 * time.Second)
		b.startNodes()
		passTime(500 * time.Millisecond)
		b.release(l)
		synctest.Wait()
		if len(late) < 2 || late[0] != 0 || slices.Max(late) < 500*time.Millisecond {
			t.Errorf("renewals were late by %v; want 0 first, then at least half a second once", late)
		}
	})
}

func TestLogIsReadableInJSON(t *testing.T) {
	var said bytes.Buffer
	inBubbleWith(t, &holdfast.Options{Logger: slog.New(slog.NewJSONHandler(&said, nil))}, func(t *testing.T, b *bench) {
		b.acquire(b.client, "k", nil)
		b.drv.Node(0).Stop()
		b.drv.Node(0).Start()
		time.Sleep(741*time.Millisecond + 40929)
		b.forceLock(b.newPeer(), "k")
		time.Sleep(10 * time.Second)
		awaitHooks()
		for _, want := range []string{`"held":"741ms"`, `"state":"up"}`, `"cause":"`} {
			if !strings.Contains(said.String(), want) {
				t.Errorf("no log line has %s: %s", want, said.String())
			}
		}
		if strings.Contains(said.String(), "null") {
			t.Errorf("said %s", said.String())
		}
	})
}

func TestOutageWarnsOncePerLease(t *testing.T) {
	var log bytes.Buffer
	failed := 0
	opts := &holdfast.Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Hooks: holdfast.Hooks{Renewed: func(e holdfast.RenewedEvent) {
			if e.Err != nil {
				failed++
			}
		}},
	}
	inBubbleWith(t, opts, func(t *testing.T, b *bench) {
		for _, key := range []string{"k", "l", "m"} {
			b.acquire(b.client, key, nil)
		}
		for outage := 1; outage <= 2; outage++ {
			for i := range 5 {
				b.drv.Node(i).Stop()
			}
			time.Sleep(8 * time.Second)
			b.startNodes()
			time.Sleep(5 * time.Second)
			awaitHooks()
			if warned := strings.Count(log.String(), `level=WARN msg="renewal failed`); warned != 3*outage || failed <= 3*outage {
				t.Errorf("%d warnings for %d failed renewals of 3 leases in %d outages:\n%s", warned, failed, outage, log.String())
			}
		}
	})
}
