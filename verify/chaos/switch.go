//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// In a switch-over another server takes over from a healthy database. The new server has all confirmed writes.
// The old one keeps running with its connections and rejects writes; new connections lead to the new one.

const (
	switchTime = 30 * time.Second
	settle     = 100 * time.Millisecond // usually enough for all sessions to read a setting
	// prepareTime bounds the start of the next server: on a slower machine the fault is skipped, because it
	// would reach into the next window.
	prepareTime = 4 * time.Second
)

// passfile returns the file with the password of user, for clients that bypass the pooler.
func (s *postgresSite) passfile() string { return filepath.Join(s.dir, "passfile") }

func (s *postgresSite) writePassfile(password string) error {
	return replaceFile(s.passfile(), "*:*:*:"+user+":"+password+"\n")
}

// wantPasswords creates user, from whom the server requires a password.
func (s *postgresSite) wantPasswords(ctx context.Context) error {
	db, err := sql.Open("pgx", s.server.DSN())
	if err != nil {
		return err
	}
	defer db.Close()
	var file string
	if err := db.QueryRowContext(ctx, "SHOW hba_file").Scan(&file); err != nil {
		return err
	}
	rules, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append([]byte("local all "+user+" scram-sha-256\n"), rules...), 0o600)
	}
	for _, text := range []string{"CREATE ROLE " + user + " SUPERUSER LOGIN PASSWORD '" + firstPassword + "'", "SELECT pg_reload_conf()"} {
		if err == nil {
			_, err = db.ExecContext(ctx, text)
		}
	}
	return errors.Join(err, s.writePassfile(firstPassword))
}

// rotate changes the password. The clients get the new password By later.
func (s *postgresSite) rotate(f Fault, victim int, rest func(time.Duration)) error {
	v := s.only[victim]
	v.life.Lock()
	defer v.life.Unlock()
	db, err := sql.Open("pgx", s.server.DSN())
	if err != nil {
		return err
	}
	defer db.Close()
	return rotation{nodes: s.only, change: func(turn int) error {
		_, err := db.ExecContext(context.Background(), "ALTER ROLE "+user+" PASSWORD '"+passwords[turn]+"'")
		return err
	}, tell: func(turn int) error { return s.writePassfile(passwords[turn]) }}.run(f, rest)
}

// promoteReplica makes a replica take over.
func (s *postgresSite) promoteReplica(f Fault, victim int, rest func(time.Duration)) error {
	v := s.only[victim]
	v.life.Lock()
	defer v.life.Unlock()
	s.life.Lock()
	defer s.life.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), switchTime)
	defer cancel()
	began := monotonicNow()
	replica, err := s.server.StartReplica(ctx)
	if err != nil {
		return err
	}
	pooler, err := pgproc.StartPooler(ctx, replica, "transaction", 40)
	if err != nil || monotonicNow()-began > int64(prepareTime) {
		if err == nil {
			err = pooler.Stop()
		}
		return errors.Join(err, replica.Stop())
	}
	begun := monotonicNow()
	if err := takeOver(ctx, s.server, replica, rest); err != nil {
		return errors.Join(err, pooler.Stop(), replica.Stop())
	}
	v.proxies[0].Redirect(socketOf(replica.DSN()))
	v.proxies[1].Redirect(socketOf(pooler.DSN()))
	v.noteOutage(begun)
	s.inside.Redirect(socketOf(replica.DSN()))
	s.inside.Cut()
	old, oldPooler := s.server, s.pooler
	s.server, s.pooler = replica, pooler
	v.server, v.pooler = replica, pooler
	rest(time.Duration(f.For))
	return errors.Join(oldPooler.Stop(), old.Stop())
}

