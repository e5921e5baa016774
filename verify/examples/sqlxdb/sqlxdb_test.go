package sqlxdb

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/verify/examples"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestLateHolderCannotWrite(t *testing.T) {
	t.Parallel()
	dsn, _ := examples.Database(t, "CREATE TABLE account AS SELECT 7 AS id, 100 AS balance")
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db := Database(pool)
	defer db.Close()
	locks, err := Locks(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	guard, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Create(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	examples.Late(t, locks, func(lease *holdfast.Lease) error {
		return WriteFenced(t.Context(), db, guard, lease, func(tx *sqlx.Tx) error {
			_, err := tx.NamedExecContext(t.Context(), "UPDATE account SET balance = balance + 1 WHERE id = :id", map[string]any{"id": 7})
			return err
		})
	}, fence.ErrStale)
	var balance int
	if err := db.GetContext(t.Context(), &balance, "SELECT balance FROM account"); err != nil || balance != 101 {
		t.Errorf("balance = %d, %v, want 101", balance, err)
	}
}
