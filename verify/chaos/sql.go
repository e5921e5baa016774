//go:build linux

package main

import (
	"bytes"
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
)

//go:embed schedule-mariadb.json
var mariadbSchedule []byte

// Neither has another library: people use GET_LOCK there, which has no TTL.
var (
	mariadbBackend = backendOn(onMariaDB, mariadbSchedule)
	mysqlBackend   = backendOn(onMySQL, bytes.Replace(mariadbSchedule, []byte(`"mariadb"`), []byte(`"mysql"`), 1))
)

func backendOn(p serverProduct, schedule []byte) *backend {
	return &backend{
		schedule: schedule, classes: maps.Clone(mariadbClasses), fewest: 1, site: func() site { return &mariadbSite{product: p} }, lead: twoSecondStart,
		open: func(ctx context.Context, o *order) (driver.Driver, error) {
			return mysql.Open(ctx, o.Nodes[0], &mysql.Options{NoCheck: true}) // faults may be in progress
		},
	}
}

// serverProduct is a server program, with the statements that faults need.
type serverProduct struct {
	start          func(ctx context.Context, settings ...string) (*mariaproc.Server, error)
	rejectWrites   string // makes new sessions read-only
	reloadIdentity string // makes the server read its certificate again
}

var (
	onMariaDB = serverProduct{mariaproc.Start, "SET GLOBAL tx_read_only = 1", "FLUSH SSL"}
	onMySQL   = serverProduct{mariaproc.StartMySQL, "SET GLOBAL transaction_read_only = 1", "ALTER INSTANCE RELOAD TLS"}
)

func mariadbURL(addr string) string { return "mysql://root@" + addr + "/chaos" }

var mariadbClasses = map[string]class{
	"calm":              {lives: true},
	after:               {lives: true},
	"client-pause":      {extra: deadWaiterTime},
	"client-kill":       {extra: deadWaiterTime},
	"client-close":      {},
	"client-throttle":   {from: fromEnd},
	"crowd":             {lives: true},
	"client-slow-hooks": {lives: true},
	"node-kill":         {from: fromEnd},
	"node-pause":        {from: fromEnd},
	"net-delay":         {},
	"rotation":          {from: fromEnd, lives: true, patient: true},
	"rotation-cut":      {from: fromEnd, extra: rotationPause, patient: true},
	"switch-over":       {from: fromEnd, lives: true, patient: true},
	"turnstile":         {lives: true, patient: true},
	"net-reset":         {from: fromEnd},
	"link-dead":         {lives: true, patient: true},
	"net-one-way":       {from: fromEnd},
	"net-split":         {from: fromEnd},
	"late-requests":     {duty: stretching, from: fromEnd, extra: deadWaiterTime},
	"operator":          {duty: passing, from: fromEnd, extra: deadWaiterTime},
	"mixed":             {from: fromEnd, extra: deadWaiterTime},
}

func (s *mariadbSite) start(ctx context.Context, schedule *Schedule) (err error) {
	s.end = func() (errs error) {
		if s.next != nil {
			errs = (<-s.next).stop()
		}
		if s.inside != nil {
			errs = errors.Join(errs, s.inside.Close())
		}
		return errors.Join(errs, startedServer{server: s.server}.stop(), os.RemoveAll(s.dir))
	}
	if s.dir, err = os.MkdirTemp("", "holdfast-chaos-"); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(s.dir, 0o755), s.makeCertificate(), s.trustCertificate()); err != nil {
		return err
	}
	if s.server, err = s.launchServer(ctx); err != nil {
		return err
	}
	if schedule.hasFault("switch") {
		s.prepareSuccessor()
	}
	if s.inside, err = faultproxy.NewOpaque(s.server.Socket()); err != nil {
		return err
	}
	if err := s.addMember(s.server, s.server.Socket()); err != nil {
		return err
	}
	d, err := mysql.Open(ctx, mariadbURL(s.inside.Addr()), &mysql.Options{NoCheck: true})
	if err != nil {
		return err
	}
	s.direct = d
	return d.Migrate(ctx)
}

func (s *mariadbSite) setConnections(o *order, client int) {
	o.Nodes = []string{mariadbURL(s.members[0].proxies[client%sides].Addr()) + "?ca=" + s.authorities()}
}

func (s *mariadbSite) leader(context.Context) int { return 0 }

func (s *mariadbSite) actions() map[string]action {
	all := s.turnstiles().actions()
	all["rotate"], all["switch"] = s.rotate, s.switchToCopy
	return all
}

//go:embed schedule-sqlite.json
var sqliteSchedule []byte

// sqliteBackend is a file. It has no other library: flock has no TTL.
var sqliteBackend = &backend{
	schedule: sqliteSchedule, classes: sqliteClasses, fewest: 1, site: func() site { return new(sqliteSite) }, lead: twoSecondStart,
	open: func(ctx context.Context, o *order) (driver.Driver, error) { return sqlite.Open(ctx, o.Nodes[0], nil) },
}

// A suspended client may be in the middle of a write, which blocks all others.
var sqliteClasses = map[string]class{
	"calm":              {lives: true},
	after:               {lives: true},
	"client-pause":      {from: fromEnd, extra: deadWaiterTime},
	"client-kill":       {extra: deadWaiterTime},
	"client-close":      {},
	"client-throttle":   {from: fromEnd},
	"crowd":             {lives: true},
	"client-slow-hooks": {lives: true},
	"file-hog":          {from: fromEnd},
	"bell":              {lives: true, patient: true},
	"bell-stopped":      {from: fromEnd, extra: deadWaiterTime},
	"late-requests":     {duty: stretching, from: fromEnd, extra: deadWaiterTime},
	"operator":          {duty: passing, from: fromEnd, extra: deadWaiterTime},
	"mixed":             {from: fromEnd, extra: deadWaiterTime},
}

// sqliteSite is a file in a folder, which counts as one node.
type sqliteSite struct {
	ensemble
	dir string
}

func (s *sqliteSite) url() string { return "sqlite://" + filepath.Join(s.dir, "locks.db") }

func (s *sqliteSite) start(ctx context.Context, _ *Schedule) (err error) {
	if s.dir, err = os.MkdirTemp("", "holdfast-chaos-"); err != nil {
		return err
	}
	s.end = func() error { return os.RemoveAll(s.dir) }
	s.members = []*node{{}}
	d, err := sqlite.Open(ctx, s.url(), nil)
	if err != nil {
		return err
	}
	s.direct = d
	return nil
}

func (s *sqliteSite) leader(context.Context) int { return 0 }

func (s *sqliteSite) setConnections(o *order, _ int) { o.Nodes = []string{s.url()} }

func (s *sqliteSite) actions() map[string]action {
	return map[string]action{"hog-file": s.writeToFile, "hide-bells": s.hideBells, "ring-falsely": s.ringFalsely}
}

// writeToFile makes another program write to the file for the duration of the fault.
func (s *sqliteSite) writeToFile(f Fault, _ int, rest func(time.Duration)) error {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.dir, "locks.db")+"?_txlock=immediate&_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		return fmt.Errorf("hog the file: %w", err)
	}
	rest(time.Duration(f.For))
	return errors.Join(tx.Rollback())
}
