package gormdb

import (
	"errors"
	"os"
	"testing"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/verify/examples"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

type account struct {
	ID      int
	Balance int
}

func TestLateHolderCannotWrite(t *testing.T) {
	t.Parallel()
	pool := examples.MariaDB(t)
	for name, prepare := range map[string]bool{"plain": false, "prepared": true} {
		t.Run(name, func(t *testing.T) {
			db, err := gorm.Open(mysql.New(mysql.Config{Conn: pool}), &gorm.Config{PrepareStmt: prepare})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.AutoMigrate(&account{}), db.Save(&account{ID: 7, Balance: 100}).Error); err != nil {
				t.Fatal(err)
			}
			locks, err := Locks(t.Context(), db)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Close()
			guard, err := sqlfence.New(sqlfence.MySQL, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := guard.Create(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			add := func(lease *holdfast.Lease) error {
				return WriteFenced(t.Context(), db, guard, lease, func(tx *gorm.DB) error {
					if err := LockRow(t.Context(), tx, "accounts", "id", 7); err != nil {
						return err
					}
					return tx.Model(&account{ID: 7}).Update("balance", gorm.Expr("balance + 1")).Error
				})
			}
			examples.Late(t, locks, add, fence.ErrStale)
			var now account
			if err := db.Take(&now, 7).Error; err != nil || now.Balance != 101 {
				t.Errorf("balance = %d, %v, want 101", now.Balance, err)
			}
			if err := LockRow(t.Context(), db, "accounts", "id", 7); err == nil {
				t.Error("a row was locked without a transaction")
			}
		})
	}
}
