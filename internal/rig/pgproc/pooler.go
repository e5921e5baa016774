//go:build unix

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
)

// ErrNoPooler is returned by StartPooler when there is no pgbouncer on this machine.
var ErrNoPooler = errors.New("pgbouncer is not installed (on Debian and Ubuntu: apt-get install pgbouncer)")

// Pooler is a pgbouncer in front of a Server.
type Pooler struct {
	process
	program string
}

// StartPooler starts a pgbouncer in front of s, with a pool mode such as "transaction" and so
// many connections to s. It blocks until the pooler accepts connections, ctx ends or
// a minute is over.
func StartPooler(ctx context.Context, s *Server, mode string, connections int) (*Pooler, error) {
	p, err := s.pool(ctx, mode, connections)
	if err != nil {
		return nil, fmt.Errorf("start pgbouncer: %w", err)
	}
	return p, nil
}

func (s *Server) pool(ctx context.Context, mode string, connections int) (p *Pooler, err error) {
	p = &Pooler{}
	if p.program, err = findPooler(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Stop())
		}
	}()
	if p.process, err = newProcess("holdfast-pgb-"); err != nil {
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
`, s.dir, port, port, p.dir, mode, connections)
	if err := os.WriteFile(p.config(), []byte(text), 0o644); err != nil {
		return p, err
	}
	return p, p.Restart(ctx)
}

func (p *Pooler) config() string { return filepath.Join(p.dir, "pgbouncer.ini") }

// Exited is closed once the pooler has ended.
func (p *Pooler) Exited() <-chan struct{} { return p.running.Exited() }

// Log is what the pooler has said since it was started; empty if that cannot be read.
func (p *Pooler) Log() string { return p.running.Log() }

// Kill ends the pooler at once, without regard to its clients, and blocks until it is gone.
func (p *Pooler) Kill() { p.running.Kill() }

// Restart starts a pooler that was killed again. It blocks until the pooler accepts connections,
// ctx ends or a minute is over.
func (p *Pooler) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.run(ctx, exec.Command(p.program, "-q", p.config()), syscall.SIGKILL, func() error {
		conn, err := net.Dial("unix", filepath.Join(p.dir, ".s.PGSQL."+port))
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// Stop ends the pooler at once, without regard to its clients, and removes its folder; a
// second Stop does nothing.
func (p *Pooler) Stop() error {
	if p.running != nil {
		p.Kill()
	}
	return p.process.Stop()
}

func findPooler() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoPooler
}
