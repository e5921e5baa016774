//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
)

// repeatedAction repeats an operator's action on a service while workers use it.
type repeatedAction struct {
	name string // the action, in the plural
	act  func(context.Context) error
	done atomic.Int64
}

// repeat repeats the action, with a pause before each time, until ctx ends.
func (h *repeatedAction) repeat(ctx context.Context, pause time.Duration) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if err := h.act(ctx); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
		h.done.Add(1)
	}
}

// startReplacingMembers starts a cluster of etcd. Its habit replaces one member after another by an empty member at
// the same addresses.
func startReplacingMembers(h *repeatedAction) starter {
	return func(ctx context.Context) (string, func() error, error) {
		c, err := etcdproc.Start(ctx, 3)
		if err != nil {
			return "", nil, err
		}
		h.act = func(ctx context.Context) error {
			return replaceMember(ctx, c, int(h.done.Load())%len(c.Members))
		}
		return "etcd://" + strings.Join(c.Addrs(), ",") + "/locks", c.Stop, nil
	}
}

func replaceMember(ctx context.Context, c *etcdproc.Cluster, i int) error {
	m := c.Members[i]
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: []string{c.Members[(i+1)%3].Addr, c.Members[(i+2)%3].Addr}, DialTimeout: patience, Logger: zap.NewNop(),
	})
	if err != nil {
		return err
	}
	defer etcd.Close()
	list, err := etcd.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, known := range list.Members {
		if strings.Join(known.ClientURLs, "") != "http://"+m.Addr {
			continue
		}
		if err := persistUntil(ctx, func() error { // the cluster rejects this until the last new member is established
			_, err := etcd.MemberRemove(ctx, known.ID)
			return err
		}); err != nil {
			return fmt.Errorf("remove: %w", err)
		}
		m.Kill()
		if err := clearMember(m); err != nil {
			return err
		}
		if err := persistUntil(ctx, func() error {
			_, err := etcd.MemberAdd(ctx, known.PeerURLs)
			return err
		}); err != nil {
			return fmt.Errorf("add: %w", err)
		}
		return m.Restart(ctx)
	}
	return fmt.Errorf("the cluster has no member at %s", m.Addr)
}

// clearMember deletes the member's data and makes it join an existing cluster at its next start.
func clearMember(m *etcdproc.Member) error {
	first := m.Program.Cmd
	m.Program.Cmd = func() *exec.Cmd {
		cmd := first()
		cmd.Args = append(cmd.Args, "--initial-cluster-state=existing")
		return cmd
	}
	for _, a := range first().Args {
		if data, ok := strings.CutPrefix(a, "--data-dir="); ok {
			return os.RemoveAll(data)
		}
	}
	return errors.New("the member has no folder")
}

// persistUntil calls try until it returns nil, for a bounded time.
func persistUntil(ctx context.Context, try func() error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if err = try(); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// startReconfiguring starts a ZooKeeper ensemble. Its habit removes one member after another from the ensemble
// and adds it again.
func startReconfiguring(h *repeatedAction) starter {
	return func(ctx context.Context) (string, func() error, error) {
		e, err := zkproc.Start(ctx, 3, "reconfigEnabled=true", "skipACL=yes")
		if err != nil {
			return "", nil, err
		}
		h.act = func(ctx context.Context) error { return reconfigureMember(ctx, e, int(h.done.Load())%len(e.Members)) }
		return "zk://" + strings.Join(e.Addrs(), ",") + "/locks", e.Stop, nil
	}
}

func reconfigureMember(ctx context.Context, e *zkproc.Ensemble, i int) error {
	ask := func(args ...string) (string, error) {
		args = append([]string{
			"-Xmx64m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "org.apache.zookeeper.ZooKeeperMain", "-server", e.Members[(i+1)%3].Addr,
		}, args...)
		out, err := exec.CommandContext(ctx, os.Getenv(zookeeperVariable), args...).CombinedOutput()
		if err != nil {
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			return "", fmt.Errorf("%s: %w: %s", strings.Join(args[4:], " "), err, strings.Join(lines[max(0, len(lines)-3):], " "))
		}
		return string(out), nil
	}
	config, err := ask("config")
	if err != nil {
		return err
	}
	id := fmt.Sprint(i + 1)
	_, rest, ok := strings.Cut(config, "server."+id+"=")
	if !ok {
		return fmt.Errorf("no server %s in %s", id, config)
	}
	line, _, _ := strings.Cut(rest, "\n")
	line, _, _ = strings.Cut(line, ";")
	host, port, _ := net.SplitHostPort(e.Members[i].Addr)
	for _, change := range [][]string{{"-remove", id}, {"-add", "server." + id + "=" + line + ";" + host + ":" + port}} {
		if err := persistUntil(ctx, func() error { // a new member may lag
			_, err := ask(append([]string{"reconfig"}, change...)...)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// startMovingSlots starts a Redis Cluster. Its habit moves the slot of a held lock to another master, as a
// rebalancing cluster does.
func startMovingSlots(h *repeatedAction) starter {
	return func(ctx context.Context) (string, func() error, error) {
		c, err := redisproc.StartCluster(ctx, &redisproc.ClusterOptions{})
		if err != nil {
			return "", nil, err
		}
		var addrs []string
		for _, s := range c.Servers {
			addrs = append(addrs, s.Addr())
		}
		h.act = func(ctx context.Context) error { return moveSlot(ctx, c) }
		return "redis+cluster://" + strings.Join(addrs, ","), c.Stop, nil
	}
}

func moveSlot(ctx context.Context, c *redisproc.Cluster) error {
	masters := c.Masters()
	for i, from := range masters {
		found, err := from.Do("KEYS", "*servers:hammer*")
		if err != nil {
			return err
		}
		keys, _ := found.([]any)
		if len(keys) == 0 {
			continue
		}
		slot, err := from.Do("CLUSTER", "KEYSLOT", fmt.Sprint(keys[0]))
		if err != nil {
			return err
		}
		n, _ := slot.(int64)
		return c.Migrate(ctx, from, masters[(i+1)%len(masters)], int(n))
	}
	return nil // no lock is held right now
}
