package otel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/otel"
)

func Example() {
	spans := tracetest.NewSpanRecorder() // a real program has an exporter
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	telemetry, err := otel.New(&otel.Options{TracerProvider: tracing})
	if err != nil {
		panic(err)
	}
	defer telemetry.Close()
	client, err := holdfast.New(memory.New(3), &holdfast.Options{Hooks: telemetry.Hooks()})
	if err != nil {
		panic(err)
	}
	telemetry.Watch(client)

	ctx, work := tracing.Tracer("shop").Start(context.Background(), "pay order")
	opts := &holdfast.AcquireOptions{Note: otel.TraceNote(ctx)} // waiters get a link to this trace
	err = client.Do(ctx, "order/17", opts, func(context.Context, *holdfast.Lease) error { return nil })
	if err != nil {
		panic(err)
	}
	work.End()
	client.Close() // waits for the hooks

	for _, s := range spans.Ended() {
		if s.Parent().SpanID() == work.SpanContext().SpanID() {
			fmt.Println(s.Name(), attributesOf(s)[otel.Resource].AsString())
		}
	}
	// Output:
	// lock acquire order
	// lock hold order
}

func attributesOf(s sdktrace.ReadOnlySpan) map[attribute.Key]attribute.Value {
	all := make(map[attribute.Key]attribute.Value)
	for _, a := range s.Attributes() {
		all[a.Key] = a.Value
	}
	return all
}

// rig is a client whose spans and metrics are stored.
type rig struct {
	tracer trace.Tracer
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
	nodes  *memory.Driver
	client *holdfast.Client
}

func inBubble(t *testing.T, fn func(t *testing.T, r *rig)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader(), nodes: memory.New(3)}
		tracing := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
		r.tracer = tracing.Tracer("test")
		telemetry, err := otel.New(&otel.Options{
			TracerProvider: tracing, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader)),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer telemetry.Close()
		r.client, err = holdfast.New(r.nodes, &holdfast.Options{Hooks: telemetry.Hooks()})
		if err != nil {
			t.Fatal(err)
		}
		defer r.client.Close()
		telemetry.Watch(r.client)
		fn(t, r)
	})
}

// spansNamed returns the ended spans with a name.
func (r *rig) spansNamed(name string) (all []sdktrace.ReadOnlySpan) {
	synctest.Wait()
	for _, s := range r.spans.Ended() {
		if s.Name() == name {
			all = append(all, s)
		}
	}
	return all
}

func TestWaiterIsLinkedToHoldersTrace(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		holder, working := r.tracer.Start(t.Context(), "holder")
		lease, err := r.client.Acquire(holder, "order/1", &holdfast.AcquireOptions{Note: otel.TraceNote(holder)})
		if err != nil {
			t.Fatal(err)
		}
		waiter, waiting := r.tracer.Start(t.Context(), "waiter")
		_, err = r.client.Acquire(waiter, "order/1", &holdfast.AcquireOptions{Wait: 2 * time.Second})
		if !errors.Is(err, holdfast.ErrHeld) {
			t.Fatal(err)
		}
		synctest.Wait()
		waiting.End()
		for _, s := range append(r.spansNamed("waiter"), r.spansNamed("lock acquire")[1]) {
			if len(s.Links()) != 1 || s.Links()[0].SpanContext.SpanID() != working.SpanContext().SpanID() {
				t.Errorf("links of %s are %v, want one to %v", s.Name(), s.Links(), working.SpanContext())
			}
		}
		lease.Release(t.Context())
	})
}

