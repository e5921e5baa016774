package sqllock_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/sqllock"
)

// The prefix may name another schema in front of the default prefix too.
func TestPrefixMayNameSchema(t *testing.T) {
	for _, bare := range []string{"holdfast_", "l_", "holdfast_ticket_"} {
		t.Run(bare, func(t *testing.T) {
			forEach(t, kinds, func(r *rig) {
				schema := "s" + r.prefix[:len(r.prefix)-1]
				switch r.dialect {
				case sqllock.SQLite:
					r.db.SetMaxOpenConns(1) // the connection with the attached file
					_, err := r.db.ExecContext(r.Context(), "ATTACH ? AS "+schema, filepath.Join(t.TempDir(), "second.db"))
					r.NoError(err)
				case sqllock.MySQL:
					r.execSQL("CREATE DATABASE " + schema)
				}
				d, err := sqllock.New(r.Context(), r.db, r.dialect, &sqllock.Options{Prefix: schema + "." + bare, NoCheck: true})
				fixture.CloseAtEnd(r.Rig, d, err)
				r.NoError(d.Migrate(r.WaitContext()))
				r.NoError(d.Migrate(r.WaitContext()))
				g := r.AcquireGrant(d, "k", long)
				r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
				r.NoError(d.Release(r.WaitContext(), g, 0))
				var n int
				if r.NoError(r.db.QueryRowContext(r.WaitContext(), "SELECT COUNT(*) FROM "+schema+"."+bare+"lock").Scan(&n)); n != 1 {
					r.Errorf("%d rows are in the prefixed table", n)
				}
			})
		})
	}
}

// With a statement-based binlog, MySQL and MariaDB reject changes at READ COMMITTED. The doctor also checks the
// binlog.
func TestStatementBinlogWorksAtAnyLevel(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	r := fixture.New(t)
	s, err := mariaproc.Start(t.Context(), "--log-bin", "--binlog-format=STATEMENT", "--sync-binlog=0", "--innodb-flush-log-at-trx-commit=1")
	fixture.StopAtEnd(t, s, err)
	r.NoError(prepareServer(t.Context(), s))
	for _, level := range []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"} {
		db, err := sql.Open("mysql", "root@unix("+s.Socket()+")/test?tx_isolation=%27"+level+"%27")
		r.NoError(err)
		defer db.Close()
		prefix := strings.ReplaceAll(level, "-", "_") + "_"
		d, err := sqllock.New(r.WaitContext(), db, sqllock.MySQL, &sqllock.Options{NoCheck: true, Prefix: prefix})
		fixture.CloseAtEnd(r, d, err)
		r.NoError(d.Migrate(r.WaitContext()))
		other, err := sqllock.New(r.WaitContext(), db, sqllock.MySQL, &sqllock.Options{Prefix: prefix})
		fixture.CloseAtEnd(r, other, err)
		g := r.AcquireGrant(other, "k", long)
		r.NoError(other.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
		r.NoError(other.Release(r.WaitContext(), g, 0))
		found := ""
		for _, f := range other.Diagnose(r.WaitContext(), 0) {
			if f.Check == "durability" {
				found = f.Fix
			} else if f.Bad() {
				t.Errorf("%s: %+v", level, f)
			}
		}
		if found != "set sync_binlog to 1, as log_bin is on" {
			t.Errorf("%s: the doctor advises %q, want sync_binlog", level, found)
		}
	}
}
