//go:build unix

// Package etcdproc starts real etcd clusters on free ports of 127.0.0.1, in a folder of their
// own, for the tests. It never touches a server that already runs.
package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// ErrNotInstalled is returned by Start when there is no etcd on this machine.
var ErrNotInstalled = errors.New("etcd is not installed (on Debian and Ubuntu: apt-get install etcd-server)")

const (
	startTimeout = time.Minute
	attempts     = 5 // at a start, as another program may take a port
	// Ports lie below those that outgoing connections use, and beside those of redisproc.
	lowestPort, portRange = 10000, 10000
)

// Cluster is some etcd members that know each other.
type Cluster struct {
	Members []*Member
	dir     string
}

// Member is one etcd process.
type Member struct {
	Addr    string // where clients reach it
	metrics string
	args    []string
	log     string
	cmd     *exec.Cmd
	exited  <-chan struct{} // closed once the process is gone and reaped
}

// Start starts a cluster of n members with further arguments of etcd, such as
// "--cert-file=server.crt"; with that one, clients have to speak TLS. It blocks until every
// member answers, ctx ends or a minute is over.
func Start(ctx context.Context, n int, args ...string) (*Cluster, error) {
	program, err := exec.LookPath("etcd")
	if err != nil {
		return nil, ErrNotInstalled
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for range attempts {
		c, err := start(ctx, program, n, args)
		if err == nil {
			return c, nil
		}
		err = errors.Join(err, c.Stop())
		if !strings.Contains(err.Error(), "address already in use") {
			return nil, fmt.Errorf("start etcd: %w", err)
		}
	}
	return nil, errors.New("start etcd: no free ports")
}

func start(ctx context.Context, program string, n int, args []string) (c *Cluster, err error) {
	c = &Cluster{}
	if c.dir, err = os.MkdirTemp("", "holdfast-etcd-"); err != nil {
		return c, err
	}
	addrs, err := freeAddrs(3 * n)
	if err != nil {
		return c, err
	}
	scheme := "http://"
	for _, a := range args {
		if strings.HasPrefix(a, "--cert-file") {
			scheme = "https://"
		}
	}
	var peers []string
	for i := range n {
		peers = append(peers, fmt.Sprintf("m%d=http://%s", i, addrs[3*i]))
	}
	for i := range n {
		peer, addr, metrics := addrs[3*i], addrs[3*i+1], addrs[3*i+2]
		name := "m" + strconv.Itoa(i)
		m := &Member{Addr: addr, metrics: metrics, log: filepath.Join(c.dir, name+".log")}
		m.args = append([]string{
			program, "--name=" + name, "--data-dir=" + filepath.Join(c.dir, name), "--logger=zap", "--log-outputs=stderr", "--log-level=warn",
			"--listen-peer-urls=http://" + peer, "--initial-advertise-peer-urls=http://" + peer,
			"--listen-client-urls=" + scheme + addr, "--advertise-client-urls=" + scheme + addr, "--listen-metrics-urls=http://" + metrics,
			"--initial-cluster=" + strings.Join(peers, ","), "--initial-cluster-token=" + c.dir,
		}, args...)
		if err := m.run(); err != nil {
			return c, err
		}
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		if err := m.awaitReady(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// freeAddrs are addresses whose ports are free, and different.
func freeAddrs(n int) (addrs []string, err error) {
	for range 100 * n {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(lowestPort+rand.IntN(portRange))))
		if err != nil {
			continue
		}
		defer l.Close() // all are open until all are found
		if addrs = append(addrs, l.Addr().String()); len(addrs) == n {
			return addrs, nil
		}
	}
	return nil, errors.New("no free ports on 127.0.0.1")
}

func (m *Member) run() error {
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own copy
	m.cmd = exec.Command(m.args[0], m.args[1:]...)
	m.cmd.Stdout, m.cmd.Stderr, m.cmd.Dir = log, log, filepath.Dir(m.log)
	m.exited, err = child.Start(m.cmd, syscall.SIGKILL)
	return err
}

// awaitReady blocks until the member says that it is in good health, which it does once it
// has a leader.
func (m *Member) awaitReady(ctx context.Context) error {
	for {
		if text, err := m.get(ctx, "/health"); err == nil && strings.Contains(text, `"true"`) {
			return nil
		}
		select {
		case <-m.exited:
			text, _ := os.ReadFile(m.log)
			return fmt.Errorf("it exited (%v); its log: %s", m.cmd.ProcessState, text)
		case <-ctx.Done():
			text, _ := os.ReadFile(m.log)
			return fmt.Errorf("%w; its log: %s", context.Cause(ctx), text)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *Member) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.metrics+path, nil)
	if err != nil {
		return "", err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// Leader is the member that leads the others; nil: none says so.
func (c *Cluster) Leader(ctx context.Context) *Member {
	for _, m := range c.Members {
		if text, err := m.get(ctx, "/metrics"); err == nil && strings.Contains(text, "\netcd_server_is_leader 1") {
			return m
		}
	}
	return nil
}

// Addrs is where clients reach the members.
func (c *Cluster) Addrs() (addrs []string) {
	for _, m := range c.Members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// Kill ends the process, which has no time to say so to anybody, and waits until it is gone.
func (m *Member) Kill() {
	m.cmd.Process.Signal(syscall.SIGKILL) // an error means that it has ended
	<-m.exited
}

// Restart starts a member that was killed, with its data. It blocks until it answers.
func (m *Member) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := m.run(); err != nil {
		return err
	}
	return m.awaitReady(ctx)
}

// Pause stops the process, whose connections stay open. Resume has it go on.
func (m *Member) Pause() error { return m.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (m *Member) Resume() error { return m.cmd.Process.Signal(syscall.SIGCONT) }

// Stop kills all members and removes their folder. A second Stop does nothing.
func (c *Cluster) Stop() error {
	for _, m := range c.Members {
		m.Kill()
	}
	if c.dir == "" {
		return nil
	}
	return os.RemoveAll(c.dir)
}
