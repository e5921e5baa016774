// Example acquires two locks one after the other, the second behind another holder, and prints the spans and
// the metrics that a program would send to its collector. Run it with or without the URL of a backend:
//
//	go run ./example [redis://127.0.0.1:6379]
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/otel"
	_ "github.com/holdfast-go/holdfast/redis"
)

func main() {
	if err := run(context.Background(), os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// printer replaces an OTLP exporter.
type printer struct{ out io.Writer }

func (p printer) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, s := range spans {
		took := s.EndTime().Sub(s.StartTime()).Round(time.Millisecond)
		fmt.Fprintf(p.out, "span   %-12s %v, %d links, trace %s\n", s.Name(), took, len(s.Links()), s.SpanContext().TraceID())
	}
	return nil
}

func (printer) Shutdown(context.Context) error { return nil }

func run(ctx context.Context, out io.Writer, backend []string) error {
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSyncer(printer{out}))
	defer tracing.Shutdown(ctx)
	reader := sdkmetric.NewManualReader() // a real program has a PeriodicReader with an exporter
	telemetry, err := otel.New(&otel.Options{TracerProvider: tracing, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		return err
	}
	defer telemetry.Close()
	client, err := openClient(ctx, backend, &holdfast.Options{Hooks: telemetry.Hooks()})
	if err != nil {
		return err
	}
	defer client.Close()
	telemetry.Watch(client)
	if err := payOrder(ctx, tracing.Tracer("shop"), client); err != nil {
		return err
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		return err
	}
	client.Close() // waits until the hooks have received all events
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			fmt.Fprintf(out, "metric %-30s %s\n", m.Name, m.Description)
		}
	}
	return nil
}

// openClient returns a client of the Redis at a URL, or of nodes in memory.
func openClient(ctx context.Context, backend []string, opts *holdfast.Options) (*holdfast.Client, error) {
	if len(backend) == 0 {
		return holdfast.New(memory.New(3), opts)
	}
	return holdfast.Open(ctx, backend[0], opts)
}

// payOrder pays an order while another part of the program packs it: the waiting span gets a link to the span
// of the holder.
func payOrder(ctx context.Context, tracer trace.Tracer, client *holdfast.Client) error {
	packing, packs := tracer.Start(ctx, "pack order")
	lease, err := client.Acquire(packing, "order/17", &holdfast.AcquireOptions{Note: otel.TraceNote(packing)})
	if err != nil {
		return err
	}
	var packer sync.WaitGroup
	defer packer.Wait()
	packer.Go(func() {
		time.Sleep(100 * time.Millisecond) // the work
		lease.Release(packing)
		packs.End()
	})
	paying, pays := tracer.Start(ctx, "pay order")
	defer pays.End()
	return client.Do(paying, "order/17", &holdfast.AcquireOptions{Note: otel.TraceNote(paying)}, func(context.Context, *holdfast.Lease) error { return nil })
}
