// Package redisproc starts real redis-server processes on free ports of 127.0.0.1, each in its own folder. The
// tests, the benchmarks and the demonstration of the command use it.
//
// Do not run Redis like this in production: nothing watches or restarts a server, and a server keeps its data
// only in memory unless Options.AppendOnly is set. On Linux it dies with the process that started it, however
// that ends; on other systems only Stop ends it.
//
// A server keeps its port through Kill, Restart and Wipe. While it is down, this process holds the UDP port of
// the same number, so that other processes with this package do not take the port.
package redisproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// ErrNotInstalled is returned by Start when there is no redis-server on this machine.
var ErrNotInstalled = errors.New("redis-server is not installed (on Debian and Ubuntu: apt-get install redis-server) and " +
	programVariable + " does not name another server program")

// programVariable is the environment variable that names the server program, for example a valkey-server.
const programVariable = "HOLDFAST_REDIS_SERVER"

const (
	startTimeout = 30 * time.Second // for a server to answer, on a busy machine
	probeTimeout = time.Second      // for one attempt to reach it; another program on the port may never answer
	portAttempts = 20
)

// errPortTaken is returned when another program has taken the port first.
var errPortTaken = errors.New("port is taken")

// Options describe a server. nil and the zero value start one without a password that keeps everything in
// memory only.
type Options struct {
	// Program is the server program, a path or a name in PATH. Empty: the one that HOLDFAST_REDIS_SERVER
	// names, or else the machine's redis-server.
	Program string

	// Dir is the folder for the configuration, the log and the data. It is created if needed and never removed.
	// Empty: a new temporary folder, which Stop removes.
	Dir string

	// Port is a port of 127.0.0.1. 0: a free one between 20000 and 29999, below the ports of outgoing
	// connections.
	Port int

	// Password is the password of the default user. Empty: none.
	Password string

	// ACL has a line for each further user, as in the server's configuration after the word "user": "locker on
	// >secret ~lock:* +@all".
	ACL []string

	// TLS makes the port accept TLS only. nil: plain TCP.
	TLS *Certificate
	// AuthClients rejects clients without the certificate TLS.
	AuthClients bool

	// AppendOnly is the appendfsync policy of an append-only file: "everysec", "always" or "no". Empty: no
	// file, so that the data end with the process.
	AppendOnly string

	// KeepConfig makes Restart keep the configuration that the server has rewritten (CONFIG REWRITE).
	KeepConfig bool

	// Args are further arguments of the program, which override the settings above. Example: "--maxmemory",
	// "10mb".
	Args []string

	// Env has further environment variables of the process, each as "NAME=value".
	Env []string
}

// Server is a redis-server process. After Kill it can be started again by Restart, with the same port and
// folder.
//
// Its methods are safe for concurrent use, except that only one of Stop, Kill, Restart and Wipe may run at a
// time.
type Server struct {
	*child.Process
	opts     Options
	program  string
	dir      string
	ownDir   bool                 // created by Start, and removed by Stop
	port     int                  // on 127.0.0.1
	reserved []*child.Reservation // none if Options named the port
}

// Start starts a server and blocks until it answers, ctx ends or half a minute has passed. After an error it
// leaves nothing behind, except a Dir that the caller named.
func Start(ctx context.Context, opts *Options) (*Server, error) {
	if opts == nil {
		opts = &Options{}
	}
	s := &Server{Process: new(child.Process), opts: *opts}
	if err := s.start(ctx); err != nil {
		return nil, fmt.Errorf("start redis-server: %w", errors.Join(err, s.discardFolder()))
	}
	return s, nil
}

// startAll starts a server with each of the options, concurrently. A failed one is nil.
func startAll(ctx context.Context, opts []*Options) ([]*Server, error) {
	all, errs := make([]*Server, len(opts)), make([]error, len(opts))
	var starting sync.WaitGroup
	for i, o := range opts {
		starting.Go(func() { all[i], errs[i] = Start(ctx, o) })
	}
	starting.Wait()
	return all, errors.Join(errs...)
}

// stopAll stops all servers that are not nil.
func stopAll(all []*Server) (errs error) {
	for _, s := range all {
		if s != nil {
			errs = errors.Join(errs, s.Stop())
		}
	}
	return errs
}

