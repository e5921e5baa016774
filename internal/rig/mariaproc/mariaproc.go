//go:build unix

// Package mariaproc starts real MariaDB servers, each on a socket in a folder of its own, for the tests. It never touches a server
// that already runs.
//
// It is no way to run MariaDB in production: nothing is ever synced to disk, and everybody may do everything.
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

	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// ErrNotInstalled is returned by Start when there is no MariaDB server on this machine.
var ErrNotInstalled = errors.New("mariadbd is not installed (on Debian and Ubuntu: apt-get install mariadb-server-core)")

// Server is a MariaDB server process.
type Server struct {
	*child.Process
	dir string
}

// Start starts a server without any database. It blocks until that accepts connections, ctx ends or a minute is over. settings are
// further options, such as "--max-connections=200". As root it runs as the user nobody.
func Start(ctx context.Context, settings ...string) (_ *Server, err error) {
	program, err := exec.LookPath("mariadbd")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/mariadbd"); err != nil {
			return nil, ErrNotInstalled
		}
	}
	dir, err := os.MkdirTemp("", "holdfast-mariadb-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	args := append([]string{
		"--no-defaults", "--datadir=" + dir, "--socket=" + s.Socket(), "--pid-file=" + filepath.Join(dir, "pid"),
		"--skip-networking", "--skip-grant-tables", "--performance-schema=off",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M",
	}, settings...)
	if os.Getuid() == 0 {
		args = append(args, "--user=nobody")
		err = giveTo("nobody", dir)
	}
	s.Process = &child.Process{Program: child.Program{
		Cmd: func() *exec.Cmd { return exec.Command(program, args...) }, Ready: s.ready, Output: filepath.Join(dir, "log"), Signal: syscall.SIGKILL,
		Limit: time.Minute,
	}}
	if err == nil {
		err = s.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start MariaDB: %w", err), s.Stop())
	}
	return s, nil
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

// Socket is where the server listens. Anybody may connect as root.
func (s *Server) Socket() string { return filepath.Join(s.dir, "socket") }

// ready returns nil once the server greets.
func (s *Server) ready(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", s.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	head := make([]byte, 5)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if head[4] != 10 { // the version of the protocol
		return errors.New("not ready yet")
	}
	return nil
}

// Stop ends the server and removes its folder. It blocks until the process is gone; a second Stop does nothing.
func (s *Server) Stop() error {
	s.End(syscall.SIGTERM, syscall.SIGKILL)
	return os.RemoveAll(s.dir)
}
