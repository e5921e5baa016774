// Package otel measures and traces the locks of holdfast clients with OpenTelemetry.
//
//	telemetry, err := otel.New(nil)
//	client, err := holdfast.New(nodes, &holdfast.Options{Hooks: telemetry.Hooks()})
//	telemetry.Watch(client)
//
// Each call of Acquire becomes a span "lock acquire", which lasts as long as the wait, and each lease a span
// "lock hold". Both are children of the span in the context that was given to Acquire. If there is none, "lock
// acquire" begins a trace, and "lock hold" is its child, so that one sampling decision covers both. The spans
// are created from events when they have ended: if hooks are late, the spans are shifted by the delay.
//
// A holder that passes TraceNote(ctx) as its AcquireOptions.Note shows its trace to waiting callers: the span of a
// caller gets a link to that trace when the wait begins.
//
// The metrics are the same as in package prometheus, with points for underscores and without the suffixes for
// units: distributed_lock.wait, with the attribute resource, the class of the key. otel/example is a whole
// program.
package otel

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/observe"
)

const scope = "github.com/holdfast-go/holdfast/otel"

// The attributes of spans. The attributes of metrics are resource, reason, outcome, result, node and state: no
// metric has a key or an owner.
const (
	Key      = attribute.Key("distributed_lock.key")
	Resource = attribute.Key("distributed_lock.resource") // class of the key
	Owner    = attribute.Key("distributed_lock.owner")
	Token    = attribute.Key("distributed_lock.token")
	HandOver = attribute.Key("distributed_lock.hand_over")
)

// Options configure Telemetry. The zero value uses the global providers.
type Options struct {
	TracerProvider trace.TracerProvider // nil: the global one
	MeterProvider  metric.MeterProvider // nil: the global one
	// Class returns the class of a key. It is called for each event and must return quickly. nil: the text
	// before the first "/", ":" or digit.
	Class func(key string) string
	// MaxClasses bounds the number of classes: keys of further classes have the class "other". 0: 1,000.
	MaxClasses int
	// Hooks are the caller's own hooks. They are called after the event was measured.
	Hooks holdfast.Hooks
}

// Telemetry measures and traces any number of clients. It is safe for concurrent use.
type Telemetry struct {
	hooks   holdfast.Hooks
	tracer  trace.Tracer
	tracker *observe.Tracker
	reader  metric.Registration

	mu    sync.Mutex                   // guards roots
	roots map[string]trace.SpanContext // of acquire, by owner, for leases that are held, have no parent and are recorded

	wait, hold, lag, margin                       metric.Float64Histogram
	failures, lost, renewed, unconfirmed, dropped metric.Int64Counter
	waiters, held, atRisk                         metric.Int64ObservableUpDownCounter
	nodeState                                     metric.Int64ObservableGauge
	roundTrip                                     metric.Float64ObservableGauge
}