// takeOver makes the old primary reject writes, and promotes the replica once that has all writes.
func takeOver(ctx context.Context, primary, replica *pgproc.Server, rest func(time.Duration)) error {
	from, err := sql.Open("pgx", primary.DSN())
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := sql.Open("pgx", replica.DSN())
	if err != nil {
		return err
	}
	defer to.Close()
	set := func(setting string) error {
		_, err := from.ExecContext(ctx, "ALTER SYSTEM SET "+setting)
		if err == nil {
			_, err = from.ExecContext(ctx, "SELECT pg_reload_conf()")
		}
		return err
	}
	// A session may read the setting late and write once more. A write that the replica lacks is never
	// confirmed.
	if err := set("synchronous_standby_names = '*'"); err != nil {
		return err
	}
	for waits := false; !waits && ctx.Err() == nil; rest(10 * time.Millisecond) {
		err := from.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming')").Scan(&waits)
		if err != nil {
			return err
		}
	}
	if err := set("default_transaction_read_only = on"); err != nil {
		return err
	}
	rest(settle)
	// Transactions that began earlier continue. All have ended once the number of the next transaction stays
	// constant.
	const unfinished = `SELECT pg_snapshot_xmax(pg_current_snapshot())::text, pg_snapshot_xmin(pg_current_snapshot()) < pg_snapshot_xmax(pg_current_snapshot())
		OR EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start < $1), pg_current_wal_lsn()::text`
	var since time.Time
	if err := from.QueryRowContext(ctx, "SELECT clock_timestamp()").Scan(&since); err != nil {
		return err
	}
	for before, done := "", false; !done && ctx.Err() == nil; rest(10 * time.Millisecond) {
		var next, position string
		var busy, has bool
		if err := from.QueryRowContext(ctx, unfinished, since).Scan(&next, &busy, &position); err != nil {
			return err
		}
		if err := to.QueryRowContext(ctx, "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn", position).Scan(&has); err != nil {
			return err
		}
		done, before = !busy && has && next == before, next
	}
	_, err = to.ExecContext(ctx, "SELECT pg_promote()")
	return errors.Join(err, ctx.Err())
}

// startedServer is a server that was started for a switch-over, or the error of its start.
type startedServer struct {
	server *mariaproc.Server
	err    error
}

func (l startedServer) stop() error {
	if l.server == nil {
		return l.err
	}
	return l.server.Stop()
}

// prepareSuccessor starts the server that takes over next, because the start of MySQL takes longer than a
// fault.
func (s *mariadbSite) prepareSuccessor() {
	s.next = make(chan startedServer, 1)
	go func(into chan<- startedServer) {
		ctx, cancel := context.WithTimeout(context.Background(), switchTime)
		defer cancel()
		server, err := s.launchServer(ctx)
		into <- startedServer{server, err}
	}(s.next)
}

// switchToCopy makes a new server take over, with a copy of all tables.
func (s *mariadbSite) switchToCopy(f Fault, victim int, rest func(time.Duration)) error {
	v := s.members[victim]
	v.life.Lock()
	defer v.life.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), switchTime)
	defer cancel()
	var next startedServer
	select {
	case next = <-s.next:
		defer s.prepareSuccessor()
	case <-time.After(prepareTime):
		return nil
	}
	if next.err != nil {
		return next.err
	}
	begun := monotonicNow()
	err := s.reloadIdentity(ctx, next.server) // it may have started with an older certificate
	if err == nil {
		err = s.copyTables(ctx, next.server.Socket(), rest)
	}
	if err != nil {
		return errors.Join(err, next.stop())
	}
	for _, p := range append(v.proxies[:], s.inside) {
		p.Redirect(next.server.Socket())
	}
	v.noteOutage(begun)
	s.inside.Cut()
	old := s.server
	s.server, v.server = next.server, next.server
	rest(time.Duration(f.For))
	return old.Stop()
}

// copyTables makes the server reject writes, and copies its tables to another one.
func (s *mariadbSite) copyTables(ctx context.Context, to string, rest func(time.Duration)) error {
	old, err := sql.Open("mysql", "root@unix("+s.server.Socket()+")/chaos")
	if err != nil {
		return err
	}
	defer old.Close()
	next, err := sql.Open("mysql", "root@unix("+to+")/chaos")
	if err != nil {
		return err
	}
	defer next.Close()
	old.SetMaxOpenConns(1)
	// Sessions keep the setting that they began with, so kill those that began before; new connections still
	// lead here.
	if _, err := old.ExecContext(ctx, s.product.rejectWrites); err != nil {
		return err
	}
	const others = "FROM information_schema.processlist WHERE command <> 'Daemon' AND id <> connection_id() AND id <= ?"
	var last int64
	if err := old.QueryRowContext(ctx, "SELECT max(id) FROM information_schema.processlist").Scan(&last); err != nil {
		return err
	}
	for left := 1; left > 0 && ctx.Err() == nil; rest(10 * time.Millisecond) {
		ids, err := readColumn(ctx, old, "SELECT id "+others, last)
		if err != nil {
			return err
		}
		left = len(ids)
		for _, id := range ids {
			old.ExecContext(ctx, "KILL "+id) // ignore an error: it may have ended
		}
	}
	tables, err := readColumn(ctx, old, "SHOW TABLES")
	for _, table := range tables {
		err = errors.Join(err, copyTable(ctx, old, next, table))
	}
	return errors.Join(err, ctx.Err())
}

