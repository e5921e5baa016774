package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/sqllock/mysql"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
	"github.com/holdfast-go/holdfast/verify/tool"
)

const uniqueKeyName = "unique key"

var mysqlLibraries = []library{
	{name: holdfastName, open: func(ctx context.Context, addrs []string, _ int) (client, error) {
		return newHoldfastClient(mysql.Open(ctx, addrs[0], nil))
	}},
	// As in the manual: the lock belongs to a session, so each holder and waiter has its own connection.
	{name: "GET_LOCK", open: func(_ context.Context, addrs []string, workers int) (client, error) {
		db, err := openMySQL(addrs[0], workers)
		return sessionClient{db}, err
	}},
	{name: uniqueKeyName, open: func(_ context.Context, addrs []string, workers int) (client, error) {
		db, err := openMySQL(addrs[0], workers)
		return uniqueClient{db, "INSERT IGNORE INTO busy (name) VALUES (?)"}, err
	}},
}

var sqliteLibraries = []library{
	{name: holdfastName, open: func(ctx context.Context, addrs []string, _ int) (client, error) {
		return newHoldfastClient(sqlite.Open(ctx, "sqlite://"+addrs[0], nil))
	}},
	// One file per name, beside SQLite's file; it stays.
	{name: "flock", open: func(_ context.Context, addrs []string, _ int) (client, error) {
		return flockClient(filepath.Dir(addrs[0])), nil
	}},
	{name: uniqueKeyName, open: func(_ context.Context, addrs []string, _ int) (client, error) {
		db, err := openSQLite(addrs[0])
		return uniqueClient{db, "INSERT INTO busy (name) VALUES (?) ON CONFLICT DO NOTHING"}, err
	}},
}

// uniqueTable is the table of the naive lock.
const uniqueTable = "CREATE TABLE busy (name VARCHAR(255) PRIMARY KEY)"

// startMySQL returns a function that starts a server of MariaDB or MySQL.
func startMySQL(server func(context.Context, ...string) (*mariaproc.Server, error), settings ...string) func(context.Context) (*service, error) {
	return func(ctx context.Context) (*service, error) {
		s, err := server(ctx, append([]string{"--max-connections=3000"}, settings...)...)
		if err != nil {
			return nil, err
		}
		db, err := sql.Open("mysql", "root@unix("+s.Socket()+")/")
		if err != nil {
			return nil, errors.Join(err, s.Stop())
		}
		addr := "mysql+unix://root@" + s.Socket() + "?db=bench"
		sv := &service{nodes: 1, addrs: []string{addr}, libraries: mysqlLibraries, idle: 1}
		sv.stop = func() error { return errors.Join(db.Close(), s.Stop()) }
		sv.spent = func(ctx context.Context) (requests int64, cpu time.Duration, err error) {
			var name string
			err = db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &requests)
			return requests, processorTime(s.Pid()), err
		}
		for _, text := range []string{"CREATE DATABASE bench", strings.Replace(uniqueTable, "busy", "bench.busy", 1)} {
			_, err = db.ExecContext(ctx, text)
			if err != nil {
				return nil, errors.Join(err, sv.stop())
			}
		}
		if err := tool.MakeTables(ctx, addr); err != nil {
			return nil, errors.Join(err, sv.stop())
		}
		return sv, nil
	}
}

// startFarMySQL returns a function that starts such a server behind a millisecond of network.
func startFarMySQL(server func(context.Context, ...string) (*mariaproc.Server, error), settings ...string) func(context.Context) (*service, error) {
	return func(ctx context.Context) (*service, error) {
		var socket string
		sv, err := startMySQL(func(ctx context.Context, settings ...string) (*mariaproc.Server, error) {
			s, err := server(ctx, settings...)
			if err == nil {
				socket = s.Socket()
			}
			return s, err
		}, settings...)(ctx)
		if err != nil {
			return nil, err
		}
		p, err := faultproxy.NewOpaque(socket)
		if err != nil {
			return nil, errors.Join(err, sv.stop())
		}
		p.SetDelay(time.Millisecond)
		stop := sv.stop
		sv.addrs, sv.stop = []string{"mysql://root@" + p.Addr() + "/bench"}, func() error { return errors.Join(p.Close(), stop()) }
		return sv, nil
	}
}

// openMySQL opens a pool that keeps one connection per worker. A wait for GET_LOCK occupies its connection.
func openMySQL(url string, workers int) (*sql.DB, error) {
	at, _, _ := strings.Cut(strings.TrimPrefix(url, "mysql+unix://root@"), "?")
	way := "unix(" + at + ")"
	if address, far := strings.CutPrefix(url, "mysql://root@"); far {
		way = "tcp(" + strings.TrimSuffix(address, "/bench") + ")"
	}
	db, err := sql.Open("mysql", "root@"+way+"/bench?interpolateParams=true")
	if err == nil {
		db.SetMaxIdleConns(workers)
	}
	return db, err
}

// startSQLite creates a folder for the file.
func startSQLite(ctx context.Context) (*service, error) {
	dir, err := os.MkdirTemp("", "holdfast-sqlite-")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "locks.db")
	sv := &service{nodes: 1, addrs: []string{path}, libraries: sqliteLibraries, idle: 1, stop: func() error { return os.RemoveAll(dir) }}
	db, err := openSQLite(path)
	if err == nil {
		_, err = db.ExecContext(ctx, uniqueTable)
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		return nil, errors.Join(err, sv.stop())
	}
	return sv, nil
}

// openSQLite opens a file with the settings and the sql driver of Holdfast.
func openSQLite(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)")
}

