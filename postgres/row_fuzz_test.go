package postgres_test

import (
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/postgres"
)

// FuzzLockRow: the clause that LockRow appends to a query is never part of a comment or a string, and changes
// no table.
func FuzzLockRow(f *testing.F) {
	for _, query := range []string{
		"SELECT balance FROM account WHERE id = $1", `select a."x""y" from only s."A" as a -- c`, "SELECT '' /* /* */ */ FROM a b ORDER BY 1",
		"SELECT $$'$$, $a$ $$ $a$ FROM t", "SELECT x IS DISTINCT FROM y FROM t;", "SELECT (TABLE b) FROM a", "SELECT 'x",
		`SELECT '\' FROM a`, "SELECT é FROM ü.ö",
	} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		table, seen, err := postgres.LockedTable(query)
		if err != nil {
			return
		}
		again, more, err := postgres.LockedTable(query + "\nFOR UPDATE NOWAIT")
		if err != nil || again != table || !slices.Equal(more, append(seen, "FOR", "UPDATE", "NOWAIT")) {
			t.Errorf("%q reads %q and %q; with the lock %q and %q, %v", query, table, seen, again, more, err)
		}
	})
}