// New returns Telemetry. opts may be nil. It returns the errors of the MeterProvider.
func New(opts *Options) (*Telemetry, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	t := &Telemetry{roots: make(map[string]trace.SpanContext), tracer: o.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
	if err := t.makeInstruments(o.MeterProvider.Meter(scope)); err != nil {
		return nil, err
	}
	t.tracker = observe.New(observe.Options{
		Class: o.Class, MaxClasses: o.MaxClasses, New: t.resourceOf,
		Dropped: func(n int) { t.dropped.Add(context.Background(), int64(n)) },
	})
	t.hooks = t.addSpans(t.tracker.Hooks(o.Hooks))
	return t, nil
}

// makeInstruments creates the instruments.
func (t *Telemetry) makeInstruments(m metric.Meter) (err error) {
	histogram := func(name, help string, buckets []float64) metric.Float64Histogram {
		h, failed := m.Float64Histogram(prefix+name, metric.WithUnit("s"), metric.WithDescription(help), metric.WithExplicitBucketBoundaries(buckets...))
		err = errors.Join(err, failed)
		return h
	}
	counter := func(name, help string) metric.Int64Counter {
		c, failed := m.Int64Counter(prefix+name, metric.WithDescription(help))
		err = errors.Join(err, failed)
		return c
	}
	count := func(name, help string) metric.Int64ObservableUpDownCounter {
		c, failed := m.Int64ObservableUpDownCounter(prefix+name, metric.WithDescription(help))
		err = errors.Join(err, failed)
		return c
	}
	t.wait = histogram("wait", "How long calls of Acquire took.", observe.WaitBuckets)
	t.hold = histogram("hold", "How long leases lasted.", observe.HoldBuckets)
	t.lag = histogram("renewal_lag", "Time from when a round of renewal was due until it ended.", observe.RenewalBuckets)
	t.margin = histogram("renewal_margin", "Trust that a lease had left at the end of a round of renewal.", observe.RenewalBuckets)
	t.failures = counter("failures", "Calls of Acquire that returned no lease.")
	t.lost = counter("lost", "Leases that ended before they were released.")
	t.renewed = counter("renewals", "Rounds of renewal.")
	t.unconfirmed = counter("release_unconfirmed", "Releases that the service did not confirm.")
	t.dropped = counter("events_dropped", "Events that the client dropped because hooks or the Logger were too slow.")
	t.waiters = count("waiters", "Callers that wait for a held lock.")
	t.held = count("held", "Leases that are held.")
	t.atRisk = count("at_risk", "Leases that cannot spare another node.")
	var failed error
	t.nodeState, failed = m.Int64ObservableGauge(prefix+"node_state", metric.WithDescription("1 for the present state of a node, 0 for the others."))
	err = errors.Join(err, failed)
	t.roundTrip, failed = m.Float64ObservableGauge(prefix+"node_round_trip",
		metric.WithUnit("s"), metric.WithDescription("How long a node takes to answer, smoothed."))
	err = errors.Join(err, failed)
	if err != nil {
		return err
	}
	t.reader, err = m.RegisterCallback(t.observeNow, t.waiters, t.held, t.atRisk, t.nodeState, t.roundTrip)
	return err
}

const prefix = "distributed_lock."

// observeNow reports the present counts and states.
func (t *Telemetry) observeNow(_ context.Context, o metric.Observer) error {
	t.tracker.Each(func(class string, n observe.Counts) {
		by := metric.WithAttributes(attribute.String("resource", class))
		o.ObserveInt64(t.waiters, int64(n.Waiters), by)
		o.ObserveInt64(t.held, int64(n.Held), by)
		o.ObserveInt64(t.atRisk, int64(n.AtRisk), by)
	})
	for name, node := range t.tracker.Nodes() {
		by := attribute.String("node", name)
		for _, s := range observe.States {
			is := int64(0)
			if s == node.State {
				is = 1
			}
			o.ObserveInt64(t.nodeState, is, metric.WithAttributes(by, attribute.String("state", s)))
		}
		if node.RoundTrip > 0 {
			o.ObserveFloat64(t.roundTrip, node.RoundTrip.Seconds(), metric.WithAttributes(by))
		}
	}
	return nil
}

// Hooks returns the hooks for holdfast.Options.
func (t *Telemetry) Hooks() holdfast.Hooks { return t.hooks }

// Watch makes each reading of the metrics ask client for the states and round trips of its nodes. Without it,
// a node is reported only after its first change, with the state of that change.
func (t *Telemetry) Watch(client *holdfast.Client) { t.tracker.Watch(client) }

// Close ends the observation of counts. It closes no client.
func (t *Telemetry) Close() error { return t.reader.Unregister() }

// addSpans adds spans to hooks.
func (t *Telemetry) addSpans(h holdfast.Hooks) holdfast.Hooks {
	with := h
	with.Waiting = func(e holdfast.WaitingEvent) {
		linkHolder(trace.SpanFromContext(e.Context), e.Held)
		h.Waiting(e)
	}
	with.Acquired = func(e holdfast.AcquiredEvent) {
		if span := t.startSpan(e.Context, "lock acquire", isClient, e.Key, e.Waited); span != nil {
			span.SetAttributes(Owner.String(e.Owner), Token.Int64(int64(e.Token)), HandOver.Bool(e.HandOver))
			span.End()
			t.keepParent(e, span)
		}
		h.Acquired(e)
	}
	with.Failed = func(e holdfast.FailedEvent) {
		if span := t.startSpan(e.Context, "lock acquire", isClient, e.Key, e.Waited); span != nil {
			held, _ := errors.AsType[*holdfast.HeldError](e.Err)
			linkHolder(span, held)
			failSpan(span, observe.FailureReason(e.Err), e.Err)
			span.End()
		}
		h.Failed(e)
	}
	with.Lost = func(e holdfast.LostEvent) {
		if span := t.holdSpan(e.Context, e.Key, e.Owner, e.Held); span != nil {
			span.SetAttributes(Owner.String(e.Owner), Token.Int64(int64(e.Token)))
			failSpan(span, observe.LossReason(e.Reason), e.Reason)
			span.End()
		}
		h.Lost(e)
	}
	with.Released = func(e holdfast.ReleasedEvent) {
		if span := t.holdSpan(e.Context, e.Key, e.Owner, e.Held); span != nil {
			span.SetAttributes(Owner.String(e.Owner), Token.Int64(int64(e.Token)))
			if e.Err != nil {
				failSpan(span, "unconfirmed", e.Err)
			}
			span.End()
		}
		h.Released(e)
	}
	with.Dropped = func(e holdfast.DroppedEvent) {
		t.mu.Lock()
		clear(t.roots) // the ends of some leases will never be reported
		t.mu.Unlock()
		h.Dropped(e)
	}
	return with
}

// keepParent stores span as the parent of the hold's span, if the hold has no parent itself.
func (t *Telemetry) keepParent(e holdfast.AcquiredEvent, span trace.Span) {
	if trace.SpanContextFromContext(e.Context).IsValid() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.roots[e.Owner] = span.SpanContext()
}

// holdSpan returns the span of a lease that has ended.
func (t *Telemetry) holdSpan(ctx context.Context, key, owner string, held time.Duration) trace.Span {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		t.mu.Lock()
		root, recorded := t.roots[owner]
		delete(t.roots, owner)
		t.mu.Unlock()
		if !recorded {
			return nil
		}
		ctx = trace.ContextWithSpanContext(ctx, root)
	}
	return t.startSpan(ctx, "lock hold", isInternal, key, held)
}

