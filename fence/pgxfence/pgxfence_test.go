package pgxfence_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/pgxfence"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/tempo"
)

// server is one server for all tests; each test has its own table.
var server *pgproc.Server

func TestMain(m *testing.M) {
	stop := tempo.Start()
	var err error
	if server, err = pgproc.Start(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	server.Stop()
	stop()
	os.Exit(code)
}

// openFence returns a pool and a Fence whose table has the name of the test, and creates a table of accounts.
func openFence(t *testing.T) (*pgxpool.Pool, *pgxfence.Fence) {
	t.Helper()
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	f, err := pgxfence.New(&pgxfence.Options{Table: "fence_" + t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Create(t.Context(), pool), f.Create(t.Context(), pool)); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `CREATE TABLE account_`+t.Name()+` (name text PRIMARY KEY, balance bigint NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return pool, f
}

// putBalance writes the balance of key under the guard key.
func putBalance(t *testing.T, pool *pgxpool.Pool, f *pgxfence.Fence, key string, token holdfast.Token, owner string, balance int) error {
	return f.Do(t.Context(), pool, key, token, owner, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO account_`+t.Name()+` (name, balance) VALUES ($1, $2)
			ON CONFLICT (name) DO UPDATE SET balance = excluded.balance`, key, balance)
		return err
	})
}

// readBalance returns the balance of key, or -1 if there is none.
func readBalance(t *testing.T, pool *pgxpool.Pool, key string) int {
	t.Helper()
	n := -1
	err := pool.QueryRow(t.Context(), `SELECT balance FROM account_`+t.Name()+` WHERE name = $1`, key).Scan(&n)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return n
}

// The package follows the rule of package fence.
func TestRule(t *testing.T) {
	pool, f := openFence(t)
	var guard fence.Guard
	for i, w := range []struct {
		token holdfast.Token
		owner string
	}{{7, "a"}, {7, "a"}, {7, "b"}, {6, "a"}, {8, "b"}, {1<<63 - 2, "c"}, {1<<63 - 1, "d"}, {1<<63 - 2, "c"}, {0, "a"}, {-1, "a"}} {
		want := guard.Claim("k", w.token, w.owner)
		err := putBalance(t, pool, f, "k", w.token, w.owner, i)
		if (err == nil) != (want == nil) || err != nil && !errors.Is(err, fence.ErrStale) {
			t.Errorf("write %d: %v, want %v", i, err, want)
		}
		if written := readBalance(t, pool, "k") == i; written != (want == nil) {
			t.Errorf("write %d: written %v, want stale %v", i, written, want != nil)
		}
	}
	token, owner, err := f.Highest(t.Context(), pool, "k")
	if wantToken, wantOwner := guard.Highest("k"); err != nil || token != wantToken || owner != wantOwner {
		t.Errorf("highest %d of %q, %v; want %d of %q", token, owner, err, wantToken, wantOwner)
	}
}

func TestUnusedGuardHasZeroToken(t *testing.T) {
	pool, f := openFence(t)
	if token, owner, err := f.Highest(t.Context(), pool, "unused"); token != 0 || owner != "" || err != nil {
		t.Errorf("unused guard: %d of %q, %v", token, owner, err)
	}
	err := errors.Join(f.Claim(t.Context(), pool, "k", 9, "a"), f.Forget(t.Context(), pool, "k"), f.Claim(t.Context(), pool, "k", 3, "b"))
	if err != nil {
		t.Errorf("a forgotten guard: %v", err)
	}
}

