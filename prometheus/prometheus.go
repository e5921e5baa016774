// Package prometheus measures the locks of holdfast clients for Prometheus.
//
// A Metrics is a Collector and gives the hooks that feed it:
//
//	metrics := prometheus.New(nil)
//	registry.MustRegister(metrics)
//	client, err := holdfast.New(nodes, &holdfast.Options{Hooks: metrics.Hooks()})
//	metrics.Watch(client)
//
// The label resource is the class of a key, never the key: order/1 and order/2 are both
// "order". prometheus/example is a whole program.
//
//	distributed_lock_wait_seconds{resource,outcome}     how long calls of Acquire took; acquired or failed
//	distributed_lock_hold_seconds{resource}             how long leases lasted
//	distributed_lock_failures_total{resource,reason}    canceled, closed, held, lost, timeout, unavailable, other
//	distributed_lock_lost_total{resource,reason}        expired, gone, max_hold, other
//	distributed_lock_renewals_total{resource,result}    rounds of renewal; ok or failed
//	distributed_lock_renewal_lag_seconds{resource}      time from when a round was due until it ended
//	distributed_lock_renewal_margin_seconds{resource}   trust left at the end of a round
//	distributed_lock_release_unconfirmed_total{resource} releases that the service did not confirm
//	distributed_lock_waiters{resource}                  callers that wait for a holder
//	distributed_lock_held{resource}                     leases that are held
//	distributed_lock_at_risk{resource}                  leases that cannot spare another node
//	distributed_lock_node_state{node,state}             1 for the present state of a node, 0 for the others
//	distributed_lock_node_round_trip_seconds{node}      how long a node takes to answer, smoothed over some seconds
//	distributed_lock_events_dropped_total               events that the client dropped because hooks or the Logger were too slow
//
// After events were dropped, waiters and held begin again and are too low until the leases
// have been renewed and the waits have ended.
package prometheus

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/observe"
)

// Options configure Metrics. The zero value works.
type Options struct {
	// Class returns the class of a key, for the label resource. It is called for each event and must return
	// quickly. nil: the text before the first "/", ":" or digit.
	Class func(key string) string
	// MaxClasses bounds the number of classes: keys of further classes have the class "other". 0: 1,000.
	MaxClasses int
	// Hooks are the caller's own hooks. They are called after the event was measured.
	Hooks holdfast.Hooks
}

// Metrics is a Collector for any number of clients. It is safe for concurrent use.
type Metrics struct {
	hooks   holdfast.Hooks
	tracker *observe.Tracker
	dropped prometheus.Counter

	wait, hold, lag, margin              *prometheus.HistogramVec
	failures, lost, renewed, unconfirmed *prometheus.CounterVec
}

var (
	resource  = []string{"resource"}
	waiters   = prometheus.NewDesc("distributed_lock_waiters", "Callers that wait for a held lock.", resource, nil)
	held      = prometheus.NewDesc("distributed_lock_held", "Leases that are held.", resource, nil)
	atRisk    = prometheus.NewDesc("distributed_lock_at_risk", "Leases that cannot spare another node.", resource, nil)
	nodeState = prometheus.NewDesc("distributed_lock_node_state", "1 for the present state of a node, 0 for the others.", []string{"node", "state"}, nil)
	roundTrip = prometheus.NewDesc("distributed_lock_node_round_trip_seconds", "How long a node takes to answer, smoothed.", []string{"node"}, nil)
)

// New returns Metrics without measurements. opts may be nil.
func New(opts *Options) *Metrics {
	if opts == nil {
		opts = &Options{}
	}
	m := &Metrics{
		wait: newHistogram("wait_seconds", "How long calls of Acquire took.", observe.WaitBuckets, "outcome"),
		hold: newHistogram("hold_seconds", "How long leases lasted.", observe.HoldBuckets),
		lag:  newHistogram("renewal_lag_seconds", "Time from when a round of renewal was due until it ended.", observe.RenewalBuckets),
		margin: newHistogram("renewal_margin_seconds", "Trust that a lease had left at the end of a round of renewal.",
			observe.RenewalBuckets),
		failures:    newCounter("failures_total", "Calls of Acquire that returned no lease.", "reason"),
		lost:        newCounter("lost_total", "Leases that ended before they were released.", "reason"),
		renewed:     newCounter("renewals_total", "Rounds of renewal.", "result"),
		unconfirmed: newCounter("release_unconfirmed_total", "Releases that the service did not confirm."),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "events_dropped_total", Help: "Events that the client dropped because hooks or the Logger were too slow.",
		}),
	}
	m.tracker = observe.New(observe.Options{
		Class: opts.Class, MaxClasses: opts.MaxClasses, New: m.resourceOf, Dropped: func(n int) { m.dropped.Add(float64(n)) },
	})
	m.hooks = m.tracker.Hooks(opts.Hooks)
	return m
}

