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

// Also before the default prefix.
func TestPrefixMayNameSchema(t *testing.T) {
	for _, bare := range []string{"holdfast_", "l_", "holdfast_ticket_"} {
		t.Run(bare, func(t *testing.T) {
			forEach(t, kinds, func(r *rig) {
				schema := "s" + r.prefix[:len(r.prefix)-1]
				switch r.dialect {
				case sqllock.SQLite:
					r.db.SetMaxOpenConns(1) // the connection with the attached file
					_, err := r.db.ExecContext(r.Context(), "ATTACH ? AS "+schema, filepath.Join(t.TempDir(), "second.db"))
					r.Must(err)
				case sqllock.MySQL:
					r.execSQL("CREATE DATABASE " + schema)
				}
				d, err := sqllock.New(r.Context(), r.db, r.dialect, &sqllock.Options{Prefix: schema + "." + bare, NoCheck: true})
				fixture.Closed(r.Rig, d, err)
				r.Must(d.Migrate(r.Within()))
				r.Must(d.Migrate(r.Within()))
				g := r.Grant(d, "k", long)
				r.Must(d.Renew(r.Within(), []driver.Grant{g})[0].Err)
				r.Must(d.Release(r.Within(), g, 0))
				var n int
				if r.Must(r.db.QueryRowContext(r.Within(), "SELECT COUNT(*) FROM "+schema+"."+bare+"lock").Scan(&n)); n != 1 {
					r.Errorf("%d rows are in the table of the prefix", n)
				}
			})
		})
	}
}

// MySQL and MariaDB then reject changes at READ COMMITTED. The doctor also checks the binlog.
func TestStatementBinlogWorksAtAnyLevel(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	r := fixture.New(t)
	s, err := mariaproc.Start(t.Context(), "--log-bin", "--binlog-format=STATEMENT", "--sync-binlog=0", "--innodb-flush-log-at-trx-commit=1")
	fixture.Stopped(t, s, err)
	r.Must(prepareServer(t.Context(), s))
	for _, level := range []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"} {
		db, err := sql.Open("mysql", "root@unix("+s.Socket()+")/test?tx_isolation=%27"+level+"%27")
		r.Must(err)
		defer db.Close()
		prefix := strings.ReplaceAll(level, "-", "_") + "_"
		d, err := sqllock.New(r.Within(), db, sqllock.MySQL, &sqllock.Options{NoCheck: true, Prefix: prefix})
		fixture.Closed(r, d, err)
		r.Must(d.Migrate(r.Within()))
		other, err := sqllock.New(r.Within(), db, sqllock.MySQL, &sqllock.Options{Prefix: prefix})
		fixture.Closed(r, other, err)
		g := r.Grant(other, "k", long)
		r.Must(other.Renew(r.Within(), []driver.Grant{g})[0].Err)
		r.Must(other.Release(r.Within(), g, 0))
		found := ""
		for _, f := range other.Diagnose(r.Within(), 0) {
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
