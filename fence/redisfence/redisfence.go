// Package redisfence keeps values in a Redis or Valkey that refuses writers who
// have lost their lease: the check of the fencing token and the write are one Lua
// script.
//
// # What is not promised
//
// The highest token is kept beside the data, and is worth what the data are: a
// server that fails over to a replica which has not seen the last writes forgets
// both. Whoever writes around a Store is not held back. A script that fails half
// way keeps what it has written so far, as every Redis script does.
//
// # The rule
//
// That of package fence: a token is refused when a higher one was seen for the
// guard, or an equal one of another lease. A guard is any name, usually the key of
// the lock; it may stand for many keys. A read that feeds a write claims the token
// first (Get and Claim), so that no older holder can write behind it. Every method
// may be repeated under the same lease, after a lost reply for example.
//
// What is known of a guard is the hash "holdfast:guard:{GUARD}" with the fields
// token and id, in the hash slot of the key that is called like the guard. It
// stays until Forget.
//
// (M. Kleppmann, "How to do distributed locking", 2016.)
package redisfence

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/wire"
)

const (
	prefix = wire.Companion + "guard:"
	// refused begins the error reply to a stale token; the highest one follows.
	refused = "STALE "
)

//go:embed guard.lua
var guardLua string

// Script is Lua code that runs once the token has been accepted, in the same
// atomic step. It is safe for concurrent use.
type Script struct{ lua *rueidis.Lua }

// NewScript returns a script with the given body, which finds its keys and
// arguments in KEYS and ARGV as always and may return a value.
func NewScript(body string) *Script {
	return &Script{rueidis.NewLuaScript("local function write(KEYS, ARGV)\n" + body + "\nend\n" + guardLua)}
}

var (
	claim = NewScript(`return 1`)
	get   = NewScript(`return redis.call('GET', KEYS[1])`)
	set   = NewScript(`return redis.call('SET', KEYS[1], ARGV[1])`)
)

// Store writes to one Redis under fencing tokens. It is safe for concurrent use.
type Store struct{ client rueidis.Client }

// New returns a Store on client, which stays the caller's to close.
func New(client rueidis.Client) *Store { return &Store{client} }

// Set writes value to key if token and id, those of the lease under which it is
// written, are not stale for the guard called key. It blocks for one answer of the
// server. A stale token is a *fence.StaleError, and nothing is written; after any
// other error the write may have happened, and may be repeated.
func (s *Store) Set(ctx context.Context, key string, token holdfast.Token, id, value string) error {
	_, err := s.Eval(ctx, set, key, token, id, []string{key}, value)
	return err
}

// Get claims the guard called key and reads key, in one step. An absent key is
// found == false. Errors are those of Claim.
func (s *Store) Get(ctx context.Context, key string, token holdfast.Token, id string) (value string, found bool, err error) {
	reply, err := s.Eval(ctx, get, key, token, id, []string{key})
	if err != nil {
		return "", false, err
	}
	value, err = reply.ToString()
	if rueidis.IsRedisNil(err) {
		return "", false, nil
	}
	return value, err == nil, err
}

// Claim records a token without a write: after it, no older holder can write
// under guard. A holder claims before reads that feed a later write. A stale token
// is a *fence.StaleError; after any other error the claim may have been recorded.
func (s *Store) Claim(ctx context.Context, guard string, token holdfast.Token, id string) error {
	_, err := s.Eval(ctx, claim, guard, token, id, nil)
	return err
}

// Eval runs script if token and id are not stale for guard, and returns what it
// returns; a Lua nil or false is a nil message (rueidis.RedisMessage.IsNil). In a
// Redis Cluster, keys must share the hash slot of guard. Errors are those of Set;
// an error of the script leaves the token recorded.
func (s *Store) Eval(ctx context.Context, script *Script, guard string, token holdfast.Token, id string, keys []string, args ...string) (rueidis.RedisMessage, error) {
	if token <= 0 {
		return rueidis.RedisMessage{}, &fence.StaleError{Key: guard, Token: token}
	}
	keys = append([]string{prefix + wire.Tagged(guard)}, keys...)
	args = append([]string{strconv.FormatInt(int64(token), 10), id}, args...)
	reply, err := script.lua.Exec(ctx, s.client, keys, args).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		return reply, s.failure(guard, token, err)
	}
	return reply, nil
}

// failure tells a stale token from everything else.
func (s *Store) failure(guard string, token holdfast.Token, err error) error {
	if re, ok := rueidis.IsRedisErr(err); ok {
		if number, ok := strings.CutPrefix(re.Error(), refused); ok {
			highest, err := strconv.ParseInt(number, 10, 64)
			if err == nil {
				return &fence.StaleError{Key: guard, Token: token, Highest: holdfast.Token(highest)}
			}
		}
	}
	return fmt.Errorf("redisfence: guard %q: %w", guard, err)
}

// Highest is the highest token seen for guard and the ID of its lease, or 0 and
// "". It records nothing.
func (s *Store) Highest(ctx context.Context, guard string) (token holdfast.Token, id string, err error) {
	cmd := s.client.B().Hmget().Key(prefix+wire.Tagged(guard)).Field("token", "id").Build()
	fields, err := s.client.Do(ctx, cmd).ToArray()
	if err != nil {
		return 0, "", fmt.Errorf("redisfence: guard %q: %w", guard, err)
	}
	if len(fields) != 2 || fields[0].IsNil() {
		return 0, "", nil
	}
	number, err := fields[0].AsInt64()
	if err != nil {
		return 0, "", fmt.Errorf("redisfence: guard %q: %w", guard, err)
	}
	id, err = fields[1].ToString()
	return holdfast.Token(number), id, err
}

// Forget drops what is known about guard, under which nothing must be written any
// more: a stale holder would not be refused.
func (s *Store) Forget(ctx context.Context, guard string) error {
	err := s.client.Do(ctx, s.client.B().Del().Key(prefix+wire.Tagged(guard)).Build()).Error()
	if err != nil {
		return fmt.Errorf("redisfence: guard %q: %w", guard, err)
	}
	return nil
}
