// Package etcdproc starts real etcd clusters for tests, on free ports of 127.0.0.1, each in its own folder. It
// never touches a server that already runs.
package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
)

// ErrNotInstalled is returned by Start when there is no etcd on this machine.
var ErrNotInstalled = errors.New("etcd is not installed (on Debian and Ubuntu: apt-get install etcd-server)")

const (
	startTimeout = time.Minute
	// programVariable names another server program, a path or a name in PATH.
	programVariable = "HOLDFAST_ETCD_SERVER"
)

// Cluster is a set of etcd members that form one cluster.
type Cluster struct {
	Members []*Member
	Mesh    *faultproxy.Mesh // between the members; nil unless StartMeshed was called

	dir      string
	reserved []*child.Reservation
}

// Member is one etcd process. After it was killed, Restart starts it again with its data.
type Member struct {
	*child.Process
	Addr    string // address for clients
	metrics string
}

// Start starts a cluster of n members with further arguments of etcd, such as "--cert-file=server.crt", with
// which clients must use TLS. It blocks until every member answers, ctx ends or a minute has passed.
func Start(ctx context.Context, n int, args ...string) (*Cluster, error) {
	return launchCluster(ctx, n, false, args)
}

// StartMeshed is Start for members that Cluster.Mesh can cut off from each other.
func StartMeshed(ctx context.Context, n int, args ...string) (*Cluster, error) {
	return launchCluster(ctx, n, true, args)
}

func launchCluster(ctx context.Context, n int, meshed bool, args []string) (*Cluster, error) {
	program, _, err := child.Find(programVariable, "etcd")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	c, err := child.OnFreePorts(ctx, pace.Scale(startTimeout), func(ctx context.Context) (*Cluster, error) { return startCluster(ctx, program, n, meshed, args) })
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	return c, nil
}

func startCluster(ctx context.Context, program string, n int, meshed bool, args []string) (c *Cluster, err error) {
	c = &Cluster{}
	if c.dir, err = os.MkdirTemp("", "holdfast-etcd-"); err != nil {
		return c, err
	}
	if c.reserved, err = child.MemberPorts.Reserve(3 * n); err != nil {
		return c, err
	}
	addrs := child.Addrs(c.reserved)
	scheme := "http://"
	for _, a := range args {
		if strings.HasPrefix(a, "--cert-file") {
			scheme = "https://"
		}
	}
	var peers []string
	var listens [][]string
	for i := range n {
		peers, listens = append(peers, fmt.Sprintf("m%d=http://%s", i, advertisedAddr(addrs[3*i], meshed))), append(listens, addrs[3*i:3*i+1])
	}
	if meshed {
		if c.Mesh, err = faultproxy.NewMesh(listens); err != nil {
			return c, err
		}
	}
	for i := range n {
		peer, addr, metrics := addrs[3*i], addrs[3*i+1], addrs[3*i+2]
		name := "m" + strconv.Itoa(i)
		m := &Member{Addr: addr, metrics: metrics}
		args := append([]string{
			"--name=" + name, "--data-dir=" + filepath.Join(c.dir, name), "--logger=zap", "--log-outputs=stderr", "--log-level=warn",
			"--listen-peer-urls=http://" + peer, "--initial-advertise-peer-urls=http://" + advertisedAddr(peer, meshed),
			"--listen-client-urls=" + scheme + addr, "--advertise-client-urls=" + scheme + addr, "--listen-metrics-urls=http://" + metrics,
			"--initial-cluster=" + strings.Join(peers, ","), "--initial-cluster-token=" + c.dir,
		}, args...)
		env := os.Environ()
		if meshed {
			env = append(env, "HTTP_PROXY=socks5://"+c.Mesh.Front(i), "NO_PROXY=")
		}
		m.Process = &child.Process{Program: child.Program{
			Cmd: func() *exec.Cmd {
				cmd := exec.Command(program, args...)
				cmd.Env, cmd.Dir = env, c.dir
				return cmd
			},
			Ready: m.checkReady, Output: filepath.Join(c.dir, name+".log"), Signal: syscall.SIGKILL, Limit: pace.Scale(startTimeout),
		}}
		c.Members = append(c.Members, m)
		if err := m.Begin(); err != nil {
			return c, err
		}
	}
	for _, m := range c.Members {
		if err := m.Await(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// advertisedAddr returns the address by which the other members reach a member. In a mesh it is not an address
// of this machine, because Go uses no proxy for those.
func advertisedAddr(peer string, meshed bool) string {
	if _, port, err := net.SplitHostPort(peer); err == nil && meshed {
		return net.JoinHostPort("192.0.2.1", port)
	}
	return peer
}

// Serves reports whether the member is healthy, which requires a leader.
func (m *Member) Serves(ctx context.Context) bool { return m.checkReady(ctx) == nil }

func (m *Member) checkReady(ctx context.Context) error {
	text, err := m.getPath(ctx, "/health")
	if err == nil && !strings.Contains(text, `"true"`) {
		err = errors.New(text)
	}
	return err
}

func (m *Member) getPath(ctx context.Context, path string) (string, error) {
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

// Leader returns the member that leads the others; nil: no member reports that it does.
func (c *Cluster) Leader(ctx context.Context) *Member {
	for _, m := range c.Members {
		if text, err := m.getPath(ctx, "/metrics"); err == nil && strings.Contains(text, "\netcd_server_is_leader 1") {
			return m
		}
	}
	return nil
}

// Addrs returns the addresses of the members for clients.
func (c *Cluster) Addrs() (addrs []string) {
	for _, m := range c.Members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// Stop kills all members and removes their folder. A second Stop does nothing.
func (c *Cluster) Stop() (err error) {
	for _, m := range c.Members {
		m.Kill()
	}
	child.Release(c.reserved)
	if c.Mesh != nil {
		err = c.Mesh.Close()
	}
	if c.dir == "" {
		return err
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}
