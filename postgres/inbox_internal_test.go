package postgres

import (
	"strings"
	"testing"
)

// Any user of the database can send any number of notifications.
func TestInboxDropsFloodOfNotifications(t *testing.T) {
	t.Parallel()
	var in inbox
	in.add("first")
	long := strings.Repeat("y", 8000)
	for range 1_000_000 {
		in.add("x")
		in.add(long)
	}
	kept := 0
	for _, p := range in.payloads {
		kept += len(p)
	}
	if kept > inboxRoom || len(in.payloads)*rowBytes > inboxRoom {
		t.Errorf("%d payloads of %d bytes are kept", len(in.payloads), kept)
	}
	if p, err := in.awaitPayload(t.Context(), nil); p != "first" || err != nil {
		t.Errorf("wait() = %q, %v; want the oldest", p, err)
	}
	for len(in.payloads) > 0 {
		if _, err := in.awaitPayload(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if in.bytes != 0 {
		t.Errorf("an empty inbox counts %d bytes", in.bytes)
	}
}

// pgx keeps notifications until the program reads them, and no goroutine reads them on a connection of the
// pool.
func TestPoolDropsNotifications(t *testing.T) {
	t.Parallel()
	d, err := Open(t.Context(), "postgres://u@127.0.0.1:1/db?sslmode=disable", &Options{NoCheck: true, NoListen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.pool.Config().ConnConfig.OnNotification == nil {
		t.Error("pgx kept every notification")
	}
}
