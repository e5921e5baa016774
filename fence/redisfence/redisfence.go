// Package redisfence keeps values in a Redis or Valkey that refuses writers who
// have lost their lease: the check of the fencing token and the write are one Lua
// script.
//
// The package itself speaks to no server: New takes a function that runs a script by
// the client that the program has. docs/your-redis.md shows it for go-redis and for
// rueidis.
//
// # What is not promised
//
// The highest token is kept with the data and is as durable as they are: a
// server that fails over to a replica which has not seen the last writes
// forgets both. A Store does not hold back a program that writes around it. A
// script that fails half way keeps what it has written so far, as every Redis
// script does.
//
// # The rule
//
// That of package fence: a token is refused when a higher one was seen for the
// guard, or an equal one of another lease. A guard is any name, usually the key of
// the lock; it may stand for many keys. A read that feeds a write claims the token
// first (Get and Claim), so that no older holder can write behind it. Every method
// may be repeated under the same lease, after a lost reply for example.
//
// A guard is kept in the hash "holdfast:guard:{GUARD}" with the fields token and
// owner, in the hash slot of the key that is called like the guard. It stays
// until Forget.
//
// (M. Kleppmann, "How to do distributed locking", 2016.)
package redisfence

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

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

// guardScript makes a script that checks the token and then runs body.
func guardScript(body string) string {
	return "local function write(KEYS, ARGV)\n" + body + "\nend\n" + guardLua
}

var (
	claim = guardScript(`return 1`)
	get   = guardScript(`return redis.call('GET', KEYS[1])`)
	set   = guardScript(`return redis.call('SET', KEYS[1], ARGV[1])`)
)

const (
	highest = `return redis.call('HMGET', KEYS[1], 'token', 'owner')`
	forget  = `return redis.call('DEL', KEYS[1])`
)

// Store writes to one Redis under fencing tokens. It is safe for concurrent use.
type Store struct {
	run func(ctx context.Context, script string, keys, args []string) (any, error)
}

// New returns a Store on the Redis or Valkey that keeps the data. It does not block.
//
// run runs script on the server that has keys, as EVAL does, or first as EVALSHA, as
// most clients can. It blocks for one answer, and must be safe for concurrent use. The
// answer is nil, an int64, a string or an []any of these; an error that the server
// answers keeps the server's text. run may send a script again whose answer did not
// come.
func New(run func(ctx context.Context, script string, keys, args []string) (any, error)) *Store {
	return &Store{run}
}

// Set writes value to key if token and owner of the lease are not stale for the guard
// called key. It blocks for one answer of the
// server. A stale token is a *fence.StaleError, and nothing is written; after any
// other error the write may have happened, and may be repeated.
func (s *Store) Set(ctx context.Context, key string, token holdfast.Token, owner, value string) error {
	_, err := s.runGuarded(ctx, set, key, token, owner, []string{key}, value)
	return err
}

// Get claims the guard called key and reads key, in one step. For an absent key,
// found is false. It returns the same errors as Claim.
func (s *Store) Get(ctx context.Context, key string, token holdfast.Token, owner string) (value string, found bool, err error) {
	reply, err := s.runGuarded(ctx, get, key, token, owner, []string{key})
	value, found = reply.(string)
	return value, found, err
}

// Claim records a token without a write: after it, no older holder can write
// under guard. A holder claims before reads that feed a later write. A stale token
// is a *fence.StaleError; after any other error the claim may have been recorded.
func (s *Store) Claim(ctx context.Context, guard string, token holdfast.Token, owner string) error {
	_, err := s.runGuarded(ctx, claim, guard, token, owner, nil)
	return err
}

// Eval runs script, which is Lua, if token and owner are not stale for guard, in the same
// atomic step. The script finds keys and args in KEYS and ARGV. Eval returns what it
// returns: nil, an int64, a string or an []any of these. In a Redis Cluster, keys must
// share the hash slot of guard. A server keeps each script that it has run, so what
// varies belongs into args. Eval returns the same errors as Set; an error of the script
// leaves the token recorded.
func (s *Store) Eval(ctx context.Context, script, guard string, token holdfast.Token, owner string, keys []string, args ...string) (any, error) {
	return s.runGuarded(ctx, guardScript(script), guard, token, owner, keys, args...)
}

// runGuarded runs a script of guardScript.
func (s *Store) runGuarded(ctx context.Context, script, guard string, token holdfast.Token, owner string, keys []string, args ...string) (any, error) {
	if token <= 0 {
		return nil, &fence.StaleError{Key: guard, Token: token}
	}
	keys = append([]string{serverKey(guard)}, keys...)
	args = append([]string{strconv.FormatInt(int64(token), 10), owner}, args...)
	reply, err := s.run(ctx, script, keys, args)
	if err == nil {
		return reply, nil
	}
	if number, ok := strings.CutPrefix(err.Error(), refused); ok {
		if highest, err := strconv.ParseInt(number, 10, 64); err == nil {
			return nil, &fence.StaleError{Key: guard, Token: token, Highest: holdfast.Token(highest)}
		}
	}
	return nil, guardError(guard, err)
}

// Highest is the highest token seen for guard and the owner of its lease, or 0 and
// "". It records nothing.
func (s *Store) Highest(ctx context.Context, guard string) (token holdfast.Token, owner string, err error) {
	reply, err := s.run(ctx, highest, []string{serverKey(guard)}, nil)
	if err != nil {
		return 0, "", guardError(guard, err)
	}
	fields, _ := reply.([]any)
	if len(fields) != 2 {
		return 0, "", guardError(guard, fmt.Errorf("unexpected reply %v", reply))
	}
	text, found := fields[0].(string)
	if !found {
		return 0, "", nil
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, "", guardError(guard, errors.New("its token is not a number, as if another program had set it"))
	}
	owner, _ = fields[1].(string)
	return holdfast.Token(number), owner, nil
}

// Forget drops what is known about guard. No program may write under guard any
// more: a stale holder would not be refused.
func (s *Store) Forget(ctx context.Context, guard string) error {
	if _, err := s.run(ctx, forget, []string{serverKey(guard)}, nil); err != nil {
		return guardError(guard, err)
	}
	return nil
}

// serverKey returns the server's key for guard.
func serverKey(guard string) string { return prefix + wire.Tagged(guard) }

func guardError(guard string, err error) error {
	return fmt.Errorf("redisfence: guard %q: %w", guard, err)
}
