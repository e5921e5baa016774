// Package redisfence protects values in a Redis or Valkey from writers who have lost their lease: the check of
// the fencing token and the write are one Lua script.
//
// The package opens no connection: New takes a function that runs a script with the program's own client.
// docs/your-redis.md shows that function for go-redis and for rueidis.
//
// # What is not promised
//
// The highest token is stored with the data and is as durable as the data: a server that fails over to a
// replica without the last writes forgets both. A Store does not stop a program that bypasses it. A script
// that fails half way keeps its writes so far, as every Redis script does.
//
// # The rule
//
// As in package fence, a token is rejected if a higher token was seen for the guard, or an equal token of
// another lease. A guard is any name, usually the key of the lock; it may stand for many keys. A read that
// feeds a write claims the token first (Get and Claim), so that no older holder can write after the read.
// Every method may be repeated under the same lease, for example after a lost reply.
//
// The server keeps a guard in the hash "holdfast:guard:{GUARD}" with the fields token and owner, in the hash
// slot of the key with the same name. It stays until Forget.
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
	guardPrefix = wire.Companion + "guard:"
	// staleReply begins the error reply to a stale token, before the highest token.
	staleReply = "STALE "
)

//go:embed guard.lua
var guardLua string

// guardScript returns a script that checks the token and then runs body.
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
// run runs script on the server that has keys, by EVAL, or first by EVALSHA, as most clients can. It blocks
// for one answer, and must be safe for concurrent use. It returns nil, an int64, a string or an []any of
// these. An error of the server must keep the server's text. run may send a script again if the answer did not
// come.
func New(run func(ctx context.Context, script string, keys, args []string) (any, error)) *Store {
	return &Store{run}
}

// Set writes value to key if token and owner are not stale for the guard key. It blocks for one answer of the
// server. For a stale token it returns a *fence.StaleError and writes nothing. After any other error the write
// may have happened, and may be repeated.
func (s *Store) Set(ctx context.Context, key string, token holdfast.Token, owner, value string) error {
	_, err := s.runGuarded(ctx, set, key, token, owner, []string{key}, value)
	return err
}

// Get claims the guard key and reads key, in one step. For an absent key, found is false. It returns the same
// errors as Claim.
func (s *Store) Get(ctx context.Context, key string, token holdfast.Token, owner string) (value string, found bool, err error) {
	reply, err := s.runGuarded(ctx, get, key, token, owner, []string{key})
	value, found = reply.(string)
	return value, found, err
}

// Claim records a token without a write: from then on no older holder can write under guard. A holder claims
// before reads that feed a later write. For a stale token it returns a *fence.StaleError. After any other
// error the claim may have been recorded.
func (s *Store) Claim(ctx context.Context, guard string, token holdfast.Token, owner string) error {
	_, err := s.runGuarded(ctx, claim, guard, token, owner, nil)
	return err
}

// Eval runs the Lua script if token and owner are not stale for guard, in the same atomic step. The script
// gets keys and args as KEYS and ARGV. Eval returns the result of the script: nil, an int64, a string or an
// []any of these. In a Redis Cluster, keys must share the hash slot of guard. A server caches each script that
// it has run, so pass variable values in args. Eval returns the same errors as Set; if the script fails, the
// token stays recorded.
func (s *Store) Eval(ctx context.Context, script, guard string, token holdfast.Token, owner string, keys []string, args ...string) (any, error) {
	return s.runGuarded(ctx, guardScript(script), guard, token, owner, keys, args...)
}

// runGuarded runs a script of guardScript.
func (s *Store) runGuarded(ctx context.Context, script, guard string, token holdfast.Token, owner string, keys []string, args ...string) (any, error) {
	if token <= 0 {
		return nil, &fence.StaleError{Key: guard, Token: token}
	}
	switch {
	case guard == "":
		return nil, guardError(guard, fmt.Errorf("%w: the guard is empty; give a name, such as the key of the lock", holdfast.ErrInvalid))
	case owner == "":
		return nil, guardError(guard, fmt.Errorf("%w: the owner is empty; give Lease.Owner, which tells leases with equal tokens apart", holdfast.ErrInvalid))
	}
	keys = append([]string{serverKey(guard)}, keys...)
	args = append([]string{strconv.FormatInt(int64(token), 10), owner}, args...)
	reply, err := s.run(ctx, script, keys, args)
	if err == nil {
		return reply, nil
	}
	if number, ok := strings.CutPrefix(err.Error(), staleReply); ok {
		if highest, err := strconv.ParseInt(number, 10, 64); err == nil {
			return nil, &fence.StaleError{Key: guard, Token: token, Highest: holdfast.Token(highest)}
		}
	}
	return nil, guardError(guard, err)
}

// Highest returns the highest token seen for guard and the owner of its lease, or 0 and "". It records
// nothing.
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

// Forget deletes the entry of guard. No program may write under guard any more, because a stale holder would
// not be rejected.
func (s *Store) Forget(ctx context.Context, guard string) error {
	if _, err := s.run(ctx, forget, []string{serverKey(guard)}, nil); err != nil {
		return guardError(guard, err)
	}
	return nil
}

// serverKey returns the server's key for guard.
func serverKey(guard string) string { return guardPrefix + wire.Tagged(guard) }

func guardError(guard string, err error) error {
	return fmt.Errorf("redisfence: guard %q: %w", guard, err)
}
