package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

func TestAnAnswerThatIsLateIsSaidOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	for want, err := range map[string]error{
		"no answer before the timeout":          io.EOF,
		"no answer to HELLO before the timeout": fmt.Errorf("read: %w", &resp.UnansweredError{Command: "HELLO", Err: io.EOF}),
	} {
		if err := server.Late(ctx, err); err.Error() != want || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Late() = %v, want %s", err, want)
		}
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := server.Late(ctx, io.EOF); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Late() = %v: there was no timeout", err)
	}
}

func TestCommandThatIsNotKnownIsToldByEachServer(t *testing.T) {
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
		if got := server.Unknown(text); got != want {
			t.Errorf("Unknown(%q) = %v", text, got)
		}
	}
}
