package postgres

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A statement of a lease with a long TTL may wait on a dead connection for longer than another lease lasts. A
// caller whose context has ended interrupts no statement.
func TestUrgentRenewalInterruptsReserveConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReserve()
		if err := r.awaitTurn(t.Context()); err != nil {
			t.Fatal(err)
		}
		first, end := r.interruptibleContext(t.Context())
		defer end()
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := r.awaitTurn(gone); !errors.Is(err, context.Canceled) || first.Err() != nil {
			t.Errorf("cancelled caller: awaitTurn() = %v, and the running statement's context ended with %v", err, first.Err())
		}
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.awaitTurn(hurried); !errors.Is(err, context.DeadlineExceeded) || first.Err() == nil {
			t.Errorf("expired wait: awaitTurn() = %v, and the running statement's context ended with %v", err, first.Err())
		}
		r.passTurn()
		if err := r.awaitTurn(t.Context()); err != nil {
			t.Errorf("awaitTurn() = %v after the turn was freed", err)
		}
	})
}
