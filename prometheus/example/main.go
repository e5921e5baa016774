// Example acquires locks and serves their metrics to Prometheus. Run it with or without the URL of a backend:
//
//	go run ./example [redis://127.0.0.1:6379]
//	curl http://127.0.0.1:9464/metrics
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	client_golang "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/prometheus"
	_ "github.com/holdfast-go/holdfast/redis"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, "127.0.0.1:9464", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run works and serves on addr until ctx ends.
func run(ctx context.Context, out io.Writer, addr string, backend []string) error {
	metrics := prometheus.New(nil)
	client, err := openClient(ctx, backend, &holdfast.Options{Hooks: metrics.Hooks()})
	if err != nil {
		return err
	}
	defer func() { // after the server is closed and the workers have ended
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		client.Shutdown(last)
	}()
	metrics.Watch(client)
	registry := client_golang.NewRegistry()
	registry.MustRegister(metrics)

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	fmt.Fprintf(out, "http://%s/metrics\n", listener.Addr())

	var workers sync.WaitGroup
	defer workers.Wait()
	for range 8 {
		workers.Go(func() { payOrders(ctx, client) })
	}
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
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

// payOrders pays one of ten orders after the other.
func payOrders(ctx context.Context, client *holdfast.Client) {
	for ctx.Err() == nil {
		key := fmt.Sprintf("order/%d", rand.N(10))
		client.Do(ctx, key, &holdfast.AcquireOptions{Wait: 50 * time.Millisecond}, func(ctx context.Context, _ *holdfast.Lease) error {
			select {
			case <-time.After(rand.N(50 * time.Millisecond)):
			case <-ctx.Done():
			}
			return ctx.Err()
		}) // the metrics count the failures
	}
}
