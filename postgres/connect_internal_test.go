package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// The lines are as pgx writes them.
func TestConnectErrorNamesCauseOnce(t *testing.T) {
	t.Parallel()
	cc, err := pgconn.ParseConfig("postgres://127.0.0.1:1/d?user=u&sslmode=prefer")
	if err != nil {
		t.Fatal(err)
	}
	_, err = pgconn.ConnectConfig(t.Context(), cc) // nothing listens there
	refused, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		t.Fatalf("ConnectConfig() = %v, want a ConnectError", err)
	}
	if got := (connectError{err, refused}).Error(); got != "failed to connect to `user=u database=d`: connect: connection refused" {
		t.Errorf("one address twice: %s", got)
	}
	for text, want := range map[string]string{
		"h:1 (h): tls error: server refused TLS connection\nh:1 (h): server error: FATAL: no": "server error: FATAL: no",
		"h:1 (h): tls error: server refused TLS connection":                                   "tls error: server refused TLS connection",
		"h:1 (h): dial error: dial tcp h:1: a\ni:2 (i): dial error: dial tcp i:2: b":          "h:1: a, i:2: b",
		"hostname resolving error: lookup h: no such host":                                    "hostname resolving error: lookup h: no such host",
	} {
		if got := attemptTexts(text); strings.Join(got, ", ") != want {
			t.Errorf("%q is masked as %q, want %s", text, got, want)
		}
	}
}
