// Package goredisfence lets package redisfence work through a go-redis client.
package goredisfence

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/fence/redisfence"
)

// New returns a Store on client, which stays the caller's to close: a
// *redis.Client, a *redis.ClusterClient or a *redis.Ring. It does not block.
//
// A go-redis client repeats a request whose answer did not come, as often as its
// MaxRetries says. That is harmless here: every write may be repeated.
func New(client redis.Scripter) *redisfence.Store { return redisfence.New(server{client}) }

type server struct{ client redis.Scripter }

// Eval implements redisfence.Server.
func (s server) Eval(ctx context.Context, script *redisfence.Script, keys, args []string) (any, error) {
	all := make([]any, len(args))
	for i, arg := range args {
		all[i] = arg
	}
	reply, err := s.client.EvalSha(ctx, script.SHA1, keys, all...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = s.client.Eval(ctx, script.Text, keys, all...).Result()
	}
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return reply, err
}
