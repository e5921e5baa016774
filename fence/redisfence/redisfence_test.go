package redisfence_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/fence/internal/storetest"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// plain is the smallest redisfence.Server: each call over a connection of its own.
type plain struct{ server *redisproc.Server }

// Eval implements redisfence.Server.
func (p plain) Eval(_ context.Context, script *redisfence.Script, keys, args []string) (any, error) {
	call := append([]string{"EVAL", script.Text, strconv.Itoa(len(keys))}, append(keys, args...)...)
	reply, err := p.server.Do(call...)
	if answer, ok := errors.AsType[resp.Error](err); ok {
		return nil, answer
	}
	return reply, err
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(_ *testing.T, server *redisproc.Server) *redisfence.Store { return redisfence.New(plain{server}) })
}