// retryUntilDone repeats try until it returns nil, at most for half a minute.
func retryUntilDone(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, pace.Scale(startTimeout))
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) start(ctx context.Context) error {
	if err := s.opts.check(); err != nil {
		return err
	}
	var err error
	if s.program, err = findProgram(s.opts.Program, programDirs); err != nil {
		return err
	}
	if err := s.makeDir(); err != nil {
		return err
	}
	s.Program = child.Program{
		Cmd: s.newCommand, Ready: s.checkReady, Output: filepath.Join(s.dir, "redis.log"), Signal: syscall.SIGKILL, Limit: pace.Scale(startTimeout),
	}
	if s.opts.Port != 0 {
		s.port = s.opts.Port
		return s.runProcess(ctx)
	}
	for range portAttempts {
		if s.reserved, err = child.RedisPorts.Reserve(1); err != nil {
			return err
		}
		_, port, _ := net.SplitHostPort(s.reserved[0].Addr)
		s.port, _ = strconv.Atoi(port)
		if err = s.runProcess(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
		child.Release(s.reserved)
	}
	return err
}

func (s *Server) makeDir() error {
	dir, err := s.opts.Dir, error(nil)
	if dir == "" {
		s.ownDir = true
		dir, err = os.MkdirTemp("", "holdfast-redis-")
	} else {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return err
	}
	s.dir = dir
	return os.MkdirAll(s.dataDir(), 0o700)
}

func (s *Server) dataDir() string    { return filepath.Join(s.dir, "data") }
func (s *Server) configFile() string { return filepath.Join(s.dir, "redis.conf") }

// runProcess starts a process on s.port and waits until it answers. After an error no process is left.
func (s *Server) runProcess(ctx context.Context) error {
	if !s.Began() || !s.opts.KeepConfig {
		if err := os.WriteFile(s.configFile(), []byte(s.opts.configText(s.port, s.dataDir())), 0o600); err != nil {
			return err
		}
	}
	if err := s.Process.Restart(ctx); err != nil {
		s.Kill()
		return s.explainError(err)
	}
	return nil
}

func (s *Server) newCommand() *exec.Cmd {
	cmd := exec.Command(s.program, append([]string{s.configFile()}, s.opts.Args...)...)
	cmd.Env = append(os.Environ(), s.opts.Env...)
	return cmd
}

// checkReady checks for PONG and the process id: another program may have taken the port before the server,
// and answer.
func (s *Server) checkReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pace.Scale(probeTimeout))
	defer cancel()
	replies, err := s.exchangeBatch(ctx, []string{"PING"}, []string{"INFO", "server"})
	if err != nil {
		return err
	}
	if replies[0] != "PONG" && !refusesDefaultUser(replies[0]) {
		return fmt.Errorf("PING is answered by %v", replies[0])
	}
	info, ok := replies[1].(string)
	if ok && !strings.Contains(info, "process_id:"+strconv.Itoa(s.Pid())+"\r\n") {
		return child.Final{Err: errPortTaken}
	}
	return nil
}

// explainError recognises a port that could not be bound, and masks the password, which the server's log may
// contain.
func (s *Server) explainError(err error) error {
	switch {
	case strings.Contains(s.Log(), "Address already in use"):
		return fmt.Errorf("%w: %s", errPortTaken, s.Addr())
	case s.opts.Password != "":
		return errors.New(strings.ReplaceAll(err.Error(), s.opts.Password, "***"))
	}
	return err
}

// Addr returns the address of the server: 127.0.0.1 and its port. It never changes.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Dir returns the folder of the configuration, the log and, in "data", of the data.
func (s *Server) Dir() string { return s.dir }

// Stop ends the server for good: by SIGTERM, and by SIGKILL if it still runs some seconds later. It blocks
// until the process has ended, and then removes the folder if Start created it. A second Stop does nothing.
func (s *Server) Stop() error {
	if err := s.discardFolder(); err != nil {
		return fmt.Errorf("stop redis-server: %w", err)
	}
	return nil
}

func (s *Server) discardFolder() error {
	s.End(syscall.SIGTERM)
	child.Release(s.reserved)
	if s.ownDir && s.dir != "" {
		return os.RemoveAll(s.dir)
	}
	return nil
}

// Restart starts the server again on the same port and folder, and blocks as Start does. It first stops a
// running server in an orderly way. After an error the server is down.
func (s *Server) Restart(ctx context.Context) error {
	s.End(syscall.SIGTERM)
	if err := s.runProcess(ctx); err != nil {
		return fmt.Errorf("restart redis-server: %w", err)
	}
	return nil
}

// Wipe kills the server, removes its data and starts it again, like a machine that comes back with an empty
// disk.
func (s *Server) Wipe(ctx context.Context) error {
	s.Kill()
	if err := errors.Join(os.RemoveAll(s.dataDir()), os.Mkdir(s.dataDir(), 0o700)); err != nil {
		return fmt.Errorf("wipe redis-server: %w", err)
	}
	return s.Restart(ctx)
}

// programDirs lists the folders of packages and of "make install", in addition to PATH (the empty one), which
// does not always contain them.
var programDirs = []string{"", "/usr/bin", "/usr/local/bin", "/usr/sbin", "/opt/homebrew/bin"}

func findProgram(named string, dirs []string) (string, error) {
	if named != "" {
		return exec.LookPath(named)
	}
	if program := os.Getenv(programVariable); program != "" {
		path, err := exec.LookPath(program)
		if err != nil {
			return "", fmt.Errorf("%s: %w", programVariable, err)
		}
		return path, nil
	}
	for _, dir := range dirs {
		if program, err := exec.LookPath(filepath.Join(dir, "redis-server")); err == nil {
			return program, nil
		}
	}
	return "", ErrNotInstalled
}