func TestFailedWriteIsRolledBack(t *testing.T) {
	pool, f := openFence(t)
	failure := errors.New("no")
	err := f.Do(t.Context(), pool, "k", 9, "a", func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO account_`+t.Name()+` (name, balance) VALUES ('k', 1)`)
		return errors.Join(err, failure)
	})
	if !errors.Is(err, failure) {
		t.Fatalf("Do: %v, want the write's error", err)
	}
	if n := readBalance(t, pool, "k"); n != -1 {
		t.Errorf("balance %d stands", n)
	}
	if err := putBalance(t, pool, f, "k", 8, "b", 3); err != nil {
		t.Errorf("a claim that was rolled back still counts: %v", err)
	}
}

// Many leases write at once. Each writes the value that it has read, plus one. If a write could run apart from
// its check or from its read, the sum would not equal the number of accepted writes.
func TestCheckAndWriteAreOneStep(t *testing.T) {
	pool, f := openFence(t)
	if err := putBalance(t, pool, f, "k", 1, "first", 0); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	accepted := 0
	var all sync.WaitGroup
	for token := range holdfast.Token(100) {
		all.Go(func() {
			err := f.Do(t.Context(), pool, "k", token+2, "lease", func(tx pgx.Tx) error {
				mu.Lock()
				accepted++
				mu.Unlock()
				_, err := tx.Exec(t.Context(), `UPDATE account_`+t.Name()+` SET balance = balance + 1 WHERE name = 'k'`)
				return err
			})
			if err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := readBalance(t, pool, "k"); n != accepted || n == 0 {
		t.Errorf("sum %d of %d accepted writes", n, accepted)
	}
}

// A table whose rows carry their own token needs one statement and no Fence.
func TestTokenColumnPerRow(t *testing.T) {
	pool, _ := openFence(t)
	const schema = `CREATE TABLE own (name text, balance bigint, fence bigint, fence_owner text); INSERT INTO own VALUES ('k', 0, 0, '')`
	if _, err := pool.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	for i, row := range []struct {
		token holdfast.Token
		owner string
		stale bool
	}{{7, "a", false}, {7, "a", false}, {7, "b", true}, {6, "a", true}, {8, "b", false}} {
		tag, err := pool.Exec(t.Context(), `UPDATE own SET balance = 5, fence = $1, fence_owner = $2
			WHERE name = 'k' AND (fence < $1 OR fence = $1 AND fence_owner = $2)`, int64(row.token), row.owner)
		if err := pgxfence.CheckApplied("k", row.token, tag, err); errors.Is(err, fence.ErrStale) != row.stale || err != nil && !row.stale {
			t.Errorf("write %d: %v, want stale %v", i, err, row.stale)
		}
	}
}

// The transaction is rolled back although its context has ended. Otherwise the next writer would wait until
// the server notices that the connection is gone.
func TestAbortedWriteKeepsConnection(t *testing.T) {
	shared, f := openFence(t)
	config := shared.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var before, after int
	const pid = "SELECT pg_backend_pid()"
	for _, panics := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		func() {
			defer func() { recover() }()
			err = f.Do(ctx, pool, "k", 9, "a", func(tx pgx.Tx) error {
				if err := tx.QueryRow(ctx, pid).Scan(&before); err != nil {
					t.Error(err)
				}
				cancel()
				if panics {
					panic("abort")
				}
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Do() = %v, want the write's error", err)
			}
		}()
		if err := pool.QueryRow(t.Context(), pid).Scan(&after); err != nil || after != before {
			t.Errorf("the connection to process %d was lost: %d, %v", before, after, err)
		}
		if err := f.Claim(t.Context(), pool, "k", 1, "b"); err != nil { // an older claim that was not rolled back would reject it
			t.Errorf("a claim after a rolled-back claim: %v", err)
		}
		if err := f.Forget(t.Context(), pool, "k"); err != nil {
			t.Error(err)
		}
	}
}

// deadConn is a connection that neither sends nor receives once it is dead.
type deadConn struct {
	net.Conn
	dead atomic.Bool
}

func (s *deadConn) Write(p []byte) (int, error) {
	if s.dead.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

// The rollback waits for an answer that does not come.
func TestWriteOnDeadConnectionEnds(t *testing.T) {
	shared, f := openFence(t)
	config := shared.Config()
	var first atomic.Pointer[deadConn]
	config.MaxConns = 1
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		conn := &deadConn{Conn: c}
		first.CompareAndSwap(nil, conn)
		return conn, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	failed, ended := errors.New("failed"), make(chan error, 1)
	go func() {
		ended <- f.Do(t.Context(), pool, "k", 9, "a", func(pgx.Tx) error {
			first.Load().dead.Store(true)
			return failed
		})
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, failed) {
			t.Errorf("Do() = %v, want the write's error", err)
		}
	case <-time.After(90 * time.Second):
		t.Error("the write did not end")
	}
	first.Load().Close()
	pool.Close()
}

// The error names the fix, as in package fence.
func TestTokensOfAnotherServiceAreNamed(t *testing.T) {
	pool, f := openFence(t)
	if err := f.Claim(t.Context(), pool, "k", 1795433319149690, "before"); err != nil {
		t.Fatal(err)
	}
	if err := f.Claim(t.Context(), pool, "k", 4773888, "now"); !errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), "Forget") {
		t.Errorf("Claim() = %v, want ErrStale that names Forget", err)
	}
}

func TestBadTableNameIsRejected(t *testing.T) {
	t.Parallel()
	if f, err := pgxfence.New(&pgxfence.Options{Table: "f; DROP TABLE account"}); err == nil {
		t.Errorf("accepted: %+v", f)
	}
}

// Two transactions of one lease claim one after the other. The second has a snapshot from before the end of
// the first.
func TestClaimAtOlderSnapshotIsRejected(t *testing.T) {
	pool, f := openFence(t)
	begin := func(level pgx.TxIsoLevel) pgx.Tx {
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tx.Rollback(context.Background()) })
		return tx
	}
	if err := f.Claim(t.Context(), pool, "k", 9, "a"); err != nil {
		t.Fatal(err)
	}
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		first, second := begin(pgx.ReadCommitted), begin(level)
		seen, before := 0, 0
		rows := "SELECT count(*) FROM account_" + t.Name()
		if err := second.QueryRow(t.Context(), rows).Scan(&before); err != nil {
			t.Fatal(err)
		}
		err := f.Claim(t.Context(), first, "k", 9, "a")
		if err == nil {
			_, err = first.Exec(t.Context(), "INSERT INTO account_"+t.Name()+" VALUES ($1, 1)", level)
		}
		if err = errors.Join(err, first.Commit(t.Context())); err != nil {
			t.Fatal(err)
		}
		if err := f.Claim(t.Context(), second, "k", 9, "a"); err != nil {
			if said, ok := errors.AsType[*pgconn.PgError](err); level == pgx.ReadCommitted || !ok || said.Code != "40001" {
				t.Errorf("%s: Claim() = %v", level, err)
			}
			continue
		}
		if err := second.QueryRow(t.Context(), rows).Scan(&seen); err != nil || seen != before+1 {
			t.Errorf("%s: the claim covers a read of %d rows, %v, where there are %d", level, seen, err, before+1)
		}
		second.Rollback(t.Context())
	}
}

// The next write would run outside of the claim's transaction.
func TestClaimAfterTransactionEndIsRejected(t *testing.T) {
	pool, f := openFence(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := f.Claim(t.Context(), tx, "k", 9, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := f.Claim(t.Context(), tx, "k", 9, "a"); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("Claim() = %v, want that the transaction is over", err)
	}
}
