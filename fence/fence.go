// Package fence checks fencing tokens on the side of the storage. It rejects the write of a holder that has
// lost its lease, even if the holder does not know it.
//
// # What is not promised
//
// A Guard knows only the writes that pass through it. It does not stop a writer that bypasses it. Its memory
// ends with the process: a storage that outlives the process keeps the highest token with its data, and passes
// it to Claim when the process starts again. If several processes write to one storage, the check belongs into
// that storage (package sqlfence has the statement), not into a Guard in each process.
//
// Tokens can be compared only with tokens of the same lock service. After a move to another service, or a
// restore of an old snapshot, tokens may begin far below the highest token of a storage. The storage then
// rejects every holder, and the error says so. Once no holder of the old service is left, Forget the key.
//
// # The rule
//
// A write carries the fencing token of its lease. It is rejected if a higher token was seen for the key, or an
// equal token of another lease. The check, the record of the token and the write are one atomic step: in a gap
// between them a newer holder could write. A read that feeds a write claims the token first, so that no older
// holder can write after the read. (M. Kleppmann, "How to do distributed locking", 2016.)
//
// # Memory
//
// A Guard keeps one entry for each key until Forget: about 200 bytes, plus the key and the owner. It deletes
// no entry by itself, because without the entry an old holder would not be rejected.
package fence

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

// ErrStale is returned when another holder has written or claimed with a later token. The error is a
// *StaleError.
var ErrStale = errors.New("stale fencing token")

// ErrAhead is returned for a token that is further ahead of the clock than Guard.MaxAhead allows.
var ErrAhead = errors.New("fencing token ahead of the clock")

// StaleError is the error of a rejected token, with the reason. It matches ErrStale.
type StaleError struct {
	Key     string
	Token   holdfast.Token // the rejected token
	Highest holdfast.Token // the highest token seen; equal to Token if another lease has it; 0 if not known
}

// Error names the key and both tokens.
func (e *StaleError) Error() string {
	switch {
	case e.Token <= 0:
		return fmt.Sprintf("stale fencing token: %q needs a token above 0, not %d; a driver without tokens gives 0 (see AcquireOptions.Fenced)", e.Key, e.Token)
	case e.Highest == 0:
		return fmt.Sprintf("stale fencing token: no row for %q was changed: it does not exist, or has seen a token above %d, or an equal one of another lease",
			e.Key, e.Token)
	case e.Token == e.Highest:
		return fmt.Sprintf("stale fencing token: token %d of %q belongs to another lease", e.Token, e.Key)
	}
	text := fmt.Sprintf("stale fencing token: %q has seen token %d, and %d is older", e.Key, e.Highest, e.Token)
	if e.Highest >= farToken && e.Token <= e.Highest/1000 {
		text += "; tokens so far apart are of two lock services, or of one that was restored: when no holder of the first is left, call Forget for it"
	}
	return text
}

// farToken is the token from which the error blames another service for a token a thousand times lower: a late
// holder of the same service is never that far behind.
const farToken = 1e9

// Is matches ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// Guard checks the tokens of writes to storage in this process. The zero value
// is ready. It is safe for concurrent use, and must not be copied.
type Guard struct {
	// MaxAhead bounds how far a token may be ahead of this process's clock, for storages whose callers may lie:
	// one token from the far future would have all real holders rejected until Forget. Tokens start at a clock of
	// the service or its clients, in microseconds since 1970, or lower, and rise more slowly than that clock. An
	// hour is enough unless a clock was further ahead: then real holders are rejected until this one has caught
	// up. 0: tokens are not compared with the clock. Set it before the first use.
	MaxAhead time.Duration

	mu   sync.Mutex // guards keys and entry.users; locked before entry.mu, never while entry.mu is held
	keys map[string]*entry
}

// entry holds the highest token of one key.
type entry struct {
	users int // number of calls in progress; Forget keeps the entry while it is above 0

	mu      sync.Mutex // guards the fields below; held during a write
	highest holdfast.Token
	owner   string
}

// Do runs write if token and owner are not stale for key, and returns its error. It blocks while another write
// to the same key runs; other keys are not affected. The token is recorded before write runs and stays
// recorded if write fails or panics, so that no earlier holder may write after that.
//
// For a stale token Do returns a *StaleError, for one beyond MaxAhead ErrAhead, and without an owner an error
// that matches holdfast.ErrInvalid; it does not call write then.
// write must not call the Guard for the same key.
func (g *Guard) Do(key string, token holdfast.Token, owner string, write func() error) error {
	e := g.useEntry(key)
	defer g.leaveEntry(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := g.checkArguments(key, token, owner); err != nil {
		return err
	}
	if err := e.admitToken(key, token, owner); err != nil {
		return err
	}
	return write()
}

// Claim records a token without a write. A holder claims before a read that feeds a later write: from then on
// no older holder can change what was read. After a restart, the first Claim gives the Guard the highest token
// that the storage has kept. For a stale token it returns a *StaleError.
func (g *Guard) Claim(key string, token holdfast.Token, owner string) error {
	return g.Do(key, token, owner, func() error { return nil })
}

// Check returns the error that Do would return for a token now, and records nothing. It saves work that would
// fail. A write still needs Do, because a newer holder may write in between. For a stale token it returns a
// *StaleError.
func (g *Guard) Check(key string, token holdfast.Token, owner string) error {
	e := g.useEntry(key)
	defer g.leaveEntry(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := g.checkArguments(key, token, owner); err != nil {
		return err
	}
	return e.checkToken(key, token, owner)
}

// Highest returns the highest token seen for key and the owner of its lease, or 0 and "".
func (g *Guard) Highest(key string) (token holdfast.Token, owner string) {
	e := g.useEntry(key)
	defer g.leaveEntry(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.highest, e.owner
}

// Forget deletes the entry of key. No program may lock or write key any more, because a stale holder would not
// be rejected. Forget returns false and keeps the entry if a call for the key is in progress.
func (g *Guard) Forget(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.keys[key]; e != nil && e.users > 0 {
		return false
	}
	delete(g.keys, key)
	return true
}

func (g *Guard) useEntry(key string) *entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.keys == nil {
		g.keys = make(map[string]*entry)
	}
	e := g.keys[key]
	if e == nil {
		e = new(entry)
		g.keys[key] = e
	}
	e.users++
	return e
}

func (g *Guard) leaveEntry(e *entry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e.users--
}

// checkArguments returns the error for a call without an owner, or with a token too far ahead of the clock.
func (g *Guard) checkArguments(key string, token holdfast.Token, owner string) error {
	if owner == "" {
		return fmt.Errorf("fence: %q: %w: the owner is empty; give Lease.Owner, which tells leases with equal tokens apart", key, holdfast.ErrInvalid)
	}
	if g.MaxAhead <= 0 || int64(token) <= time.Now().Add(g.MaxAhead).UnixMicro() {
		return nil
	}
	return fmt.Errorf("%w: token %d of %q is more than %v ahead, so no lease has it, or a clock is wrong", ErrAhead, token, key, g.MaxAhead)
}

// checkToken returns the error for a token. The caller holds mu.
func (e *entry) checkToken(key string, token holdfast.Token, owner string) error {
	if token > 0 && (token > e.highest || token == e.highest && owner == e.owner) {
		return nil
	}
	return &StaleError{Key: key, Token: token, Highest: e.highest}
}

// admitToken checks a token and records it. The caller holds mu.
func (e *entry) admitToken(key string, token holdfast.Token, owner string) error {
	if err := e.checkToken(key, token, owner); err != nil {
		return err
	}
	e.highest, e.owner = token, owner
	return nil
}