func readColumn(ctx context.Context, db *sql.DB, query string, args ...any) (out []string, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, rows.Err()
}

func copyTable(ctx context.Context, from, to *sql.DB, table string) error {
	var create string
	if err := from.QueryRowContext(ctx, "SHOW CREATE TABLE "+table).Scan(&table, &create); err != nil {
		return err
	}
	if _, err := to.ExecContext(ctx, create); err != nil {
		return err
	}
	rows, err := from.QueryContext(ctx, "SELECT * FROM "+table)
	if err != nil {
		return err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return err
	}
	insert := fmt.Sprintf("INSERT INTO %s (%s) VALUES (?%s)", table, strings.Join(names, ", "), strings.Repeat(", ?", len(names)-1))
	tx, err := to.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	row, into := make([]any, len(names)), make([]any, len(names))
	for i := range row {
		into[i] = &row[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, insert, row...); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), tx.Commit())
}

// makeCertificate creates a new certificate, which the servers use once they reload it.
func (s *mariadbSite) makeCertificate() error {
	_, err := redisproc.NewCertificate(s.dir)
	return errors.Join(err, os.Chmod(filepath.Join(s.dir, "tls.crt"), 0o644), os.Chmod(filepath.Join(s.dir, "tls.key"), 0o644))
}

// trustCertificate makes the clients trust the current certificate.
func (s *mariadbSite) trustCertificate() error {
	text, err := os.ReadFile(filepath.Join(s.dir, "tls.crt"))
	return errors.Join(err, replaceFile(s.authorities(), string(text)))
}

// authorities returns the file with the authorities that clients trust.
func (s *mariadbSite) authorities() string { return filepath.Join(s.dir, "ca.pem") }

// rotate makes the server use a new self-signed certificate. The clients trust it By later.
func (s *mariadbSite) rotate(f Fault, victim int, rest func(time.Duration)) error {
	v := s.members[victim]
	v.life.Lock()
	defer v.life.Unlock()
	return rotation{nodes: s.members, change: func(int) error {
		return errors.Join(s.makeCertificate(), s.reloadIdentity(context.Background(), s.server))
	}, tell: func(int) error { return s.trustCertificate() }}.run(f, rest)
}

// reloadIdentity makes a server read its certificate again.
func (s *mariadbSite) reloadIdentity(ctx context.Context, server *mariaproc.Server) error {
	db, err := sql.Open("mysql", "root@unix("+server.Socket()+")/")
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, s.product.reloadIdentity)
	return err
}

// launchServer starts a server with an empty database.
func (s *mariadbSite) launchServer(ctx context.Context) (*mariaproc.Server, error) {
	server, err := s.product.start(ctx, "--max-connections=400",
		"--innodb-flush-log-at-trx-commit=2", // what was committed outlasts a kill
		"--innodb-flush-method=nosync",       // a slow disk would stop the server like a fault
		"--ssl-cert="+filepath.Join(s.dir, "tls.crt"), "--ssl-key="+filepath.Join(s.dir, "tls.key"))
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("mysql", "root@unix("+server.Socket()+")/")
	if err == nil {
		_, err = db.ExecContext(ctx, "CREATE DATABASE chaos")
		db.Close()
	}
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return server, nil
}

// mariadbSite is one server of MariaDB or MySQL.
type mariadbSite struct {
	ensemble
	product serverProduct
	dir     string // folder of certificates; the server's user can read it
	server  *mariaproc.Server
	next    chan startedServer // server for the next switch-over; nil: none
	inside  *faultproxy.Proxy  // to the server, for this program, without faults
}