var (
	isClient   = trace.WithSpanKind(trace.SpanKindClient)
	isInternal = trace.WithSpanKind(trace.SpanKindInternal)
)

// startSpan starts a span that began took ago. The caller ends it. It returns nil if the span is not recorded.
func (t *Telemetry) startSpan(ctx context.Context, name string, kind trace.SpanStartOption, key string, took time.Duration) trace.Span {
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(time.Now().Add(-took)), kind)
	if !span.IsRecording() {
		return nil
	}
	span.SetAttributes(Key.String(key), Resource.String(t.tracker.ClassOf(key)))
	return span
}

// failSpan marks span as failed, with the reason.
func failSpan(span trace.Span, reason string, err error) {
	span.SetAttributes(semconv.ErrorTypeKey.String(reason))
	span.SetStatus(codes.Error, err.Error())
}

// TraceNote returns the trace of ctx for AcquireOptions.Note, or "" if ctx has no sampled trace. It has 55 bytes.
// Inside a process the lock is not handed over to a waiter with another Note.
func TraceNote(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// linkHolder links span to the trace of the holder in held, if its note names one. held may be nil.
func linkHolder(span trace.Span, held *holdfast.HeldError) {
	if held == nil || !strings.HasPrefix(held.Holder.Note, "00-") || !span.IsRecording() {
		return
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": held.Holder.Note})
	if to := trace.SpanContextFromContext(ctx); to.IsValid() {
		span.AddLink(trace.Link{SpanContext: to, Attributes: []attribute.KeyValue{Owner.String(held.Owner)}})
	}
}

// classMetrics are the metrics of one class. Their attributes are created once.
type classMetrics struct {
	*Telemetry
	resource                attribute.KeyValue
	acquired, failed, plain []metric.RecordOption
}

func (t *Telemetry) resourceOf(class string) observe.Resource {
	resource := attribute.String("resource", class)
	record := func(with ...attribute.KeyValue) []metric.RecordOption {
		return []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(append(with, resource)...))}
	}
	return &classMetrics{
		Telemetry: t, resource: resource,
		acquired: record(attribute.String("outcome", "acquired")), failed: record(attribute.String("outcome", "failed")), plain: record(),
	}
}

func (s *classMetrics) add(ctx context.Context, c metric.Int64Counter, with ...attribute.KeyValue) {
	c.Add(ctx, 1, metric.WithAttributes(append(with, s.resource)...))
}

func (s *classMetrics) Acquired(ctx context.Context, waited time.Duration) {
	s.wait.Record(ctx, waited.Seconds(), s.acquired...)
}

func (s *classMetrics) Failed(ctx context.Context, waited time.Duration, reason string) {
	s.wait.Record(ctx, waited.Seconds(), s.failed...)
	s.add(ctx, s.failures, attribute.String("reason", reason))
}

func (s *classMetrics) Ended(ctx context.Context, held time.Duration) {
	s.hold.Record(ctx, held.Seconds(), s.plain...)
}

func (s *classMetrics) Lost(ctx context.Context, reason string) {
	s.add(ctx, s.lost, attribute.String("reason", reason))
}

func (s *classMetrics) Unconfirmed(ctx context.Context) { s.add(ctx, s.unconfirmed) }

func (s *classMetrics) Renewed(late, left time.Duration, result string) {
	ctx := context.Background()
	s.lag.Record(ctx, late.Seconds(), s.plain...)
	s.margin.Record(ctx, left.Seconds(), s.plain...)
	s.add(ctx, s.renewed, attribute.String("result", result))
}
