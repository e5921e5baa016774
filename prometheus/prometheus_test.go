package prometheus_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	client_golang "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/prometheus"
)

func Example() {
	metrics := prometheus.New(nil)
	registry := client_golang.NewRegistry() // serve it with promhttp
	registry.MustRegister(metrics)

	client, err := holdfast.New(memory.New(3), &holdfast.Options{Hooks: metrics.Hooks()})
	if err != nil {
		panic(err)
	}
	metrics.Watch(client)
	for i := range 3 {
		err := client.Do(context.Background(), fmt.Sprintf("order/%d", i), nil, func(context.Context, *holdfast.Lease) error { return nil })
		if err != nil {
			panic(err)
		}
	}
	client.Close() // waits for the hooks

	families, _ := registry.Gather()
	for _, f := range families {
		if f.GetName() == "distributed_lock_hold_seconds" {
			m := f.GetMetric()[0]
			fmt.Println(m.GetLabel()[0].GetValue(), m.GetHistogram().GetSampleCount())
		}
	}
	// Output: order 3
}

// gatherSeries returns the value of each series of m, by name and labels; for a histogram the count.
func gatherSeries(t *testing.T, m client_golang.Collector) map[string]float64 {
	t.Helper()
	registry := client_golang.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			all[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = s.GetCounter().GetValue() + s.GetGauge().GetValue() + float64(s.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// inBusyBubble runs a client with metrics through every event, in a bubble.
func inBusyBubble(t *testing.T, look func(at string, m *prometheus.Metrics)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		metrics := prometheus.New(nil)
		nodes := memory.New(5)
		client, err := holdfast.New(nodes, &holdfast.Options{Hooks: metrics.Hooks()})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		metrics.Watch(client)
		nodes.Node(2).Delay(20 * time.Millisecond)
		lease, err := client.Acquire(t.Context(), "order/1", &holdfast.AcquireOptions{TTL: 9 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		go client.Acquire(t.Context(), "order/1", &holdfast.AcquireOptions{Wait: 20 * time.Second})
		if _, err := client.TryAcquire(t.Context(), "order/1", nil); !errors.Is(err, holdfast.ErrHeld) {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		nodes.Node(0).Stop()
		nodes.Node(1).Freeze()
		time.Sleep(6 * time.Second)
		look("at risk", metrics)
		for i := range 5 {
			nodes.Node(i).Freeze()
		}
		<-lease.Context().Done()
		time.Sleep(20 * time.Second)
		look("lost", metrics)
	})
}

func TestEveryEventIsMeasured(t *testing.T) {
	t.Parallel()
	want := map[string]map[string]float64{
		"at risk": {
			"distributed_lock_waiters{resource=order}": 1, "distributed_lock_held{resource=order}": 1, "distributed_lock_at_risk{resource=order}": 1,
			"distributed_lock_failures_total{reason=held,resource=order}":    1,
			"distributed_lock_renewals_total{resource=order,result=ok}":      4,
			"distributed_lock_renewal_lag_seconds{resource=order}":           4,
			"distributed_lock_renewal_margin_seconds{resource=order}":        4,
			"distributed_lock_wait_seconds{outcome=acquired,resource=order}": 1,
			"distributed_lock_wait_seconds{outcome=failed,resource=order}":   1,
			"distributed_lock_lost_total{reason=expired,resource=order}":     0,
			"distributed_lock_hold_seconds{resource=order}":                  0,
			"distributed_lock_release_unconfirmed_total{resource=order}":     0,
			"distributed_lock_events_dropped_total{}":                        0,
			"distributed_lock_node_state{node=memory-1,state=down}":          1,
			"distributed_lock_node_state{node=memory-1,state=up}":            0,
			"distributed_lock_node_state{node=memory-2,state=stalled}":       1,
			"distributed_lock_node_state{node=memory-3,state=up}":            1,
			"distributed_lock_node_round_trip_seconds{node=memory-3}":        0.02,
			"distributed_lock_node_state{node=memory-3,state=quarantine}":    0,
		},
		"lost": {
			"distributed_lock_waiters{resource=order}": 0, "distributed_lock_held{resource=order}": 0, "distributed_lock_at_risk{resource=order}": 0,
			"distributed_lock_lost_total{reason=expired,resource=order}":         1,
			"distributed_lock_hold_seconds{resource=order}":                      1,
			"distributed_lock_failures_total{reason=unavailable,resource=order}": 1,
		},
	}
	inBusyBubble(t, func(at string, m *prometheus.Metrics) {
		got := gatherSeries(t, m)
		for _, name := range slices.Sorted(maps.Keys(want[at])) {
			if v, ok := got[name]; !ok || v != want[at][name] {
				t.Errorf("%s: %s is %v (%v), want %v", at, name, v, ok, want[at][name])
			}
		}
		if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
			t.Errorf("%s: %v %v", at, problems, err)
		}
	})
}

func TestSeriesDoNotGrowWithKeys(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"numbers": "order/%d", "words": "%dorder", "names": "o:%[1]d/%[1]d"} {
		m := prometheus.New(nil)
		for i := range 5000 {
			m.Hooks().Acquired(holdfast.AcquiredEvent{Context: t.Context(), Key: fmt.Sprintf(key, i), Owner: fmt.Sprint(i)})
		}
		if n := testutil.CollectAndCount(m, "distributed_lock_held"); n != 1 {
			t.Errorf("%s: %d series, want 1", name, n)
		}
	}
}

func TestClassesAreBounded(t *testing.T) {
	t.Parallel()
	for _, most := range []int{0, 1, 7} {
		m := prometheus.New(&prometheus.Options{MaxClasses: most, Class: func(key string) string { return key }})
		for i := range 5000 {
			m.Hooks().Acquired(holdfast.AcquiredEvent{Context: t.Context(), Key: fmt.Sprintf("\xff%d", i), Owner: fmt.Sprint(i)})
		}
		want := most
		if most == 0 {
			want = 1000
		}
		if n := testutil.CollectAndCount(m, "distributed_lock_held"); n != want {
			t.Errorf("%d series with MaxClasses %d, want %d", n, most, want)
		}
	}
}

// The test finds all hooks by reflection, so that a new one cannot be missing.
func TestCallersHooksAreCalled(t *testing.T) {
	t.Parallel()
	var own holdfast.Hooks
	var called []string
	hooks := reflect.ValueOf(&own).Elem()
	for i := range hooks.NumField() {
		name := hooks.Type().Field(i).Name
		hooks.Field(i).Set(reflect.MakeFunc(hooks.Field(i).Type(), func([]reflect.Value) []reflect.Value {
			called = append(called, name)
			return nil
		}))
	}
	with := reflect.ValueOf(prometheus.New(&prometheus.Options{Hooks: own}).Hooks())
	for i := range with.NumField() {
		name := with.Type().Field(i).Name
		called = nil
		if f := with.Field(i); !f.IsNil() {
			f.Call([]reflect.Value{reflect.Zero(f.Type().In(0))})
		}
		if !slices.Equal(called, []string{name}) {
			t.Errorf("%s calls %v", name, called)
		}
	}
	prometheus.New(nil).Hooks().Released(holdfast.ReleasedEvent{Key: "a"}) // the caller has no hooks
}

// quarantined is an error like the QuarantineError of package redis.
type quarantined struct{}

func (quarantined) Error() string             { return "quarantine" }
func (quarantined) Quarantine() time.Duration { return time.Minute }

func TestCountsComeBackAfterDroppedEvents(t *testing.T) {
	t.Parallel()
	m := prometheus.New(nil)
	h := m.Hooks()
	h.Waiting(holdfast.WaitingEvent{Key: "a"})
	h.Acquired(holdfast.AcquiredEvent{Key: "a", Owner: "gone"})
	h.Acquired(holdfast.AcquiredEvent{Key: "a", Owner: "stays"})
	h.Node(holdfast.NodeEvent{Node: "n", State: holdfast.NodeDown, Err: fmt.Errorf("n: %w", quarantined{})})
	h.Dropped(holdfast.DroppedEvent{Count: 2})
	h.Failed(holdfast.FailedEvent{Key: "a", WaitReported: true, Err: holdfast.ErrHeld})
	h.Renewed(holdfast.RenewedEvent{Key: "a", Owner: "stays"})
	got := gatherSeries(t, m)
	for name, want := range map[string]float64{
		"distributed_lock_waiters{resource=a}": 0, "distributed_lock_held{resource=a}": 1, "distributed_lock_events_dropped_total{}": 2,
		"distributed_lock_node_state{node=n,state=quarantine}": 1, "distributed_lock_node_state{node=n,state=down}": 0,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

func TestWaitingGaugeFallsForReadersAndSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := prometheus.New(nil)
		client, err := holdfast.New(memory.New(1), &holdfast.Options{Hooks: metrics.Hooks()})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for range 3 {
			var all sync.WaitGroup
			type acquirer func(context.Context, *holdfast.AcquireOptions) (*holdfast.Lease, error)
			catalogue, thumbnails := client.RWLock("catalogue", 16), client.Semaphore("thumbnails", 1)
			for _, by := range []struct{ holder, waiter acquirer }{
				{catalogue.AcquireWrite, catalogue.AcquireRead}, {catalogue.AcquireWrite, catalogue.AcquireWrite}, {thumbnails.Acquire, thumbnails.Acquire},
			} {
				holder, err := by.holder(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				for wait := range 3 { // the first gives up
					all.Go(func() {
						opts := &holdfast.AcquireOptions{Wait: time.Duration(wait)*time.Minute + time.Second}
						if lease, err := by.waiter(t.Context(), opts); err == nil {
							lease.Release(t.Context())
						}
					})
				}
				time.Sleep(2 * time.Second)
				holder.Release(t.Context())
				all.Wait()
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		values := gatherSeries(t, metrics)
		for series, v := range values {
			if (strings.Contains(series, "_waiters{") || strings.Contains(series, "_held{")) && v != 0 {
				t.Errorf("%s is %v", series, v)
			}
			if strings.Contains(series, "#") {
				t.Errorf("%s has a class with a slot", series)
			}
		}
	})
}
