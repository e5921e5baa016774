package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

func TestLateErrorNamesTimeoutOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	for want, err := range map[string]error{
		"no answer before the timeout":          io.EOF,
		"no answer to HELLO before the timeout": fmt.Errorf("read: %w", &resp.UnansweredError{Command: "HELLO", Err: io.EOF}),
	} {
		if err := server.LateError(ctx, err); err.Error() != want || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Late() = %v, want %s", err, want)
		}
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := server.LateError(ctx, io.EOF); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Late() = %v without a timeout", err)
	}
}

func TestUnknownCommandIsRecognized(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"ERR unknown command 'HELLO', with args beginning with: '3'":                     true,
		"ERR Unknown Redis command called from script":                                   true,
		"unsupported command 'hello'":                                                    true,
		"Error command HELLO not supported":                                              true,
		"ERR command not support":                                                        true,
		"OOM command not allowed when used memory > 'maxmemory'.":                        false,
		"NOPERM this user has no permissions to run the 'get' command or its subcommand": false,
		"ERR unknown option":                                                             false,
	} {
		if got := server.IsUnknownCommand(text); got != want {
			t.Errorf("Unknown(%q) = %v", text, got)
		}
	}
}

func TestForksOfRedisKeepMessagesInOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		server, field string
		want          bool
	}{
		{"redis", "gcc_version", true},
		{"valkey", "gcc_version", true},
		{"redict", "gcc_version", true},
		{"redis", "dragonfly_version", false},
		{"redis", "mvcc_depth", false},
		{"garnet", "gcc_version", false},
	} {
		info := map[string]string{c.field: "1"}
		if c.field != "gcc_version" {
			info["gcc_version"] = "1"
		}
		if got := server.KeepsMessageOrder(map[string]string{"server": c.server}, info); got != c.want {
			t.Errorf("%s with %s: %v", c.server, c.field, got)
		}
	}
}

// A server must not fill the map of a client with any number of fields.
func TestInfoSizeIsBounded(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("run_id:first\r\n")
	for i := range 100_000 {
		fmt.Fprintf(&text, "%d:\n", i)
	}
	info := server.ParseInfo(text.String())
	if len(info) > 20_000 || info["run_id"] != "first" {
		t.Errorf("%d fields, and run_id %q", len(info), info["run_id"])
	}
}
