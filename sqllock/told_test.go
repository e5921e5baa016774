package sqllock_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// forgetfulConnector connects to a server that does not return what LAST_INSERT_ID has kept. Some servers that only
// speak the MySQL protocol, and some proxies, are like that.
type forgetfulConnector struct {
	sqldriver.Connector
	tells int64 // the number that it returns instead
}

func (f forgetfulConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	c, err := f.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return forgetfulConn{c.(mysqlConn), f.tells}, nil
}

type forgetfulConn struct {
	mysqlConn
	tells int64
}

func (c forgetfulConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	res, err := c.mysqlConn.ExecContext(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return knownResult{res, c.tells}, nil
}

type knownResult struct {
	sqldriver.Result
	id int64
}

func (r knownResult) LastInsertId() (int64, error) {
	if r.id < 0 {
		return 0, errors.New("there is no such id")
	}
	return r.id, nil
}

// The driver never returns a wrong token if the server returns another number or none.
func TestMissingTokenIsReadFromRow(t *testing.T) {
	for _, tells := range []int64{0, 5, -1} {
		t.Run(fmt.Sprint(tells), func(t *testing.T) {
			forEach(t, []database{onMariaDB}, func(r *rig) {
				plain, err := r.db.Driver().(sqldriver.DriverContext).OpenConnector("root@unix(" + r.socketPath() + ")/test?interpolateParams=true")
				r.NoError(err)
				db := sql.OpenDB(forgetfulConnector{plain, tells})
				r.Cleanup(func() { db.Close() })
				d, err := r.openOn(db)
				r.NoError(err)
				defer d.Close()
				for range 3 { // a first row, a known row, and a row known to be free
					before := r.countRows("SELECT COALESCE(MAX(token), 0) FROM holdfast_lock")
					g, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: long})
					r.NoError(err)
					if token := r.countRows("SELECT token FROM holdfast_lock"); g.Token != int64(token) || token <= before {
						t.Errorf("token %d, and the lock row has %d after %d", g.Token, token, before)
					}
					r.NoError(d.Release(r.WaitContext(), g, 0))
				}
				r.checkCleared()
			})
		})
	}
}