func TestSpansShowDurationAndOutcome(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx, span := r.tracer.Start(t.Context(), "work")
		lease, err := r.client.Acquire(ctx, "order/1", &holdfast.AcquireOptions{TTL: 3 * time.Second, NoRenew: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.client.Acquire(ctx, "order/1", &holdfast.AcquireOptions{Wait: 2 * time.Second}); err == nil {
			t.Fatal("two holders at once")
		}
		<-lease.Context().Done()
		acquires, holds := r.spansNamed("lock acquire"), r.spansNamed("lock hold")
		if len(acquires) != 2 || len(holds) != 1 {
			t.Fatalf("%d acquire spans and %d hold spans", len(acquires), len(holds))
		}
		for _, c := range []struct {
			span   sdktrace.ReadOnlySpan
			took   time.Duration
			reason string
		}{{acquires[0], 0, ""}, {acquires[1], 2 * time.Second, "held"}, {holds[0], 3 * time.Second, "expired"}} {
			a := attributesOf(c.span)
			if took := c.span.EndTime().Sub(c.span.StartTime()); took < c.took || took > c.took+50*time.Millisecond {
				if c.reason != "expired" || took < c.took-100*time.Millisecond { // trust ends a little before the TTL
					t.Errorf("%s took %v, want %v", c.span.Name(), took, c.took)
				}
			}
			failed := c.span.Status().Code == codes.Error
			if a["error.type"].AsString() != c.reason || failed != (c.reason != "") || a[otel.Key].AsString() != "order/1" {
				t.Errorf("%s is %v with %v, want %q", c.span.Name(), c.span.Status(), a, c.reason)
			}
			if c.span.Parent().SpanID() != span.SpanContext().SpanID() {
				t.Errorf("%s is not a child of the caller's span", c.span.Name())
			}
		}
	})
}

// If the caller has no trace, one sampling decision covers the wait and the hold of a lock.
func TestLockWithoutParentIsOneTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.5))))
	telemetry, err := otel.New(&otel.Options{TracerProvider: tracing, MeterProvider: sdkmetric.NewMeterProvider()})
	if err != nil {
		t.Fatal(err)
	}
	defer telemetry.Close()
	client, err := holdfast.New(memory.New(3), &holdfast.Options{Hooks: telemetry.Hooks()})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := client.Do(t.Context(), "order/1", nil, func(context.Context, *holdfast.Lease) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	client.Close()
	acquires := make(map[trace.SpanID]attribute.Value) // by span; the value is the owner
	holds := 0
	for _, s := range spans.Ended() {
		owner := attributesOf(s)[otel.Owner]
		switch s.Name() {
		case "lock acquire":
			acquires[s.SpanContext().SpanID()] = owner
		case "lock hold":
			holds++
			if acquires[s.Parent().SpanID()] != owner {
				t.Errorf("the hold span of %s is not a child of its acquire span", owner.AsString())
			}
		}
	}
	if holds == 0 || holds == 100 || len(acquires) != holds {
		t.Errorf("%d acquire spans and %d hold spans of 100, want equal numbers, about half", len(acquires), holds)
	}
}

func TestMetricsShowClassWithoutKey(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		lease, err := r.client.Acquire(t.Context(), "order/1", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.client.TryAcquire(t.Context(), "order/1", nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		var got metricdata.ResourceMetrics
		if err := r.reader.Collect(t.Context(), &got); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range got.ScopeMetrics[0].Metrics {
			names = append(names, m.Name)
			var sets []attribute.Set
			switch d := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					sets = append(sets, p.Attributes)
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					sets = append(sets, p.Attributes)
				}
			}
			for _, s := range sets {
				if v, ok := s.Value("resource"); !ok || v.AsString() != "order" {
					t.Errorf("%s has %v", m.Name, s.ToSlice())
				}
			}
		}
		slices.Sort(names)
		want := []string{
			"distributed_lock.at_risk", "distributed_lock.failures", "distributed_lock.held", "distributed_lock.node_state", "distributed_lock.renewal_lag",
			"distributed_lock.renewal_margin", "distributed_lock.renewals", "distributed_lock.wait", "distributed_lock.waiters",
		}
		if !slices.Equal(names, want) {
			t.Errorf("metrics are %q, want %q", names, want)
		}
		lease.Release(t.Context())
	})
}

func TestNoteIsEmptyWithoutSampledTrace(t *testing.T) {
	t.Parallel()
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	ctx, _ := never.Tracer("test").Start(t.Context(), "work")
	for _, ctx := range []context.Context{t.Context(), ctx} {
		if n := otel.TraceNote(ctx); n != "" {
			t.Errorf("Note is %q", n)
		}
	}
}
