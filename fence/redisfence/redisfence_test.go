package redisfence_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/redisfence"
	"github.com/holdfast-go/holdfast/internal/redisproc"
	"github.com/holdfast-go/holdfast/internal/redisproc/redistest"
)

func connect(t *testing.T, server *redisproc.Server) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func open(t *testing.T) (*redisfence.Store, *redisproc.Server) {
	t.Helper()
	server := redistest.Start(t, nil)
	return redisfence.New(connect(t, server)), server
}

func value(t *testing.T, server *redisproc.Server, key string) any {
	t.Helper()
	got, err := server.Do("GET", key)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestRule holds this package to the rule of package fence: both answer alike.
func TestRule(t *testing.T) {
	t.Parallel()
	store, server := open(t)
	const big = math.MaxInt64 - 1 // one more differs only below a Lua number's precision
	for i, row := range []struct {
		name  string
		seen  holdfast.Token
		by    string
		token holdfast.Token
		id    string
	}{
		{"FirstTokenOfAKeyPasses", 0, "", 7, "a"},
		{"HigherTokenPasses", 7, "a", 8, "b"},
		{"SameLeaseMayWriteAgain", 7, "a", 7, "a"},
		{"EqualTokenOfAnotherLeaseIsRefused", 7, "a", 7, "b"},
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
			t.Parallel()
			key := "k" + strconv.Itoa(i)
			var guard fence.Guard
			if row.seen != 0 {
				guard.Claim(key, row.seen, row.by)
				if err := store.Set(t.Context(), key, row.seen, row.by, "before"); err != nil {
					t.Fatal(err)
				}
			}
			want := guard.Check(key, row.token, row.id)
			err := store.Set(t.Context(), key, row.token, row.id, "after")
			if want != nil {
				stale, ok := errors.AsType[*fence.StaleError](err)
				if !ok || *stale != (fence.StaleError{Key: key, Token: row.token, Highest: row.seen}) && row.token > 0 {
					t.Errorf("Set: %#v, want %#v", err, want)
				}
			} else if err != nil {
				t.Errorf("Set: %v", err)
			}
			if written := value(t, server, key) == "after"; written != (want == nil) {
				t.Errorf("written %v, want stale %v", written, want != nil)
			}
		})
	}
}

func TestClaimShutsOutOlderWriters(t *testing.T) {
	t.Parallel()
	store, server := open(t)
	ctx := t.Context()
	if err := store.Set(ctx, "k", 5, "old", "first"); err != nil {
		t.Fatal(err)
	}
	if err := store.Claim(ctx, "k", 6, "new"); err != nil {
		t.Fatal(err)
	}
	if err := store.Set(ctx, "k", 5, "old", "late"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a write behind a newer claim: %v, want ErrStale", err)
	}
	if got := value(t, server, "k"); got != "first" {
		t.Errorf("value %v after a refused write", got)
	}
}

func TestGetClaims(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	ctx := t.Context()
	if _, found, err := store.Get(ctx, "k", 5, "a"); found || err != nil {
		t.Fatalf("absent key: found %v, %v", found, err)
	}
	if err := store.Set(ctx, "k", 4, "older", "late"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a write behind a newer reader: %v, want ErrStale", err)
	}
	if err := store.Set(ctx, "k", 5, "a", ""); err != nil {
		t.Fatal(err)
	}
	if got, found, err := store.Get(ctx, "k", 5, "a"); got != "" || !found || err != nil {
		t.Errorf("empty value: %q, found %v, %v", got, found, err)
	}
	if _, _, err := store.Get(ctx, "k", 4, "older"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a read behind a newer reader: %v, want ErrStale", err)
	}
}

func TestEvalRunsOnKeysAndArguments(t *testing.T) {
	t.Parallel()
	store, server := open(t)
	add := redisfence.NewScript(`return {#KEYS, #ARGV, redis.call('INCRBY', KEYS[2], ARGV[1])}`)
	reply, err := store.Eval(t.Context(), add, "account", 3, "a", []string{"{account}:log", "{account}:sum"}, "40")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := reply.AsIntSlice(); err != nil || got[0] != 2 || got[1] != 1 || got[2] != 40 {
		t.Errorf("script saw %v, %v; want 2 keys, 1 argument, sum 40", got, err)
	}
	if got := value(t, server, "{account}:sum"); got != "40" {
		t.Errorf("sum %v", got)
	}
}

func TestEvalOfNilIsNoError(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	reply, err := store.Eval(t.Context(), redisfence.NewScript(`return false`), "k", 1, "a", nil)
	if err != nil || !reply.IsNil() {
		t.Errorf("reply %v, %v; want nil", reply, err)
	}
}

func TestFailedScriptKeepsItsTokenRecorded(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	_, err := store.Eval(t.Context(), redisfence.NewScript(`return redis.error_reply('FULL no room')`), "k", 9, "new", nil)
	if err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), "FULL no room") {
		t.Fatalf("error %v, want that of the script", err)
	}
	if token, id, err := store.Highest(t.Context(), "k"); token != 9 || id != "new" || err != nil {
		t.Errorf("highest %d of %q, %v", token, id, err)
	}
}

// TestCheckAndWriteAreOneStep has many leases write at once. If a write could run
// apart from its check, the value would not be that of the highest token.
func TestCheckAndWriteAreOneStep(t *testing.T) {
	t.Parallel()
	store, server := open(t)
	other := redisfence.New(connect(t, server))
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
	if got := value(t, server, "k"); got != "200" {
		t.Errorf("value of token %v stands, want that of 200", got)
	}
}

func TestForgetAndHighest(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	ctx := t.Context()
	if token, id, err := store.Highest(ctx, "k"); token != 0 || id != "" || err != nil {
		t.Errorf("unused guard: %d, %q, %v", token, id, err)
	}
	if err := errors.Join(store.Claim(ctx, "k", 8, "a"), store.Forget(ctx, "k"), store.Claim(ctx, "k", 7, "b")); err != nil {
		t.Error(err)
	}
}

func TestServerErrorIsNotStale(t *testing.T) {
	t.Parallel()
	store, server := open(t)
	if _, err := server.Do("SET", "holdfast:guard:{k}", "no hash"); err != nil {
		t.Fatal(err)
	}
	if err := store.Claim(t.Context(), "k", 1, "a"); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("error %v, want that of the server", err)
	}
}
