// Service charges invoices over HTTP. It runs on any number of machines, and charges each invoice once.
//
//	HOLDFAST_BACKEND=redis://localhost:6379 DATABASE_URL=postgres://localhost/shop PROVIDER=https://pay.example.com go run .
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	_ "github.com/holdfast-go/holdfast/redis" // redis:// and related URLs
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		log.Fatal(err)
	}
	if err := run(ctx, listener, os.Getenv("HOLDFAST_BACKEND"), os.Getenv("DATABASE_URL"), os.Getenv("PROVIDER"), 5*time.Second); err != nil {
		log.Fatal(err)
	}
}

// service is one instance. It is safe for concurrent use.
type service struct {
	locks    *holdfast.Client
	db       *sql.DB
	tokens   *sqlfence.Fence // rejects a late holder
	provider string          // URL of the payment provider
	ending   atomic.Bool
}

// run serves until ctx ends. Then it reports for the time notice that it is not ready, so that no new requests
// arrive.
func run(ctx context.Context, listener net.Listener, backend, database, provider string, notice time.Duration) error {
	defer listener.Close()
	db, err := sql.Open("pgx", database)
	if err != nil {
		return err
	}
	defer db.Close()                               // closed last: holders write to it until their release
	locks, err := holdfast.Open(ctx, backend, nil) // one client for the whole process
	if err != nil {
		return err
	}
	defer locks.Close()
	tokens, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		return err
	}
	if err := tokens.Create(ctx, db); err != nil {
		return err
	}

	s := &service{locks: locks, db: db, tokens: tokens, provider: provider}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", s.handleReady)
	mux.HandleFunc("POST /invoices/{id}/charge", s.handleCharge)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.ending.Store(true)
	time.Sleep(notice)
	grace, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	// Requests end first, because they need the locks. A request that takes longer than grace loses its lease,
	// and its context ends.
	return errors.Join(server.Shutdown(grace), locks.Shutdown(grace))
}

// handleReady reports whether a load balancer should send requests.
func (s *service) handleReady(w http.ResponseWriter, _ *http.Request) {
	nodes, silent := s.locks.Nodes(), 0
	for _, node := range nodes {
		if node.State == holdfast.NodeDown || node.State == holdfast.NodeStalled {
			silent++
		}
	}
	if s.ending.Load() || silent > 0 && 2*silent >= len(nodes) {
		http.Error(w, fmt.Sprintf("ending: %v; silent nodes of the locks: %d of %d", s.ending.Load(), silent, len(nodes)), http.StatusServiceUnavailable)
	}
}

// handleCharge charges the invoice if it is not charged yet, and writes the response.
func (s *service) handleCharge(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	opts := &holdfast.AcquireOptions{Wait: 5 * time.Second}
	err := s.locks.Do(r.Context(), "invoice/"+id, opts, func(ctx context.Context, lease *holdfast.Lease) error {
		return s.chargeOnce(ctx, lease, id)
	})
	if err != nil {
		log.Print(err)
		http.Error(w, http.StatusText(statusOf(err)), statusOf(err))
	}
}

// chargeOnce charges an invoice if it is not charged yet. ctx ends when the lease is lost, because another process
// may then be working on the invoice.
func (s *service) chargeOnce(ctx context.Context, lease *holdfast.Lease, id string) error {
	// The claim comes before the read: from now on the database rejects earlier holders.
	if err := s.tokens.Claim(ctx, s.db, lease.Key(), lease.Token(), lease.Owner()); err != nil {
		return err
	}
	var charged bool
	if err := s.db.QueryRowContext(ctx, `SELECT charged FROM invoice WHERE id = $1`, id).Scan(&charged); err != nil || charged {
		return err
	}
	if err := s.orderCharge(ctx, id); err != nil {
		return err
	}
	return s.tokens.Do(ctx, s.db, lease.Key(), lease.Token(), lease.Owner(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE invoice SET charged = true WHERE id = $1`, id)
		return err
	})
}

// orderCharge makes the provider charge an invoice. The provider knows no tokens: a process that ends here
// leaves the charge to the next holder, which orders it again. The provider does not repeat an order with the
// same key.
func (s *service) orderCharge(ctx context.Context, id string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider+"/charges", strings.NewReader(id))
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", "invoice/"+id)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("charge invoice %s: %s", id, resp.Status)
	}
	return nil
}

// statusOf returns the HTTP status for err. ErrLost comes first, because an error that matches it may match others too.
func statusOf(err error) int {
	switch {
	case errors.Is(err, holdfast.ErrLost), errors.Is(err, fence.ErrStale), errors.Is(err, holdfast.ErrClosed), errors.Is(err, holdfast.ErrUnavailable):
		return http.StatusServiceUnavailable // the client may repeat the request
	case errors.Is(err, holdfast.ErrHeld):
		return http.StatusConflict
	case errors.Is(err, sql.ErrNoRows):
		return http.StatusNotFound
	}
	return http.StatusInternalServerError
}
