package postgres_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/postgres"
)

// accounts creates tables and views of the account 7 with a balance of 100, and functions that read it.
const accounts = `
	CREATE TABLE holdfast.account AS SELECT 7 AS id, 100 AS balance;
	CREATE TABLE holdfast."Account" () INHERITS (holdfast.account);
	CREATE TABLE holdfast.other AS SELECT 1 AS one, 7 AS id;
	CREATE TABLE holdfast.heir () INHERITS (holdfast.account);
	CREATE TABLE holdfast.parts (id int, balance int) PARTITION BY LIST (id);
	CREATE TABLE holdfast.parts_7 PARTITION OF holdfast.parts FOR VALUES IN (7);
	INSERT INTO holdfast.parts VALUES (7, 100);
	CREATE VIEW holdfast.plain AS SELECT * FROM holdfast.account;
	CREATE VIEW holdfast.deep AS WITH c AS (SELECT * FROM holdfast.account) SELECT c.* FROM c;
	CREATE VIEW holdfast.counted AS SELECT 7 AS id, max(balance) AS balance FROM holdfast.account;
	CREATE MATERIALIZED VIEW holdfast.kept AS SELECT * FROM holdfast.account;
	CREATE FUNCTION holdfast.accounts() RETURNS SETOF holdfast.account LANGUAGE sql AS 'SELECT * FROM holdfast.account';
	SELECT pg_advisory_xact_lock(1);
	CREATE EXTENSION IF NOT EXISTS file_fdw;
	CREATE SERVER IF NOT EXISTS files FOREIGN DATA WRAPPER file_fdw;
	CREATE FOREIGN TABLE holdfast.far (id int, balance int) SERVER files OPTIONS (program 'echo 7,100', format 'csv');
	CREATE TABLE holdfast.mixed (id int, balance int) PARTITION BY LIST (id);
	CREATE FOREIGN TABLE holdfast.mixed_7 PARTITION OF holdfast.mixed FOR VALUES IN (7) SERVER files OPTIONS (program 'echo 7,100', format 'csv');`

