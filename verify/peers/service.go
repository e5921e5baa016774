//go:build linux

package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
	"github.com/holdfast-go/holdfast/verify/interop/foreign"
)

// server is an empty server of some kind.
type server struct {
	addr    string // a Unix socket, if it begins with a slash
	version string
	stop    func() error
}

func startServer(ctx context.Context, kind string) (s *server, err error) {
	switch kind {
	case "redis":
		r, err := redisproc.Start(ctx, nil)
		if err != nil {
			return nil, err
		}
		c := redis.NewClient(&redis.Options{Addr: r.Addr()})
		defer c.Close()
		info, err := c.Info(ctx, "server").Result()
		return &server{r.Addr(), "Redis " + findGroup(`redis_version:(\S+)`, info), r.Stop}, err
	case "etcd":
		e, err := etcdproc.Start(ctx, 1)
		if err != nil {
			return nil, err
		}
		c, err := clientv3.New(clientv3.Config{Endpoints: e.Addrs(), Logger: zap.NewNop()})
		if err != nil {
			return nil, errors.Join(err, e.Stop())
		}
		defer c.Close()
		status, err := c.Status(ctx, e.Addrs()[0])
		if err != nil {
			return nil, errors.Join(err, e.Stop())
		}
		return &server{e.Addrs()[0], "etcd " + status.Version, e.Stop}, nil
	case "kubernetes":
		return startKubernetes(ctx)
	case "zookeeper":
		z, err := zkproc.Start(ctx, 1)
		if err != nil {
			return nil, err
		}
		text, err := askZooKeeper(z.Addrs()[0])
		return &server{z.Addrs()[0], "ZooKeeper " + findGroup(`version: ([0-9.]+)`, text), z.Stop}, err
	default:
		p, err := pgproc.Start(ctx)
		if err != nil {
			return nil, err
		}
		db, err := sql.Open("postgres", p.DSN())
		if err != nil {
			return nil, errors.Join(err, p.Stop())
		}
		defer db.Close()
		var version string
		err = db.QueryRowContext(ctx, "SHOW server_version").Scan(&version)
		socket := findGroup(`host=(\S+)`, p.DSN()) + "/.s.PGSQL.5432"
		return &server{socket, "PostgreSQL " + findGroup(`^([0-9.]+)`, version), p.Stop}, err
	}
}

// startKubernetes starts an API server that serves Leases, over an etcd of its own.
func startKubernetes(ctx context.Context) (*server, error) {
	programs, err := foreign.Libraries("kubernetes")
	if err != nil {
		return nil, err
	}
	etcd, err := startServer(ctx, "etcd")
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // its port is free again at once
	if err != nil {
		return nil, errors.Join(err, etcd.stop())
	}
	addr := listener.Addr().String()
	listener.Close()
	_, port, _ := net.SplitHostPort(addr)
	dir, err := os.MkdirTemp("", "holdfast-peers-") // a killed server does not remove its files
	if err != nil {
		return nil, errors.Join(err, etcd.stop())
	}
	cmd := exec.Command(filepath.Join(programs, "apiserver"), etcd.addr, port)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var log strings.Builder
	cmd.Stderr = &head{text: &log}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir), etcd.stop())
	}
	exited, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir), etcd.stop())
	}
	s := &server{addr: addr, version: "Kubernetes Leases over " + etcd.version, stop: func() error {
		cmd.Process.Kill() // fails only if it has ended
		<-exited
		return errors.Join(os.RemoveAll(dir), etcd.stop())
	}}
	ready := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		ready <- line
		io.Copy(io.Discard, out)
	}()
	select {
	case line := <-ready:
		if line == "ready\n" {
			return s, nil
		}
		err := s.stop() // after this the whole log is written
		return nil, errors.Join(fmt.Errorf("the API server is not ready: %q; %s", line, log.String()), err)
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), s.stop())
	}
}

// findGroup returns the first group of a match, or "?".
func findGroup(expression, text string) string {
	if m := regexp.MustCompile(expression).FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return "?"
}

func askZooKeeper(addr string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte("srvr")); err != nil {
		return "", err
	}
	var text strings.Builder
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		text.Write(b[:n])
		if err != nil {
			return text.String(), nil
		}
	}
}

// service is a server with two proxies. Only the holder's proxy fails.
type service struct {
	kind           string
	servers        []*server // the last one is in use
	holder, others *faultproxy.Proxy
}

func startService(ctx context.Context, kind string) (*service, error) {
	s := &service{kind: kind}
	first, err := startServer(ctx, kind)
	if err != nil {
		return nil, err
	}
	s.servers = append(s.servers, first)
	if s.holder, err = faultproxy.NewOpaque(first.addr); err == nil {
		s.others, err = faultproxy.NewOpaque(first.addr)
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// replaceServer replaces the server in use by an empty one. All connections break.
func (s *service) replaceServer(ctx context.Context) error {
	next, err := startServer(ctx, s.kind)
	if err != nil {
		return err
	}
	s.servers = append(s.servers, next)
	for _, way := range []*faultproxy.Proxy{s.holder, s.others} {
		way.Redirect(next.addr)
		way.Cut()
	}
	return nil
}

// stop stops all servers and proxies.
func (s *service) stop() (err error) {
	for _, way := range []*faultproxy.Proxy{s.holder, s.others} {
		if way != nil {
			err = errors.Join(err, way.Close())
		}
	}
	for _, server := range s.servers {
		err = errors.Join(err, server.stop())
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", s.kind, err)
	}
	return nil
}
