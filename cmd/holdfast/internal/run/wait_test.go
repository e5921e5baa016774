//go:build unix

package run

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// A hanging server must not prolong the wait.
func TestWaitIncludesOpeningBackend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const wait = 3 * time.Second
		var left time.Duration
		open := func(after time.Duration) error {
			s := &session{
				plan: &Plan{Names: []string{"job"}, Wait: wait},
				runner: &Runner{
					Open: func(ctx context.Context, _ func(holdfast.RenewedEvent)) (*holdfast.Client, error) {
						select {
						case <-time.After(after):
							return holdfast.New(memory.New(1), nil)
						case <-ctx.Done():
							return nil, ctx.Err()
						}
					},
					Waits: func(*holdfast.Client) func() { return func() {} },
					Take: func(_ context.Context, _ *holdfast.Client, p *Plan) (Held, error) {
						left = p.Wait
						return nil, nil
					},
				},
				log: slog.New(slog.DiscardHandler),
			}
			err := s.takeLeases(t.Context())
			if s.client != nil {
				s.client.Close()
			}
			return err
		}
		if err := open(2 * time.Second); err != nil || left != time.Second {
			t.Errorf("after 2s: %v left, %v; want 1s", left, err)
		}
		began := time.Now()
		if err := open(time.Hour); !errors.Is(err, holdfast.ErrUnavailable) || time.Since(began) != wait {
			t.Errorf("a backend that hangs: %v after %v, want ErrUnavailable after %v", err, time.Since(began), wait)
		}
	})
}
