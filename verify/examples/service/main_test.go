package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/verify/examples"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

const schema = `
	CREATE TABLE invoice (id bigint PRIMARY KEY, charged bool NOT NULL DEFAULT false);
	INSERT INTO invoice (id) SELECT generate_series(1, 9)`

// instance is a running service.
type instance struct {
	url   string
	stop  context.CancelFunc
	ended <-chan error
}

func startInstance(t *testing.T, backend, database, provider string) *instance {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{url: "http://" + listener.Addr().String()}
	i.stop, i.ended = examples.Start(t, func(ctx context.Context) error {
		return run(ctx, listener, backend, database, provider, 300*time.Millisecond)
	})
	return i
}

// requestStatus returns the status of an answer.
func requestStatus(t *testing.T, method, url string) int {
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func TestInvoiceIsChargedOnce(t *testing.T) {
	t.Parallel()
	backend := "redis://" + redistest.Start(t, nil).Addr()
	database, _ := examples.Database(t, schema)
	var charges atomic.Int32
	provider := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		charges.Add(1)
		time.Sleep(50 * time.Millisecond) // so that requests overlap
	}))
	t.Cleanup(provider.Close)
	instances := []*instance{startInstance(t, backend, database, provider.URL), startInstance(t, backend, database, provider.URL)}
	const requests = 10
	answers := make(chan int, requests)
	for n := range requests {
		go func() { answers <- requestStatus(t, http.MethodPost, instances[n%2].url+"/invoices/7/charge") }()
	}
	for range requests {
		if code := examples.Soon(t, "an answer comes", answers); code != http.StatusOK {
			t.Errorf("status %d, want 200", code)
		}
	}
	if n := charges.Load(); n != 1 {
		t.Errorf("the provider was called %d times, want once", n)
	}
	if code := requestStatus(t, http.MethodPost, instances[0].url+"/invoices/77/charge"); code != http.StatusNotFound {
		t.Errorf("unknown invoice: status %d, want 404", code)
	}
}

// slowProvider starts a provider that answers each request once answer receives a value.
func slowProvider(t *testing.T) (url string, called chan struct{}, answer chan struct{}) {
	called, answer = make(chan struct{}), make(chan struct{})
	provider := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // only after this the server notices that the client is gone
		called <- struct{}{}
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(provider.Close)
	return provider.URL, called, answer
}

func TestShutdownWaitsForRequests(t *testing.T) {
	t.Parallel()
	backend := "redis://" + redistest.Start(t, nil).Addr()
	database, db := examples.Database(t, schema)
	provider, called, answer := slowProvider(t)
	i := startInstance(t, backend, database, provider)
	if code := requestStatus(t, http.MethodGet, i.url+"/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d, want 200", code)
	}
	answers := make(chan int, 1)
	go func() { answers <- requestStatus(t, http.MethodPost, i.url+"/invoices/7/charge") }()
	examples.Soon(t, "the provider is called", called)
	i.stop()
	awaitUnready(t, i)                 // it still answers for 300 ms
	time.Sleep(400 * time.Millisecond) // it has stopped answering
	close(answer)
	if code := examples.Soon(t, "the request is answered", answers); code != http.StatusOK {
		t.Errorf("a request during the shutdown: status %d, want 200", code)
	}
	if err := examples.Soon(t, "the service ends", i.ended); err != nil {
		t.Error(err)
	}
	var charged bool
	if err := db.QueryRowContext(t.Context(), `SELECT charged FROM invoice WHERE id = 7`).Scan(&charged); err != nil || !charged {
		t.Errorf("charged: %v, %v", charged, err)
	}
	examples.Free(t, backend, "invoice/7")
}

func TestLostLeaseEndsRequest(t *testing.T) {
	t.Parallel()
	backend := "redis://" + redistest.Start(t, nil).Addr()
	database, db := examples.Database(t, schema)
	provider, called, _ := slowProvider(t)
	i := startInstance(t, backend, database, provider)
	answers := make(chan int, 1)
	go func() { answers <- requestStatus(t, http.MethodPost, i.url+"/invoices/7/charge") }()
	examples.Soon(t, "the provider is called", called)
	examples.Take(t, backend, "invoice/7")
	if code := examples.Soon(t, "the request is answered", answers); code != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503", code)
	}
	var charged bool
	if err := db.QueryRowContext(t.Context(), `SELECT charged FROM invoice WHERE id = 7`).Scan(&charged); err != nil || charged {
		t.Errorf("charged: %v, %v", charged, err)
	}
}

func TestServiceWithoutLocksIsNotReady(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, nil)
	database, _ := examples.Database(t, schema)
	provider, _, _ := slowProvider(t)
	i := startInstance(t, "redis://"+server.Addr(), database, provider)
	if code := requestStatus(t, http.MethodGet, i.url+"/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d, want 200", code)
	}
	server.Kill()
	awaitUnready(t, i)
}

// awaitUnready blocks until i reports that it is not ready.
func awaitUnready(t *testing.T, i *instance) {
	t.Helper()
	code := http.StatusOK
	for end := time.Now().Add(90 * time.Second); code == http.StatusOK && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		code = requestStatus(t, http.MethodGet, i.url+"/readyz")
	}
	if code != http.StatusServiceUnavailable {
		t.Fatalf("readyz: %d, want 503", code)
	}
}