// LockRow either locks the row that it returns or fails, whatever the query is.
func TestLockRowLocksRowOrFails(t *testing.T) {
	r := startRig(t)
	r.execSQL(accounts, pgx.QueryExecModeSimpleProtocol)
	for _, q := range []struct {
		sql    string
		locked string // table of the locked row; empty: the query is rejected
		args   []any
	}{
		{"SELECT balance FROM holdfast.account WHERE id = $1", "account", []any{7}},
		{"select balance\nfrom holdfast.account a where a.id = 7", "account", nil},
		{"SELECT a.balance FROM ONLY holdfast.account AS a WHERE a.id = 7", "account", nil},
		{"SELECT balance FROM holdfast.account WHERE id = 7 -- the account", "account", nil},
		{"SELECT balance FROM holdfast.account WHERE id = 7 /* the /* one */ account */", "account", nil},
		{"-- SELECT FROM\nSELECT balance FROM holdfast.account", "account", nil},
		{"SELECT balance FROM holdfast.account ORDER BY id DESC LIMIT 1", "account", nil},
		{"SELECT balance FROM holdfast.account WHERE id = 7 FOR SHARE", "account", nil},
		{"SELECT balance FROM holdfast.account FOR UPDATE SKIP LOCKED", "account", nil},
		{"SELECT balance FROM holdfast.account WHERE 'SELECT (TABLE x)' <> '''' AND $$'; SELECT$$ <> $a$ $$ $a$", "account", nil},
		{`SELECT balance AS "select ""table" FROM holdfast.account`, "account", nil},
		{"SELECT balance FROM holdfast.account WHERE now() > '2001-01-01'::timestamp with time zone", "account", nil},
		{"SELECT balance, id IS DISTINCT FROM 8 FROM holdfast.account", "account", nil},
		{"SELECT balance + 0 * extract(epoch FROM now())::int FROM holdfast.account", "account", nil},
		{"SELECT balance FROM holdfast.account WHERE id IN (VALUES (7), (8))", "account", nil},
		{"SELECT balance FROM holdfast.account WHERE id = @id", "account", []any{pgx.NamedArgs{"id": 7}}},
		{"SELECT balance FROM holdfast.account WHERE id = @from", "account", []any{pgx.QueryExecModeExec, pgx.NamedArgs{"from": 7}}},
		{"SELECT balance FROM holdfast.account WHERE id = $1", "account", []any{pgx.QueryExecModeSimpleProtocol, 7}},
		{"SELECT balance FROM holdfast.account WHERE id = $1", "account", []any{pgx.QueryExecModeCacheStatement, 7}},
		{"SELECT balance FROM holdfast.parts WHERE id = $1", "parts", []any{7}},

		{sql: "WITH c AS (SELECT * FROM holdfast.account) SELECT balance FROM c"},
		{sql: "WITH c AS MATERIALIZED (SELECT * FROM holdfast.account) SELECT balance FROM c"},
		{sql: "WITH c AS (SELECT * FROM holdfast.account) SELECT balance FROM c, (SELECT 1) s"},
		{sql: "WITH c AS (SELECT * FROM holdfast.account) SELECT c.balance FROM c JOIN holdfast.other o ON true"},
		{sql: "WITH c AS (UPDATE holdfast.other SET one = 2 RETURNING *) SELECT balance FROM holdfast.account"},
		{sql: "SELECT balance FROM (WITH c AS (TABLE holdfast.account) TABLE c) x"},
		{sql: "SELECT x.balance FROM holdfast.other, LATERAL (WITH c AS (TABLE holdfast.account) TABLE c) x"},
		{sql: "SELECT balance FROM holdfast.accounts()"},
		{sql: "SELECT balance FROM ROWS FROM (holdfast.accounts()) x"},
		{sql: "SELECT generate_series(100, 101) FROM holdfast.account"},
		{sql: "SELECT n FROM generate_series(100, 101) n"},
		{sql: "SELECT (SELECT balance FROM holdfast.account)"},
		{sql: "SELECT (SELECT balance FROM holdfast.account) FROM holdfast.other"},
		{sql: "SELECT (TABLE holdfast.kept) FROM holdfast.other"},
		{sql: "SELECT x.balance FROM (SELECT balance FROM holdfast.account) x"},
		{sql: "SELECT a.balance FROM holdfast.account a JOIN holdfast.other o USING (id)"},
		{sql: "SELECT a.balance FROM holdfast.account a, holdfast.other o"},
		{sql: "SELECT a.balance FROM holdfast.other o LEFT JOIN holdfast.account a ON true"},
		{sql: "SELECT balance FROM holdfast.plain"},
		{sql: "SELECT balance FROM holdfast.deep"},
		{sql: "SELECT balance FROM holdfast.counted"},
		{sql: "SELECT balance FROM holdfast.kept"},
		{sql: "SELECT balance FROM holdfast.far"},
		{sql: "SELECT balance FROM holdfast.mixed"},
		{sql: "SELECT balance FROM holdfast.nothing"},
		{sql: "SELECT balance FROM holdfast.account UNION SELECT 1"},
		{sql: "SELECT balance FROM holdfast.account UNION ALL VALUES (1)"},
		{sql: "SELECT max(balance) FROM holdfast.account"},
		{sql: "SELECT balance FROM holdfast.account GROUP BY balance"},
		{sql: "SELECT DISTINCT balance FROM holdfast.account"},
		{sql: "SELECT sum(balance) OVER () FROM holdfast.account"},
		{sql: "SELECT id AS from FROM holdfast.deep"},
		{sql: "SELECT d.balance holdfast FROM holdfast.deep d"},
		{sql: "SELECT 100"},
		{sql: "VALUES (100)"},
		{sql: "TABLE holdfast.account"},
		{sql: "(SELECT balance FROM holdfast.account)"},
		{sql: "UPDATE holdfast.account SET balance = 100 RETURNING balance"},
		{sql: "SELECT balance INTO holdfast.copy FROM holdfast.account"},
		{sql: "SELECT balance FROM holdfast.account;"},
		{sql: "SELECT 1; SELECT balance FROM holdfast.account", args: []any{pgx.QueryExecModeSimpleProtocol}},
		{sql: "SELECT balance FROM holdfast.account WHERE id = 7; SELECT 1 FROM holdfast.other", args: []any{pgx.QueryExecModeSimpleProtocol}},
		{sql: "SELECT balance FROM holdfast.account /* FROM"},
		{sql: "SELECT balance FROM holdfast.account WHERE 'x' <> 'y"},
		{sql: `SELECT balance FROM holdfast.account WHERE '\' <> '-- '`},
		{sql: "SELECT balance FROM holdfast.account WHERE $$x$$ <> $a$y$$"},
		{sql: ""},
	} {
		tx := r.beginDirect()
		rows, other := 0, 0
		sql := r.in(q.sql)
		var balance, rest any
		into := []any{&balance, &rest}[:1+strings.Count(q.sql, "DISTINCT FROM")]
		err := postgres.LockRow(t.Context(), tx, sql, q.args...).Scan(into...)
		switch {
		case q.locked == "" && (err == nil || errors.Is(err, pgx.ErrNoRows)):
			t.Errorf("%s: returned %v, %v, want an error", q.sql, balance, err)
		case q.locked != "" && err != nil:
			t.Errorf("%s: %v", q.sql, err)
		case q.locked != "":
			look := r.beginDirect()
			r.NoError(look.QueryRow(t.Context(), r.in("SELECT count(*) FROM holdfast."+q.locked)).Scan(&rows))
			r.NoError(look.QueryRow(t.Context(), r.in("SELECT count(*) FROM (SELECT FROM holdfast."+q.locked+" FOR UPDATE SKIP LOCKED) x")).Scan(&other))
			if rows != 1 || other != 0 {
				t.Errorf("%s: another transaction can lock %d of %d rows", q.sql, other, rows)
			}
			look.Rollback(t.Context())
		}
		tx.Rollback(t.Context())
	}
}

