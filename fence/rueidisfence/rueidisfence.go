// Package rueidisfence lets package redisfence work through a rueidis client.
package rueidisfence

import (
	"context"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/fence/redisfence"
)

// New returns a Store on client, which stays the caller's to close. It does not
// block.
func New(client rueidis.Client) *redisfence.Store { return redisfence.New(server{client}) }

type server struct{ client rueidis.Client }

// Eval implements redisfence.Server.
func (s server) Eval(ctx context.Context, script *redisfence.Script, keys, args []string) (any, error) {
	count := int64(len(keys))
	bySHA := s.client.B().Evalsha().Sha1(script.SHA1).Numkeys(count).Key(keys...).Arg(args...).Build()
	reply, err := s.client.Do(ctx, bySHA).ToAny()
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		byText := s.client.B().Eval().Script(script.Text).Numkeys(count).Key(keys...).Arg(args...).Build()
		reply, err = s.client.Do(ctx, byText).ToAny()
	}
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	return reply, err
}
