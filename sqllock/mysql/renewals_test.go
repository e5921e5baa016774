package mysql_test

import (
	"database/sql"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
)

// More reads are in progress than the pool has connections, and the server answers none of them.
func TestReadsDoNotDelayRenewal(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	const looks = 40
	server, err := mariaproc.Start(t.Context())
	fixture.StopAtEnd(t, server, err)
	r := fixture.New(t)
	root, err := sql.Open("mysql", "root@unix("+server.Socket()+")/")
	r.NoError(err)
	defer root.Close()
	_, err = root.ExecContext(t.Context(), "CREATE DATABASE locks")
	r.NoError(err)
	relay := fixture.Relay(r, server.Socket(), func() fixture.Protocol { return &fixture.MySQL{} })
	d, err := mysql.Open(r.WaitContext(), "mysql://root@"+relay.Addr+"/locks", &mysql.Options{NoCheck: true})
	fixture.CloseAtEnd(r, d, err)
	r.NoError(d.Migrate(r.WaitContext()))
	g := r.AcquireGrant(d, "k", fixture.LongTTL)
	relay.Halt("LEFT JOIN") // a read of a lock
	seen := make(chan error, looks)
	for range looks {
		go func() {
			_, err := d.Inspect(r.Context(), "k")
			seen <- err
		}()
	}
	for range 7 {
		<-relay.Caught
	}
	renewed := fixture.RunAsync(func() driver.Renewal { return d.Renew(r.WaitContext(), []driver.Grant{g})[0] })
	select {
	case out := <-renewed:
		r.NoError(out.Err)
	case err := <-seen:
		t.Errorf("a read was cancelled before the renewal: %v", err)
		<-renewed
	}
	relay.Resume()
}
