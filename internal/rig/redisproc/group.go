package redisproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// GroupName is the Sentinels' name for the master of a Group.
const GroupName = "mymaster"

// Group is a master, its replicas, and the Sentinels that promote one of them when the master fails.
type Group struct {
	Servers   []*Server // the first starts as the master
	Sentinels []*Server
}

// GroupOptions describe a Group. The zero value is three servers, three Sentinels that consider a server down
// after half a second, and no password.
type GroupOptions struct {
	Servers, Sentinels int
	// Down is down-after-milliseconds.
	Down time.Duration
	// Server holds the common settings of the servers, and Sentinel the settings of the Sentinels.
	Server, Sentinel Options
}

// StartGroup starts a group, and blocks until each Sentinel knows the replicas and the other Sentinels, which
// takes some seconds. After an error it leaves nothing behind.
func StartGroup(ctx context.Context, opts *GroupOptions) (*Group, error) {
	o := GroupOptions{Servers: 3, Sentinels: 3, Down: pace.Scale(500 * time.Millisecond)}
	if opts != nil {
		o.Server, o.Sentinel = opts.Server, opts.Sentinel
		o.Servers, o.Sentinels, o.Down = max(opts.Servers, 0), opts.Sentinels, opts.Down
		if o.Servers == 0 {
			o.Servers = 3
		}
		if o.Down == 0 {
			o.Down = pace.Scale(500 * time.Millisecond)
		}
		if o.Sentinels == 0 {
			o.Sentinels = 3
		}
	}
	o.Server.KeepConfig = true // Sentinels change it
	o.Sentinel.Args = append(slices.Clone(o.Sentinel.Args), "--sentinel")
	all, err := startAll(ctx, append(slices.Repeat([]*Options{&o.Server}, o.Servers), slices.Repeat([]*Options{&o.Sentinel}, o.Sentinels)...))
	g := &Group{Servers: all[:o.Servers], Sentinels: all[o.Servers:]}
	if err == nil {
		err = g.introduceServers(ctx, o)
	}
	if err != nil {
		return nil, errors.Join(err, g.Stop())
	}
	return g, nil
}

// introduceServers makes the replicas follow the first server, and the Sentinels watch it.
func (g *Group) introduceServers(ctx context.Context, o GroupOptions) error {
	host, port, err := net.SplitHostPort(g.Servers[0].Addr())
	if err != nil {
		return err
	}
	for _, replica := range g.Servers[1:] {
		if _, err := replica.Do("REPLICAOF", host, port); err != nil {
			return err
		}
	}
	if err := retryUntilDone(ctx, func() error { return g.checkLinked(o.Servers - 1) }); err != nil {
		return err
	}
	settings := []string{
		"down-after-milliseconds", strconv.FormatInt(o.Down.Milliseconds(), 10),
		"failover-timeout", strconv.FormatInt(g.FailoverTimeout().Milliseconds(), 10),
	}
	if o.Server.Password != "" {
		settings = append(settings, "auth-pass", o.Server.Password)
	}
	for _, sentinel := range g.Sentinels {
		_, err := sentinel.Do("SENTINEL", "MONITOR", GroupName, host, port, strconv.Itoa(o.Sentinels/2+1))
		for pair := range slices.Chunk(settings, 2) {
			if err == nil {
				_, err = sentinel.Do("SENTINEL", "SET", GroupName, pair[0], pair[1])
			}
		}
		if err != nil {
			return err
		}
	}
	return retryUntilDone(ctx, func() error { return g.checkWatched(o.Servers-1, o.Sentinels-1) })
}

// checkLinked returns nil if that many replicas are in sync with the master.
func (g *Group) checkLinked(replicas int) error {
	info, err := g.Servers[0].Do("INFO", "replication")
	if err != nil {
		return err
	}
	if n := strings.Count(fmt.Sprint(info), "state=online"); n < replicas {
		return fmt.Errorf("%d replicas of %d", n, replicas)
	}
	return nil
}

// checkWatched returns nil if each Sentinel knows all the others and the replicas.
func (g *Group) checkWatched(replicas, others int) error {
	for _, sentinel := range g.Sentinels {
		reply, err := sentinel.Do("SENTINEL", "MASTER", GroupName)
		if err != nil {
			return err
		}
		list, _ := reply.([]any)
		for name, want := range map[string]int{"num-slaves": replicas, "num-other-sentinels": others} {
			if i := slices.Index(list, any(name)); i < 0 || i+1 >= len(list) || list[i+1] != strconv.Itoa(want) {
				return fmt.Errorf("%s does not know all: %v", sentinel.Addr(), list)
			}
		}
	}
	return nil
}

// Addrs returns the addresses of the Sentinels.
func (g *Group) Addrs() (addrs []string) {
	for _, s := range g.Sentinels {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Master returns the server that most of the Sentinels name as the master now, or nil.
func (g *Group) Master() *Server {
	votes := make(map[string]int)
	for _, s := range g.Sentinels {
		if reply, err := s.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", GroupName); err == nil {
			if list, _ := reply.([]any); len(list) == 2 {
				votes[fmt.Sprintf("%v:%v", list[0], list[1])]++
			}
		}
	}
	for _, s := range g.Servers {
		if votes[s.Addr()] > len(g.Sentinels)/2 {
			return s
		}
	}
	return nil
}

// Switch makes a replica take over from a healthy master (SENTINEL FAILOVER). It blocks until a Sentinel has
// begun with it, or ctx ends.
func (g *Group) Switch(ctx context.Context) error {
	return retryUntilDone(ctx, func() (err error) {
		for _, s := range g.Sentinels {
			if _, err = s.Do("SENTINEL", "FAILOVER", GroupName); err == nil {
				return nil
			}
		}
		return err
	})
}

// FailoverTimeout returns the time after which the Sentinels give up a failover that makes no progress.
func (g *Group) FailoverTimeout() time.Duration { return pace.Scale(2 * time.Second) }

// AwaitReplicas blocks until that many replicas are in sync with the master, ctx ends or half a minute has passed.
func (g *Group) AwaitReplicas(ctx context.Context, replicas int) error {
	return retryUntilDone(ctx, func() error {
		master := g.Master()
		if master == nil {
			return errors.New("no master")
		}
		return (&Group{Servers: []*Server{master}}).checkLinked(replicas)
	})
}

// Stop ends all servers and Sentinels.
func (g *Group) Stop() error { return stopAll(slices.Concat(g.Sentinels, g.Servers)) }
