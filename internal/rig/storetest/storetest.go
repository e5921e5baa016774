// Package storetest is the test suite for the Redis clients that package redisfence supports.
package storetest

import (
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

// Open returns a Store that works through the client under test. It closes the client when the test ends.
type Open func(t *testing.T, server *redisproc.Server) *redisfence.Store

// Run runs all tests, each on its own server.
func Run(t *testing.T, open Open) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Open)
	}{
		{"Rule", checkRule},
		{"ClaimShutsOutOlderWriters", claimRejectsOlderWriters},
		{"GetClaims", getClaims},
		{"TokensOfAnotherServiceAreNamed", tokensOfAnotherServiceAreNamed},
		{"EvalRunsOnKeysAndArguments", evalRunsOnKeysAndArguments},
		{"EvalOfNilIsNoError", evalMayReturnNil},
		{"FailedScriptKeepsItsTokenRecorded", failedScriptKeepsItsTokenRecorded},
		{"CheckAndWriteAreOneStep", checkAndWriteAreOneStep},
		{"ForgetAndHighest", forgetAndHighest},
		{"ServerErrorIsNotStale", serverErrorIsNotStale},
		{"ServerMayForgetScripts", serverMayForgetScripts},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, open)
		})
	}
}

func startStore(t *testing.T, open Open) (*redisfence.Store, *redisproc.Server) {
	t.Helper()
	server := redistest.Start(t, nil)
	return open(t, server), server
}

func readValue(t *testing.T, server *redisproc.Server, key string) any {
	t.Helper()
	got, err := server.Do("GET", key)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// checkRule checks that a store of Redis follows the rule of package fence.
func checkRule(t *testing.T, open Open) {
	store, server := startStore(t, open)
	Rule(t, func(t *testing.T, key string, token holdfast.Token, owner, value string) error {
		return store.Set(t.Context(), key, token, owner, value)
	}, func(t *testing.T, key string) any { return readValue(t, server, key) })
}

// Rule checks that a storage follows the rule of package fence. write stores a value, "before" or "after",
// under a key for the holder of a token, and stored returns the present value.
func Rule(t *testing.T, write func(t *testing.T, key string, token holdfast.Token, owner, value string) error, stored func(t *testing.T, key string) any) {
	t.Helper()
	const big = math.MaxInt64 - 1 // a Lua number cannot distinguish it from the next one
	for i, row := range []struct {
		name  string
		seen  holdfast.Token
		by    string
		token holdfast.Token
		owner string
	}{
		{"FirstTokenOfAKeyPasses", 0, "", 7, "a"},
		{"HigherTokenPasses", 7, "a", 8, "b"},
		{"SameLeaseMayWriteAgain", 7, "a", 7, "a"},
		{"EqualTokenOfAnotherLeaseIsRefused", 7, "a", 7, "b"},
		{"EqualTokenIsRefusedByTheCaseOfItsID", 7, "a", 7, "A"},
		{"LowerTokenIsRefused", 7, "a", 6, "b"},
		{"LowerTokenOfTheSameIDIsRefused", 7, "a", 6, "a"},
		{"LongerTokenIsHigher", 99, "a", 100, "b"},
		{"ShorterTokenIsLower", 100, "a", 99, "b"},
		{"HugeTokenIsNotRounded", big, "a", big + 1, "b"},
		{"HugeLowerTokenIsNotRounded", big + 1, "a", big, "a"},
		{"NoTokenIsRefused", 0, "", 0, "a"},
		{"NegativeTokenIsRefused", 0, "", -1, "a"},
	} {
		t.Run(row.name, func(t *testing.T) {
			key := "k" + strconv.Itoa(i)
			var guard fence.Guard
			if row.seen != 0 {
				guard.Claim(key, row.seen, row.by)
				if err := write(t, key, row.seen, row.by, "before"); err != nil {
					t.Fatal(err)
				}
			}
			want := guard.Check(key, row.token, row.owner)
			err := write(t, key, row.token, row.owner, "after")
			if want != nil {
				stale, ok := errors.AsType[*fence.StaleError](err)
				if !ok || *stale != (fence.StaleError{Key: key, Token: row.token, Highest: row.seen}) && row.token > 0 {
					t.Errorf("the write: %#v, want %#v", err, want)
				}
			} else if err != nil {
				t.Errorf("the write: %v", err)
			}
			if written := stored(t, key) == "after"; written != (want == nil) {
				t.Errorf("written %v, want stale %v", written, want != nil)
			}
		})
	}
}

func claimRejectsOlderWriters(t *testing.T, open Open) {
	store, server := startStore(t, open)
	ctx := t.Context()
	if err := store.Set(ctx, "k", 5, "old", "first"); err != nil {
		t.Fatal(err)
	}
	if err := store.Claim(ctx, "k", 6, "new"); err != nil {
		t.Fatal(err)
	}
	if err := store.Set(ctx, "k", 5, "old", "late"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a write with an older token: %v, want ErrStale", err)
	}
	if got := readValue(t, server, "k"); got != "first" {
		t.Errorf("value %v after a rejected write", got)
	}
}

func tokensOfAnotherServiceAreNamed(t *testing.T, open Open) {
	store, _ := startStore(t, open)
	if err := store.Claim(t.Context(), "k", 1795433319149690, "before"); err != nil {
		t.Fatal(err)
	}
	if err := store.Claim(t.Context(), "k", 4773888, "now"); !errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), "Forget") {
		t.Errorf("Claim() = %v, want ErrStale that names Forget", err)
	}
}

