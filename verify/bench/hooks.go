package main

import (
	"context"
	"sync"

	client_golang "github.com/prometheus/client_golang/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/otel"
	"github.com/holdfast-go/holdfast/prometheus"
)

// hookLibraries are clients that differ in their hooks. The first two have none: what the second differs by is the error.
var hookLibraries = []library{
	hooked("unset", func() (holdfast.Hooks, error) { return holdfast.Hooks{}, nil }),
	hooked("unset again", func() (holdfast.Hooks, error) { return holdfast.Hooks{}, nil }),
	hooked("empty", func() (holdfast.Hooks, error) {
		return holdfast.Hooks{Acquired: func(holdfast.AcquiredEvent) {}, Released: func(holdfast.ReleasedEvent) {}}, nil
	}),
	hooked("prometheus", func() (holdfast.Hooks, error) {
		metrics := prometheus.New(nil)
		return metrics.Hooks(), client_golang.NewRegistry().Register(metrics)
	}),
	hooked("otel-1%", func() (holdfast.Hooks, error) {
		telemetry, err := otel.New(&otel.Options{
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.01)))),
			MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
		})
		return telemetry.Hooks(), err
	}),
}

// startMemory is five nodes in memory, which each client has for its own.
func startMemory(context.Context) (*service, error) {
	return &service{nodes: 5, libraries: hookLibraries, stop: func() error { return nil }, idle: 1}, nil
}

func hooked(name string, hooks func() (holdfast.Hooks, error)) library {
	once := sync.OnceValues(hooks)
	return library{name: name, open: func(context.Context, []string, int) (client, error) {
		h, err := once()
		if err != nil {
			return nil, err
		}
		c, err := holdfast.New(memory.New(5), &holdfast.Options{Hooks: h})
		return holdfastClient{c}, err
	}}
}

// nowhere drops spans.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }
