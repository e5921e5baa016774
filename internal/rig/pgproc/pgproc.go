// Package pgproc starts real PostgreSQL servers for tests, each on a socket in its own folder. It never
// touches a server that already runs.
//
// Do not run PostgreSQL like this in production: nothing is ever synced to disk.
package pgproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// ErrNotInstalled is returned by Start when there is no PostgreSQL server on this
// machine.
var ErrNotInstalled = errors.New("the PostgreSQL server is not installed (on Debian and Ubuntu: apt-get install postgresql)")

const (
	startTimeout = time.Minute
	port         = "5432" // part of the socket's name; no process listens on TCP

	// These variables name other programs: the postgres in a folder that also has initdb and pg_basebackup,
	// and a pgbouncer.
	programVariable = "HOLDFAST_POSTGRES_SERVER"
	poolerVariable  = "HOLDFAST_PGBOUNCER_SERVER"
)

// process is a process with its own folder, which contains its socket.
type process struct {
	*child.Process
	dir  string
	attr *syscall.SysProcAttr // the user of the process
}

// newProcess creates the folder of a process. command returns the command to run.
func newProcess(pattern string, sig syscall.Signal, command func() *exec.Cmd, ready func(context.Context) error) (p process, err error) {
	if p.dir, err = os.MkdirTemp("", pattern); err == nil {
		p.attr, err = unprivilegedUser(p.dir)
	}
	run := func() *exec.Cmd {
		cmd := command()
		cmd.SysProcAttr, cmd.Dir = p.attr, p.dir
		return cmd
	}
	p.Process = &child.Process{Program: child.Program{Cmd: run, Ready: ready, Output: filepath.Join(p.dir, "log"), Signal: sig, Limit: pace.Scale(startTimeout)}}
	return p, err
}

// DSN returns the settings for a driver, as libpq and pgx take them. Any local user may connect as the
// superuser holdfast.
func (p *process) DSN() string {
	return "host=" + p.dir + " port=" + port + " user=holdfast dbname=postgres sslmode=disable"
}

// URL is for driver.Open, and names the same as DSN.
func (p *process) URL() string {
	return "postgres://holdfast@/postgres?host=" + p.dir + "&port=" + port + "&sslmode=disable"
}

// Stop ends the process and removes its folder. It blocks until the process has ended; a second Stop does
// nothing.
func (p *process) Stop() error {
	p.End(syscall.SIGINT, syscall.SIGQUIT) // "fast": open connections are cut; and if that takes too long, "immediate"
	return os.RemoveAll(p.dir)
}

// Server is a PostgreSQL server process.
type Server struct {
	process
	bin           string // folder of the programs
	env, settings []string
}

// Start creates a new database cluster and starts a server on it. It blocks until the server accepts
// connections, ctx ends or a minute has passed. settings are further lines of its configuration, such as
// "max_connections=200". PostgreSQL does not run as root; then it runs as the user postgres or nobody.
func Start(ctx context.Context, settings ...string) (*Server, error) {
	return StartWith(ctx, nil, settings...)
}

// StartWith is Start with further environment variables for the server, such as "LD_PRELOAD=clock.so".
func StartWith(ctx context.Context, env []string, settings ...string) (*Server, error) {
	s := &Server{env: env, settings: settings}
	err := s.launchWith(ctx, "initdb", "-U", "holdfast", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	return s, nil
}

// StartReplica starts a replica of s, with the same settings. s does not wait for the replica unless
// synchronous_standby_names is set. SELECT pg_promote() promotes it.
func (s *Server) StartReplica(ctx context.Context) (*Server, error) {
	r := &Server{env: s.env, settings: s.settings}
	err := r.launchWith(ctx, "pg_basebackup", "-h", s.dir, "-p", port, "-U", "holdfast", "-R", "-c", "fast", "--no-sync")
	if err != nil {
		return nil, fmt.Errorf("start a replica of PostgreSQL: %w", err)
	}
	return r, nil
}

// launchWith fills the data folder with the program fill, and starts the server.
func (s *Server) launchWith(ctx context.Context, fill string, args ...string) (err error) {
	if s.bin, err = findPrograms(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pace.Scale(startTimeout))
	defer cancel()
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	// After SIGQUIT the server ends its own children; after SIGKILL it would not.
	if s.process, err = newProcess("holdfast-pg-", syscall.SIGQUIT, s.newCommand, s.checkReady); err != nil {
		return err
	}
	filler := exec.CommandContext(ctx, filepath.Join(s.bin, fill), append(args, "-D", s.dataFolder())...)
	filler.SysProcAttr, filler.Dir = s.attr, s.dir
	if out, err := filler.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", fill, err, out)
	}
	return s.process.Restart(ctx)
}

func (s *Server) dataFolder() string { return filepath.Join(s.dir, "data") }

func (s *Server) newCommand() *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.dataFolder(), "-k", s.dir, "-p", port)
	for _, line := range append([]string{"listen_addresses=", "fsync=off", "full_page_writes=off"}, s.settings...) {
		cmd.Args = append(cmd.Args, "-c", line)
	}
	cmd.Env = append(os.Environ(), s.env...)
	return cmd
}

// checkReady returns nil once the server's lock file reports that it is ready, which it does as soon as it
// accepts connections.
func (s *Server) checkReady(context.Context) error {
	text, err := os.ReadFile(filepath.Join(s.dataFolder(), "postmaster.pid"))
	if lines := strings.Split(string(text), "\n"); err == nil && (len(lines) <= 7 || strings.TrimSpace(lines[7]) != "ready") {
		err = errors.New("not ready yet")
	}
	return err
}

// Kill ends the server like a crash: it finishes nothing. It keeps its data. Kill blocks until the process has
// ended.
func (s *Server) Kill() { s.End(syscall.SIGQUIT) }

// Restart starts a killed server again, on the same data. It blocks until the server accepts connections, ctx
// ends or a minute has passed.
func (s *Server) Restart(ctx context.Context) error {
	os.Remove(filepath.Join(s.dataFolder(), "postmaster.pid")) // it belongs to the killed process; checkReady must not read it
	if err := s.process.Restart(ctx); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return nil
}

// findPrograms returns the folder of the server programs: the one that HOLDFAST_POSTGRES_SERVER names, or else
// the newest installed PostgreSQL. Debian installs several versions side by side, outside of PATH.
func findPrograms() (string, error) {
	if program, named, err := child.Find(programVariable); named {
		return filepath.Dir(program), err
	}
	newest, best := "", -1
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	for _, path := range found {
		dir := filepath.Dir(path)
		if v, err := strconv.Atoi(filepath.Base(filepath.Dir(dir))); err == nil && v > best {
			newest, best = dir, v
		}
	}
	if newest != "" {
		return newest, nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", ErrNotInstalled
	}
	return filepath.Dir(path), nil
}