const prefix = "distributed_lock_"

func newHistogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	o := prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}
	return prometheus.NewHistogramVec(o, append(labels, resource...))
}

func newCounter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, append(labels, resource...))
}

// Hooks returns the hooks for holdfast.Options.
func (m *Metrics) Hooks() holdfast.Hooks { return m.hooks }

// Watch makes each scrape ask client for the states and round trips of its nodes. Without it, a node is
// reported only after its first change, with the state of that change.
func (m *Metrics) Watch(client *holdfast.Client) { m.tracker.Watch(client) }

// storedCollectors returns the collectors that store measurements.
func (m *Metrics) storedCollectors() []prometheus.Collector {
	return []prometheus.Collector{m.wait, m.hold, m.lag, m.margin, m.failures, m.lost, m.renewed, m.unconfirmed, m.dropped}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, v := range m.storedCollectors() {
		v.Describe(out)
	}
	for _, d := range []*prometheus.Desc{waiters, held, atRisk, nodeState, roundTrip} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, v := range m.storedCollectors() {
		v.Collect(out)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counts := make(map[string]observe.Counts)
	m.tracker.Each(func(class string, n observe.Counts) { counts[class] = n })
	for class, n := range counts {
		gauge(waiters, float64(n.Waiters), class)
		gauge(held, float64(n.Held), class)
		gauge(atRisk, float64(n.AtRisk), class)
	}
	for name, node := range m.tracker.Nodes() {
		for _, s := range observe.States {
			is := 0.0
			if s == node.State {
				is = 1
			}
			gauge(nodeState, is, name, s)
		}
		if node.RoundTrip > 0 {
			gauge(roundTrip, node.RoundTrip.Seconds(), name)
		}
	}
}

// classMetrics are the metrics of one class. Those of usual events are looked up once.
type classMetrics struct {
	*Metrics
	class                               string
	acquired, failed, hold, lag, margin prometheus.Observer
}

func (m *Metrics) resourceOf(class string) observe.Resource {
	m.failures.WithLabelValues("other", class) // starts at 0, so that the first failure of a class is an increase
	for _, reason := range []string{"expired", "gone", "max_hold"} {
		m.lost.WithLabelValues(reason, class)
	}
	m.unconfirmed.WithLabelValues(class)
	m.renewed.WithLabelValues("failed", class)
	return &classMetrics{
		Metrics: m, class: class,
		acquired: m.wait.WithLabelValues("acquired", class), failed: m.wait.WithLabelValues("failed", class),
		hold: m.hold.WithLabelValues(class), lag: m.lag.WithLabelValues(class), margin: m.margin.WithLabelValues(class),
	}
}

func (s *classMetrics) Acquired(_ context.Context, waited time.Duration) {
	s.acquired.Observe(waited.Seconds())
}

func (s *classMetrics) Failed(_ context.Context, waited time.Duration, reason string) {
	s.failed.Observe(waited.Seconds())
	s.failures.WithLabelValues(reason, s.class).Inc()
}

func (s *classMetrics) Ended(_ context.Context, held time.Duration) { s.hold.Observe(held.Seconds()) }

func (s *classMetrics) Lost(_ context.Context, reason string) {
	s.lost.WithLabelValues(reason, s.class).Inc()
}

func (s *classMetrics) Unconfirmed(context.Context) { s.unconfirmed.WithLabelValues(s.class).Inc() }

func (s *classMetrics) Renewed(late, left time.Duration, result string) {
	s.lag.Observe(late.Seconds())
	s.margin.Observe(left.Seconds())
	s.renewed.WithLabelValues(result, s.class).Inc()
}
