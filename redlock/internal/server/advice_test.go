package server_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

func TestAnAnswerThatIsLateIsSaidOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	if err := server.Late(ctx); err.Error() != "no answer before the timeout" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Late() = %v", err)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := server.Late(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Late() = %v: there was no timeout", err)
	}
}
