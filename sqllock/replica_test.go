package sqllock_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// splittingConnector is a proxy that sends the reads of renewals to a lagging replica: a table that the test fills.
type splittingConnector struct {
	sqldriver.Connector
	prefix string
}

func (s splittingConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return splitConn{conn.(mysqlConn), s.prefix}, nil
}

type mysqlConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.NamedValueChecker
	sqldriver.SessionResetter
	sqldriver.Validator
}

type splitConn struct {
	mysqlConn
	prefix string
}

func (c splitConn) QueryContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if strings.Contains(text, aLook) {
		text = strings.ReplaceAll(text, c.prefix+"lock", c.prefix+"replica")
	}
	return c.mysqlConn.QueryContext(ctx, text, args)
}

// A lease that the primary has renewed is renewed, even if the replica shows an older state. A row of a later
// holder is a loss.
func TestLeaseSurvivesLaggingReplica(t *testing.T) {
	for name, c := range map[string]struct {
		row  string // the replica's row, with $owner and $token
		lost bool
	}{
		"no row yet":             {"", false},
		"the holder before":      {"'other', $token - 1048576, $later", false},
		"nobody before":          {"'', $token - 1048576, 1", false},
		"its grant, as of then":  {"$owner, $token, 1", false},
		"its grant, as of now":   {"$owner, $token, $later", false},
		"the next holder":        {"'other', $token + 1048576, $later", true},
		"freed by somebody":      {"'', $token, 1", true},
		"its owner, later grant": {"$owner, $token + 1048576, $later", true},
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, []database{onMariaDB, onMySQL}, func(r *rig) {
				r.execSQL("CREATE TABLE holdfast_replica LIKE holdfast_lock")
				cfg, err := mysql.ParseDSN("root@unix(" + r.socketPath() + ")/test?interpolateParams=true")
				r.NoError(err)
				to, err := mysql.NewConnector(cfg)
				r.NoError(err)
				db := sql.OpenDB(splittingConnector{to, r.prefix})
				defer db.Close()
				d, err := r.openOn(db)
				fixture.CloseAtEnd(r.Rig, d, err)
				g := r.AcquireGrant(d, "k", long)
				if c.row != "" {
					row := strings.NewReplacer("$owner", "'"+g.Owner+"'", "$token", fmt.Sprint(g.Token), "$later", fmt.Sprint(time.Now().Add(long).UnixMicro())).Replace(c.row)
					r.execSQL("INSERT INTO holdfast_replica (name, owner, token, expires, stamp, holder, since, places) VALUES ('k', " + row + ", 1, '{}', 1, 0)")
				}
				d.Detach(g) // the driver forgets the stamp, so the renewal reads the lock
				out := d.Renew(r.WaitContext(), []driver.Grant{g})[0]
				switch {
				case errors.Is(out.Err, driver.ErrLost) != c.lost, out.Err != nil && !c.lost:
					r.Errorf("Renew() = %v, want that the lease is lost: %v", out.Err, c.lost)
				case !c.lost && !out.TrustedUntil.After(g.TrustedUntil):
					r.Errorf("Renew() leaves it trusted until %v, want more than %v", out.TrustedUntil, g.TrustedUntil)
				}
				r.NoError(d.Release(r.WaitContext(), g, 0))
			})
		})
	}
}

// A lagging replica returns a row from before the grant. Check returns ErrUnavailable, and an adoption waits
// for the newer row.
func TestStaleReadIsNotLoss(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		d, heir := r.newDriver(), r.newDriver()
		g := r.AcquireAdoptable(d, long)
		r.execSQL("UPDATE holdfast_lock SET token = token - 1048576, owner = 'other'")
		if err := d.Check(r.WaitContext(), g); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrLost) {
			r.Errorf("Check() = %v, want ErrUnavailable", err)
		}
		adopted := make(chan error, 1)
		var own driver.Grant
		go func() {
			var err error
			own, err = heir.Adopt(r.WaitContext(), g)
			adopted <- err
		}()
		select {
		case err := <-adopted:
			r.Fatalf("Adopt() = %v, want that it asks again", err)
		case <-time.After(100 * time.Millisecond):
		}
		r.execSQL("UPDATE holdfast_lock SET token = token + 1048576, owner = '" + g.Owner + "'")
		r.NoError(<-adopted)
		r.NoError(heir.Release(r.WaitContext(), own, 0))
		r.checkCleared()
	})
}
