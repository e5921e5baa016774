package redisfence_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/storetest"
)

// newPlainStore returns a store that opens a new connection for each request.
func newPlainStore(server *redisproc.Server) *redisfence.Store {
	return redisfence.New(func(_ context.Context, script string, keys, args []string) (any, error) {
		reply, err := server.Do(slices.Concat([]string{"EVAL", script, strconv.Itoa(len(keys))}, keys, args)...)
		if answer, ok := errors.AsType[resp.Error](err); ok {
			return nil, answer
		}
		return reply, err
	})
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(_ *testing.T, server *redisproc.Server) *redisfence.Store { return newPlainStore(server) })
}
