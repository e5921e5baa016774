// Package mariaproc starts real MariaDB and MySQL servers for tests, each on a socket in its own folder. It
// never touches a server that already runs.
//
// Do not run either like this in production: nothing is ever synced to disk, and every user may do everything.
package mariaproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// These variables name other server programs, by path or by name in PATH.
const (
	mariaVariable = "HOLDFAST_MARIADB_SERVER"
	mysqlVariable = "HOLDFAST_MYSQL_SERVER"
)

// ErrNotInstalled is returned by Start when there is no MariaDB server on this machine.
var ErrNotInstalled = errors.New("mariadbd is not installed (on Debian and Ubuntu: apt-get install mariadb-server-core)")

// Server is a server process.
type Server struct {
	*child.Process
	dir string
}

// Start starts a MariaDB server without any database. The program is the one that HOLDFAST_MARIADB_SERVER
// names, or the machine's own. It blocks until the server accepts connections, ctx ends or a minute has
// passed. settings are further options, such as "--max-connections=200". As root it runs the server as the
// user nobody.
func Start(ctx context.Context, settings ...string) (*Server, error) {
	program, _, err := child.Find(mariaVariable, "mariadbd", "/usr/sbin/mariadbd")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	return startServer(ctx, "nobody", program, append([]string{"--innodb-log-file-size=8M"}, settings...), nil)
}

// StartMySQL does the same with the program that HOLDFAST_MYSQL_SERVER names, or else with the MySQL 8 that
// tools/servers fetches. It takes some seconds. If that was not fetched, the error matches
// child.ErrNotFetched. As root it runs the server as root, because other users may not read root's cache
// folder.
func StartMySQL(ctx context.Context, settings ...string) (*Server, error) {
	program, named, err := child.Find(mysqlVariable)
	if !named {
		program, err = child.Fetched("mysql8")
	}
	if err != nil {
		return nil, err
	}
	return startServer(ctx, "root", program, append([]string{
		"--mysqlx=off", "--skip-log-bin", "--innodb-redo-log-capacity=8M", "--innodb-flush-method=nosync",
	}, settings...),
		[]string{"--initialize-insecure"})
}

// startServer starts a program as the user who. If first is set, it runs the program with these options
// before, to fill the folder.
func startServer(ctx context.Context, who, program string, settings, first []string) (_ *Server, err error) {
	dir, err := os.MkdirTemp("", "holdfast-mariadb-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	args := append([]string{
		"--no-defaults", "--datadir=" + s.dataFolder(), "--socket=" + s.Socket(), "--pid-file=" + filepath.Join(dir, "pid"),
		"--skip-networking", "--performance-schema=off", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M",
	}, settings...)
	if os.Getuid() == 0 {
		args = append(args, "--user="+who)
	}
	s.Process = &child.Process{Program: child.Program{
		Cmd:   func() *exec.Cmd { return exec.Command(program, append(args, "--skip-grant-tables")...) },
		Ready: s.checkReady, Output: filepath.Join(dir, "log"), Signal: syscall.SIGKILL, Limit: pace.Scale(time.Minute),
	}}
	if err = s.makeFolders(who); err == nil && first != nil {
		var said []byte
		if said, err = exec.CommandContext(ctx, program, append(args, first...)...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, said)
		}
	}
	if err == nil {
		err = s.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", filepath.Base(program), err), s.Stop())
	}
	return s, nil
}

// dataFolder returns the folder of the tables.
func (s *Server) dataFolder() string { return filepath.Join(s.dir, "data") }

// makeFolders creates the folders for the user of the server.
func (s *Server) makeFolders(who string) error {
	err := os.Mkdir(s.dataFolder(), 0o700)
	if err == nil && os.Getuid() == 0 {
		err = errors.Join(giveTo(who, s.dir), giveTo(who, s.dataFolder()))
	}
	return err
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

// Socket returns the path of the server's socket. Any local user may connect as root.
func (s *Server) Socket() string { return filepath.Join(s.dir, "socket") }

// checkReady returns nil once the server sends its greeting.
func (s *Server) checkReady(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", s.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(pace.Scale(time.Second)))
	head := make([]byte, 5)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if head[4] != 10 { // version of the protocol
		return errors.New("not ready yet")
	}
	return nil
}

// Stop ends the server and removes its folder. It blocks until the process has ended; a second Stop does
// nothing.
func (s *Server) Stop() error {
	s.End(syscall.SIGTERM, syscall.SIGKILL)
	return os.RemoveAll(s.dir)
}