func getClaims(t *testing.T, open Open) {
	store, _ := startStore(t, open)
	ctx := t.Context()
	if _, found, err := store.Get(ctx, "k", 5, "a"); found || err != nil {
		t.Fatalf("absent key: found %v, %v", found, err)
	}
	if err := store.Set(ctx, "k", 4, "older", "late"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a write with an older token than a read: %v, want ErrStale", err)
	}
	if err := store.Set(ctx, "k", 5, "a", ""); err != nil {
		t.Fatal(err)
	}
	if got, found, err := store.Get(ctx, "k", 5, "a"); got != "" || !found || err != nil {
		t.Errorf("empty value: %q, found %v, %v", got, found, err)
	}
	if _, _, err := store.Get(ctx, "k", 4, "older"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a read with an older token: %v, want ErrStale", err)
	}
}

func evalRunsOnKeysAndArguments(t *testing.T, open Open) {
	store, server := startStore(t, open)
	add := `return {#KEYS, #ARGV, redis.call('INCRBY', KEYS[2], ARGV[1])}`
	reply, err := store.Eval(t.Context(), add, "account", 3, "a", []string{"{account}:log", "{account}:sum"}, "40")
	if err != nil {
		t.Fatal(err)
	}
	if want := []any{int64(2), int64(1), int64(40)}; !reflect.DeepEqual(reply, want) {
		t.Errorf("script saw %v; want 2 keys, 1 argument, sum 40", reply)
	}
	if got := readValue(t, server, "{account}:sum"); got != "40" {
		t.Errorf("sum %v", got)
	}
}

func evalMayReturnNil(t *testing.T, open Open) {
	store, _ := startStore(t, open)
	reply, err := store.Eval(t.Context(), `return false`, "k", 1, "a", nil)
	if err != nil || reply != nil {
		t.Errorf("reply %v, %v; want nil", reply, err)
	}
}

func failedScriptKeepsItsTokenRecorded(t *testing.T, open Open) {
	store, _ := startStore(t, open)
	_, err := store.Eval(t.Context(), `return redis.error_reply('FULL no room')`, "k", 9, "new", nil)
	if err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), "FULL no room") {
		t.Fatalf("error %v, want the script's error", err)
	}
	if token, owner, err := store.Highest(t.Context(), "k"); token != 9 || owner != "new" || err != nil {
		t.Errorf("highest %d of %q, %v", token, owner, err)
	}
}

// Many leases write at once. If a write could run apart from its check, the value would not come from the
// highest token.
func checkAndWriteAreOneStep(t *testing.T, open Open) {
	store, server := startStore(t, open)
	other := open(t, server)
	var all sync.WaitGroup
	for token := range holdfast.Token(200) {
		all.Go(func() {
			s := store
			if token%2 == 0 {
				s = other
			}
			err := s.Set(t.Context(), "k", token+1, "lease", strconv.Itoa(int(token)+1))
			if err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := readValue(t, server, "k"); got != "200" {
		t.Errorf("the value of token %v was kept, want the value of 200", got)
	}
}

func forgetAndHighest(t *testing.T, open Open) {
	store, _ := startStore(t, open)
	ctx := t.Context()
	if token, owner, err := store.Highest(ctx, "k"); token != 0 || owner != "" || err != nil {
		t.Errorf("unused guard: %d, %q, %v", token, owner, err)
	}
	if err := errors.Join(store.Claim(ctx, "k", 8, "a"), store.Forget(ctx, "k"), store.Claim(ctx, "k", 7, "b")); err != nil {
		t.Error(err)
	}
}

func serverErrorIsNotStale(t *testing.T, open Open) {
	store, server := startStore(t, open)
	if _, err := server.Do("SET", "holdfast:guard:{k}", "no hash"); err != nil {
		t.Fatal(err)
	}
	if err := store.Claim(t.Context(), "k", 1, "a"); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("error %v, want the server's error", err)
	}
}

// serverMayForgetScripts checks that a script is sent again as text after SCRIPT FLUSH or a restart, which
// make every SHA1 unknown.
func serverMayForgetScripts(t *testing.T, open Open) {
	store, server := startStore(t, open)
	for token := range holdfast.Token(3) {
		if err := store.Set(t.Context(), "k", token+1, "a", "v"); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Do("SCRIPT", "FLUSH"); err != nil {
			t.Fatal(err)
		}
	}
}
