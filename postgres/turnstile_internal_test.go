package postgres

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
)

// A waiter that passes the turnstile also passes a ticket that records a block. So a waiter must not record a
// block before its statement has arrived there, or after it has left.
func TestTicketRecordsBlockOnlyAtTurnstile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, listens := &visit{begun: time.Now()}, new("ch")
		check := func(when, want string) {
			t.Helper()
			if got := *v.ticketChannel(listens); got != want {
				t.Errorf("%s: channel %q, want %q", when, got, want)
			}
		}
		time.Sleep(ticketTime)
		check("while its connection is being opened", "ch")
		v.conn, v.sent = new(pgx.Conn), time.Now()
		check("when its statement was sent", "ch")
		time.Sleep(ticketTime)
		check("while it blocks", "-ch")
		time.Sleep(visitTime)
		check("when the server has ended the block", "ch")
		v.conn, v.heard = nil, true
		check("once it is through", "+ch")
	})
}