// The server never gets a rejected query, and the transaction continues.
func TestLockRowErrorNamesFix(t *testing.T) {
	r := startRig(t)
	r.execSQL(accounts, pgx.QueryExecModeSimpleProtocol)
	tx := r.beginDirect()
	var balance int
	for query, want := range map[string]string{
		"WITH c AS (TABLE holdfast.account) SELECT balance FROM c": "begin it with SELECT",
		"SELECT balance FROM holdfast.plain":                       "is a view",
		"SELECT balance FROM holdfast.mixed":                       "is a foreign table",
	} {
		err := postgres.LockRow(t.Context(), tx, r.in(query)).Scan(&balance)
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want ErrInvalid with %q", query, err, want)
		}
	}
	if err := postgres.LockRow(t.Context(), tx, r.in("SELECT balance FROM holdfast.account")).Scan(&balance); err != nil || balance != 100 {
		t.Errorf("the transaction cannot continue: %v", err)
	}
}

func TestLockedRowReturnsErrHeld(t *testing.T) {
	r := startRig(t)
	r.execSQL("CREATE TABLE holdfast.account AS SELECT 7 AS id, 100 AS balance")
	var balance int
	first, second := r.beginTx(), r.beginTx()
	query := r.in("SELECT balance FROM holdfast.account WHERE id = $1")
	if err := postgres.LockRow(t.Context(), first, query, 7).Scan(&balance); err != nil || balance != 100 {
		t.Fatalf("LockRow() = %v, balance %d", err, balance)
	}
	err := postgres.LockRow(t.Context(), second, query, 7).Scan(&balance)
	if held, ok := errors.AsType[*driver.HeldError](err); !errors.Is(err, holdfast.ErrHeld) || !ok || held.Owner != "" {
		t.Errorf("a locked row: %v, want ErrHeld", err)
	}
	if err := postgres.LockRow(t.Context(), second, query, 8).Scan(&balance); err == nil || errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("LockRow() afterwards in the same transaction = %v, want an aborted transaction", err)
	}
	first.Rollback(t.Context())
	second = r.beginTx()
	if err := postgres.LockRow(t.Context(), second, query, 7).Scan(&balance); err != nil {
		t.Errorf("after the first transaction: %v", err)
	}
	if err := postgres.LockRow(t.Context(), second, query, 8).Scan(&balance); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("missing row: %v, want pgx.ErrNoRows", err)
	}
}

// Each writer locks, reads and writes a row in one transaction.
func TestLockRowPreventsLostUpdates(t *testing.T) {
	gates.Nightly(t, "rowlock")
	const writers, length = 4, 30 * time.Second
	r := startRig(t)
	r.execSQL(accounts, pgx.QueryExecModeSimpleProtocol)
	increment := func() error {
		return pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
			var balance int64
			if err := postgres.LockRow(t.Context(), tx, r.in("SELECT balance FROM holdfast.account WHERE id = 7")).Scan(&balance); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), r.in("UPDATE holdfast.account SET balance = $1 WHERE id = 7"), balance+1)
			return err
		})
	}
	var confirmed atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(length)
	for i := range writers {
		all.Go(func() {
			for time.Now().Before(end) {
				switch err := increment(); {
				case err == nil:
					confirmed.Add(1)
				case errors.Is(err, holdfast.ErrHeld):
					time.Sleep(time.Millisecond)
				default:
					t.Errorf("writer %d: %v", i, err)
					return
				}
			}
		})
	}
	all.Wait()
	var version string
	r.NoError(r.pool.QueryRow(t.Context(), "SHOW server_version").Scan(&version))
	lost := int(confirmed.Load()) + 100 - r.countRows("SELECT balance FROM holdfast.account WHERE id = 7")
	if lost != 0 || confirmed.Load() == 0 {
		t.Errorf("%d of %d updates are lost", lost, confirmed.Load())
	}
	t.Logf("PostgreSQL %s: %d updates by %d writers, %d lost", version, confirmed.Load(), writers, lost)
}
