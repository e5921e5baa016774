//go:build unix

// Package hooks measures what hooks cost a client.
package hooks

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	client_golang "github.com/prometheus/client_golang/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/otel"
	"github.com/holdfast-go/holdfast/prometheus"
)

// nowhere is where spans go.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// variants are the hooks that are compared. The first has none.
func variants(b *testing.B) (names []string, hooks []holdfast.Hooks) {
	b.Helper()
	metrics := prometheus.New(nil)
	client_golang.NewRegistry().MustRegister(metrics)
	tracing := sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.01))))
	b.Cleanup(func() { tracing.Shutdown(context.Background()) })
	telemetry, err := otel.New(&otel.Options{
		TracerProvider: tracing, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
	})
	if err != nil {
		b.Fatal(err)
	}
	empty := holdfast.Hooks{Acquired: func(holdfast.AcquiredEvent) {}, Released: func(holdfast.ReleasedEvent) {}}
	return []string{"unset", "again", "empty", "prometheus", "otel-1%"}, []holdfast.Hooks{{}, {}, empty, metrics.Hooks(), telemetry.Hooks()}
}

// BenchmarkHooks locks and unlocks one key after the other, on five nodes in memory. Each
// iteration is a turn of each variant, close to one another and in an order that rotates, so
// that all see the same machine. %less-rate is by how much the rate of locks is lower than
// that of "unset" in the same turn, the median of all turns; %more-cpu is the same for the
// processor time of the process, hooks included. "again" has no hooks either: it is the error. "empty" has hooks that do nothing.
func BenchmarkHooks(b *testing.B) {
	const locks = 500
	names, hooks := variants(b)
	wall, cpu := make([][]float64, len(names)), make([][]float64, len(names))
	for turn := 0; b.Loop(); turn++ {
		for i := range names {
			v := (i*(1+turn/len(names)%2*2) + turn) % len(names) // forwards and backwards
			w, c := round(b, hooks[v], locks)
			wall[v], cpu[v] = append(wall[v], w.Seconds()), append(cpu[v], c.Seconds())
		}
	}
	for v, name := range names {
		b.ReportMetric(1e6*median(cpu[v])/locks, name+"-cpu-µs/lock")
		if v > 0 {
			b.ReportMetric(median(compare(wall, v, func(unset, d float64) float64 { return 100 * (1 - unset/d) })), name+"-%less-rate")
			b.ReportMetric(median(compare(cpu, v, func(unset, d float64) float64 { return 100 * (d/unset - 1) })), name+"-%more-cpu")
		}
	}
}

// compare is what by says of each turn of variant v.
func compare(took [][]float64, v int, by func(unset, d float64) float64) (all []float64) {
	for i, d := range took[v] {
		all = append(all, by(took[0][i], d))
	}
	return all
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// spent is the processor time that the process has used.
func spent(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// round is how long locks acquires and releases take, with their events, and how much
// processor time.
func round(b *testing.B, hooks holdfast.Hooks, locks int) (wall, cpu time.Duration) {
	b.Helper()
	client, err := holdfast.New(memory.New(5), &holdfast.Options{Hooks: hooks})
	if err != nil {
		b.Fatal(err)
	}
	keys := make([]string, 64)
	for i := range keys {
		keys[i] = fmt.Sprintf("order/%d", i)
	}
	runtime.GC() // the garbage of the turn before
	begin, before := time.Now(), spent(b)
	for i := range locks {
		lease, err := client.Acquire(b.Context(), keys[i%len(keys)], nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	client.Close()
	return time.Since(begin), spent(b) - before
}