// sessionClient locks with GET_LOCK.
type sessionClient struct{ *sql.DB }

func (c sessionClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	conn, err := c.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var got sql.NullInt64
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 3600)", name).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = errors.New("GET_LOCK has given no lock")
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return func(ctx context.Context) error {
		_, err := conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", name)
		return errors.Join(err, conn.Close())
	}, nil
}

func (c sessionClient) close() { c.DB.Close() }

// uniqueClient is the lock that many programs write themselves: a row that only one client can insert, tried
// every 50 ms. The lock of a dead program stays forever.
type uniqueClient struct {
	*sql.DB
	insert string
}

func (c uniqueClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	for {
		res, err := c.ExecContext(ctx, c.insert, name)
		if err != nil {
			return nil, err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			return func(ctx context.Context) error {
				_, err := c.ExecContext(ctx, "DELETE FROM busy WHERE name = ?", name)
				return err
			}, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c uniqueClient) close() { c.DB.Close() }

// flockClient locks files in a folder.
type flockClient string

// lock ignores its context while it waits, because flock(2) takes none. A lock that is granted too late is
// released again.
func (c flockClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	file, err := os.OpenFile(filepath.Join(string(c), strings.ReplaceAll(name, "/", "-")), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func(context.Context) error { return file.Close() }, nil
}

func (flockClient) close() {}

// processorTime returns the time used by a process and its descendants, or 0 if it is unknown.
func processorTime(pid int) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0
	}
	var ticks int64 // its own, and those of ended children
	for _, field := range fields[11:15] {
		n, _ := strconv.ParseInt(field, 10, 64)
		ticks += n
	}
	sum := time.Duration(ticks) * time.Second / 100
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for child := range strings.FieldsSeq(string(children)) {
		n, _ := strconv.Atoi(child)
		sum += processorTime(n)
	}
	return sum
}

// crowdSize is the number of clients that wait for one lock. A session multiplies its fields by its scale.
type crowdSize struct {
	clients int
	callers int // of each client
}

var crowds = []crowdSize{{100, 10}, {10, 100}}

// compareDatabases compares the loads of backends, and then makes many clients wait for one lock.
func compareDatabases(ctx context.Context, s *session) error {
	if err := s.compareLibraries(ctx, backendLoads); err != nil {
		return err
	}
	hold := 25 * s.settings.time
	cells := [][]string{{"service", "library", "clients", "callers of each", "requests/s", "server CPU %", "clients CPU %", "failed"}}
	err := s.eachService(ctx, func(sv *service) error {
		for _, lib := range s.chosenLibraries(sv, load{shared: true}) {
			for _, c := range crowds {
				c.clients = max(int(float64(c.clients)*s.scale), 1)
				fmt.Fprintf(s.progress, "a crowd of %d clients on %s with %s …\n", c.clients, sv.name, lib.name)
				b, err := measureWaitCost(ctx, lib, sv, c, hold)
				if err != nil {
					return fmt.Errorf("%s: %w", lib.name, err)
				}
				line := []string{
					sv.name, lib.name, strconv.Itoa(c.clients), strconv.Itoa(c.callers), "", "",
					formatDigits(100 * b.own.Seconds() / hold.Seconds()), strconv.Itoa(b.failed),
				}
				if sv.spent != nil {
					line[4], line[5] = formatDigits(float64(b.requests)/hold.Seconds()), formatDigits(100*b.cpu.Seconds()/hold.Seconds())
				}
				cells = append(cells, line)
			}
		}
		return nil
	})
	fmt.Fprintf(s.out, "\nCallers who wait for one lock that is held for %v; percent of one processor:\n\n%s", hold, markdownTable(cells, 2))
	return err
}

// waitCost is the cost of many waiting clients.
type waitCost struct {
	requests int64         // to the service
	cpu, own time.Duration // processor time of the service and of the clients
	failed   int           // callers whose wait ended early
}

// measureWaitCost makes many clients wait for one lock that another client holds.
func measureWaitCost(ctx context.Context, lib library, sv *service, c crowdSize, hold time.Duration) (b waitCost, err error) {
	prefix, addrs, _, err := sv.prepareService(noFault)
	if err != nil {
		return b, err
	}
	clients, err := openAll(ctx, team{lib, c.clients + 1, c.callers}, addrs, prefix, 0)
	defer closeAll(clients)
	if err != nil {
		return b, err
	}
	unlock, err := clients[c.clients].lock(ctx, prefix)
	if err != nil {
		return b, err
	}
	waiting, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var failed atomic.Int64
	for _, waiter := range clients[:c.clients] {
		for range c.callers {
			all.Go(func() {
				free, err := waiter.lock(waiting, prefix)
				switch {
				case err == nil:
					free(ctx) // granted after the end: release it
				case waiting.Err() == nil:
					failed.Add(1)
				}
			})
		}
	}
	time.Sleep(hold / 4) // let all callers wait
	before, err1 := sv.readBurden(ctx)
	select {
	case <-time.After(hold):
	case <-ctx.Done():
	}
	after, err2 := sv.readBurden(ctx)
	cancel()
	err3 := unlock(ctx)
	all.Wait()
	return waitCost{after.requests - before.requests, after.cpu - before.cpu, after.own - before.own, int(failed.Load())}, errors.Join(err1, err2, err3, ctx.Err())
}

// readBurden returns the cost so far.
func (sv *service) readBurden(ctx context.Context) (b waitCost, err error) {
	if sv.spent != nil {
		b.requests, b.cpu, err = sv.spent(ctx)
	}
	b.own = cpuTime()
	return b, err
}
