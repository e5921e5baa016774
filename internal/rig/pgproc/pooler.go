package pgproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// ErrNoPooler is returned by StartPooler when there is no pgbouncer on this machine.
var ErrNoPooler = errors.New("pgbouncer is not installed (on Debian and Ubuntu: apt-get install pgbouncer)")

// Pooler is a pgbouncer in front of a Server. Kill ends it without waiting for its clients, and Restart starts
// it again.
type Pooler struct{ process }

// StartPooler starts a pgbouncer in front of s, with a pool mode such as "transaction" and the given number of
// connections to s. It blocks until the pooler accepts connections, ctx ends or a minute has passed.
func StartPooler(ctx context.Context, s *Server, mode string, connections int) (*Pooler, error) {
	p, err := s.startPooler(ctx, mode, connections)
	if err != nil {
		return nil, fmt.Errorf("start pgbouncer: %w", err)
	}
	return p, nil
}

func (s *Server) startPooler(ctx context.Context, mode string, connections int) (p *Pooler, err error) {
	p = &Pooler{}
	program, err := findPooler()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Stop())
		}
	}()
	command := func() *exec.Cmd { return exec.Command(program, p.configPath()) }
	if p.process, err = newProcess("holdfast-pgb-", syscall.SIGKILL, command, p.checkReady); err != nil {
		return p, err
	}
	text := fmt.Sprintf(`[databases]
* = host=%s port=%s user=holdfast
[pgbouncer]
listen_addr =
listen_port = %s
unix_socket_dir = %s
auth_type = any
pool_mode = %s
default_pool_size = %d
server_login_retry = 1
max_client_conn = 400
log_connections = 0
log_disconnections = 0
log_stats = 0
`, s.dir, port, port, p.dir, mode, connections)
	if err := os.WriteFile(p.configPath(), []byte(text), 0o644); err != nil {
		return p, err
	}
	return p, p.Restart(ctx)
}

func (p *Pooler) configPath() string { return filepath.Join(p.dir, "pgbouncer.ini") }

// checkReady returns nil once the pooler accepts connections.
func (p *Pooler) checkReady(context.Context) error {
	conn, err := net.Dial("unix", filepath.Join(p.dir, ".s.PGSQL."+port))
	if err == nil {
		conn.Close()
	}
	return err
}

// Stop ends the pooler without waiting for its clients, and removes its folder. A second Stop does nothing.
func (p *Pooler) Stop() error {
	p.Kill()
	return p.process.Stop()
}

func findPooler() (string, error) {
	program, _, err := child.Find(poolerVariable, "pgbouncer", "/usr/sbin/pgbouncer")
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNoPooler, err)
	}
	return program, err
}
