package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// mariaDB is one server for all tests; each gets a database of its own.
var mariaDB = sync.OnceValues(startMariaDB)

type mariaServer struct {
	dir    string
	cmd    *exec.Cmd
	exited <-chan struct{}
}

func startMariaDB() (_ *mariaServer, err error) {
	program, err := exec.LookPath("mariadbd")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/mariadbd"); err != nil {
			return nil, errors.New("mariadbd is not installed (on Debian and Ubuntu: apt-get install mariadb-server-core)")
		}
	}
	dir, err := os.MkdirTemp("", "holdfast-mariadb-")
	if err != nil {
		return nil, err
	}
	s := &mariaServer{dir: dir}
	args := []string{
		"--no-defaults", "--datadir=" + dir, "--socket=" + s.socket(), "--pid-file=" + filepath.Join(dir, "pid"),
		"--skip-networking", "--skip-grant-tables", "--performance-schema=off",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M",
	}
	if os.Getuid() == 0 {
		args = append(args, "--user=nobody")
		if err := giveTo("nobody", dir); err != nil {
			return s, err
		}
	}
	cmd := exec.Command(program, args...)
	if s.exited, err = child.Start(cmd, syscall.SIGKILL); err != nil {
		return s, err
	}
	s.cmd = cmd
	atEnd(s.stop)
	return s, s.awaitReady()
}

func giveTo(name, dir string) error {
	who, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, err1 := strconv.Atoi(who.Uid)
	gid, err2 := strconv.Atoi(who.Gid)
	return errors.Join(err1, err2, os.Chown(dir, uid, gid))
}

func (s *mariaServer) socket() string { return filepath.Join(s.dir, "socket") }

func (s *mariaServer) dsn(name string) string {
	// Rows that were found count, not rows that were changed: see sqlfence.Applied.
	return "root@unix(" + s.socket() + ")/" + name + "?clientFoundRows=true"
}

func (s *mariaServer) awaitReady() error {
	db, err := sql.Open("mysql", s.dsn(""))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("start MariaDB: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *mariaServer) stop() error {
	s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.exited
	return os.RemoveAll(s.dir)
}

func openMariaDB(t *testing.T) *database {
	server, err := mariaDB()
	if err != nil {
		t.Fatal(err)
	}
	admin := connect(t, "mysql", server.dsn(""))
	name := fmt.Sprintf("test_%d", time.Now().UnixNano())
	if _, err := admin.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	return newDatabase(t, connect(t, "mysql", server.dsn(name)), sqlfence.MySQL, unnumbered)
}

// servers are what the tests share, and TestMain stops.
var servers struct {
	mu   sync.Mutex // guards stop
	stop []func() error
}

func atEnd(stop func() error) {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	servers.stop = append(servers.stop, stop)
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, stop := range servers.stop {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
