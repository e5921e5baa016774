package fence_test

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
)

// ruleCases are the cases of the rule: the highest token of the guard, the next token, and whether the guard
// accepts it.
var ruleCases = []struct {
	name  string
	seen  holdfast.Token
	by    string
	token holdfast.Token
	owner string
	stale bool
}{
	{"FirstTokenOfAKeyPasses", 0, "", 7, "a", false},
	{"HigherTokenPasses", 7, "a", 8, "b", false},
	{"SameLeaseMayWriteAgain", 7, "a", 7, "a", false},
	{"EqualTokenOfAnotherLeaseIsRefused", 7, "a", 7, "b", true},
	{"LowerTokenIsRefused", 7, "a", 6, "b", true},
	{"LowerTokenOfTheSameIDIsRefused", 7, "a", 6, "a", true},
	{"NoTokenIsRefused", 0, "", 0, "a", true},
	{"NegativeTokenIsRefused", 0, "", -1, "a", true},
}

func TestRule(t *testing.T) {
	t.Parallel()
	for _, row := range ruleCases {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var g fence.Guard
			if row.seen != 0 {
				if err := g.Claim("k", row.seen, row.by); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.Check("k", row.token, row.owner); errors.Is(err, fence.ErrStale) != row.stale {
				t.Errorf("Check: %v, want stale %v", err, row.stale)
			}
			ran := false
			err := g.Do("k", row.token, row.owner, func() error { ran = true; return nil })
			if errors.Is(err, fence.ErrStale) != row.stale || ran == row.stale {
				t.Errorf("Do: %v, write ran %v, want stale %v", err, ran, row.stale)
			}
		})
	}
}

func TestStaleErrorNamesKeyAndTokens(t *testing.T) {
	t.Parallel()
	var g fence.Guard
	g.Claim("invoice/42", 8841, "a")
	err := g.Claim("invoice/42", 8809, "b")
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok || stale.Key != "invoice/42" || stale.Token != 8809 || stale.Highest != 8841 {
		t.Fatalf("error %#v", err)
	}
	for _, part := range []string{"invoice/42", "8809", "8841"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not contain %s", err, part)
		}
	}
}

func TestClaimRejectsOlderWriters(t *testing.T) {
	t.Parallel()
	var g fence.Guard
	g.Do("k", 5, "old", func() error { return nil })
	if err := g.Claim("k", 6, "new"); err != nil {
		t.Fatal(err)
	}
	if err := g.Do("k", 5, "old", func() error { return nil }); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a write with an older token than a read: %v, want ErrStale", err)
	}
}

func TestCheckDoesNotRecordToken(t *testing.T) {
	t.Parallel()
	var g fence.Guard
	g.Claim("k", 5, "a")
	g.Check("k", 9, "b")
	if token, owner := g.Highest("k"); token != 5 || owner != "a" {
		t.Errorf("highest token %d of %q after Check, want 5 of a", token, owner)
	}
}

func TestFailedWriteKeepsItsTokenRecorded(t *testing.T) {
	t.Parallel()
	var g fence.Guard
	failure := errors.New("disk full")
	if err := g.Do("k", 9, "new", func() error { return failure }); !errors.Is(err, failure) {
		t.Fatalf("Do: %v, want the write's error", err)
	}
	if err := g.Check("k", 8, "old"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("an older holder after a failed write: %v, want ErrStale", err)
	}
	func() {
		defer func() { recover() }()
		g.Do("k", 10, "newer", func() error { panic("no") })
	}()
	if err := g.Check("k", 9, "new"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("an older holder after a write that panicked: %v, want ErrStale", err)
	}
}

// Many leases write at once. If a write could run apart from its check, an older write would land after a
// newer one.
func TestCheckAndWriteAreOneStep(t *testing.T) {
	t.Parallel()
	var g fence.Guard
	var written []holdfast.Token // guarded by the Guard; otherwise -race fails
	var all sync.WaitGroup
	for token := range holdfast.Token(200) {
		all.Go(func() {
			g.Do("k", token+1, "lease", func() error {
				written = append(written, token+1)
				return nil
			})
		})
	}
	all.Wait()
	for i := 1; i < len(written); i++ {
		if written[i] < written[i-1] {
			t.Fatalf("token %d wrote after token %d", written[i], written[i-1])
		}
	}
}

func TestKeysDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	var g fence.Guard
	err := g.Do("a", 1, "x", func() error {
		return g.Do("b", 1, "x", func() error { return nil }) // a shared mutex would block here for ever
	})
	if err != nil {
		t.Error(err)
	}
}

func TestForgetSparesKeysInUse(t *testing.T) {
	t.Parallel()
	var g fence.Guard
	g.Do("k", 5, "a", func() error {
		if g.Forget("k") {
			t.Error("a key in use was forgotten")
		}
		return nil
	})
	if !g.Forget("k") {
		t.Error("an idle key was not forgotten")
	}
	if token, _ := g.Highest("k"); token != 0 {
		t.Errorf("highest token %d after Forget", token)
	}
}

// If two tokens are far apart, the error names the fix.
func TestErrorDistinguishesServicesFromLateHolder(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		seen, token holdfast.Token
		other       bool
	}{
		{1795433319149690, 4773888, true},
		{1795433319149690, 1, true},
		{1795433319149690, 1795433319149658, false},
		{1795433319149690, 1700000000000000, false},
		{4773888, 4773000, false},
		{4773888, 12, false},
	} {
		var g fence.Guard
		g.Claim("k", row.seen, "before")
		err := g.Claim("k", row.token, "now")
		if !errors.Is(err, fence.ErrStale) {
			t.Fatalf("%d after %d: %v, want ErrStale", row.token, row.seen, err)
		}
		if text := err.Error(); strings.Contains(text, "two lock services") != row.other || strings.Contains(text, "Forget") != row.other {
			t.Errorf("%d after %d: %v; want an error that names another service: %v", row.token, row.seen, err, row.other)
		}
	}
}

// A token from the far future would make the guard reject every real holder.
func TestTokenAheadOfClockIsNotRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := holdfast.Token(time.Now().UnixMicro())
		g := fence.Guard{MaxAhead: time.Hour}
		far := now + holdfast.Token(time.Hour/time.Microsecond) + 1
		if w := sendRequest(&g, http.MethodPut, leaseHeaders("ledger", strconv.FormatInt(int64(far), 10), "stranger")...); w.Code != http.StatusPreconditionFailed {
			t.Errorf("status %d, want 412", w.Code)
		}
		for _, err := range []error{g.Check("ledger", far, "stranger"), g.Claim("ledger", far, "stranger")} {
			if !errors.Is(err, fence.ErrAhead) {
				t.Errorf("error %v, want ErrAhead", err)
			}
		}
		for _, token := range []holdfast.Token{1, now, far - 1} {
			if err := g.Claim("ledger", token, "holder"); err != nil {
				t.Errorf("token %d: %v", token, err)
			}
		}
	})
}

// Two leases of different services may have one token, and only their owners tell them apart.
func TestGuardRequiresOwner(t *testing.T) {
	t.Parallel()
	var g fence.Guard
	write := func() error { t.Error("write was called"); return nil }
	for _, err := range []error{g.Do("k", 7, "", write), g.Claim("k", 7, ""), g.Check("k", 7, "")} {
		if !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("error %v, want ErrInvalid", err)
		}
	}
	if token, _ := g.Highest("k"); token != 0 {
		t.Errorf("token %d was recorded", token)
	}
}
