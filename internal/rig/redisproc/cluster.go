package redisproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// clusterSlots is the number of hash slots of a Redis Cluster.
const clusterSlots = 16384

// Cluster is a Redis Cluster. Its first servers start as the masters, with equal shares of the hash slots; the
// others start as their replicas, assigned in turn.
type Cluster struct {
	Servers []*Server
	masters int
}

// ClusterOptions describe a Cluster.
type ClusterOptions struct {
	Masters, Replicas int           // total numbers; 0: three masters
	Timeout           time.Duration // cluster-node-timeout; 0: one second, scaled to the machine
	Server            Options       // common settings of the servers
}

// StartCluster starts a cluster, and blocks until all its servers agree that it works, which takes some
// seconds. After an error it leaves nothing behind.
func StartCluster(ctx context.Context, opts *ClusterOptions) (*Cluster, error) {
	o := ClusterOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Masters == 0 {
		o.Masters = 3
	}
	if o.Timeout == 0 {
		o.Timeout = pace.Scale(time.Second)
	}
	o.Server.Args = append(slices.Clone(o.Server.Args), "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", strconv.FormatInt(o.Timeout.Milliseconds(), 10), "--repl-diskless-load", "swapdb")
	all, err := startAll(ctx, slices.Repeat([]*Options{&o.Server}, o.Masters+o.Replicas))
	c := &Cluster{Servers: all, masters: o.Masters}
	if err == nil {
		err = c.joinServers(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a cluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) joinServers(ctx context.Context) error {
	for i, s := range c.Servers {
		if _, err := s.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
	}
	if err := c.introduce(); err != nil {
		return err
	}
	for i, s := range c.Servers[:c.masters] {
		args := []string{"CLUSTER", "ADDSLOTS"}
		for slot := i * clusterSlots / c.masters; slot < (i+1)*clusterSlots/c.masters; slot++ {
			args = append(args, strconv.Itoa(slot))
		}
		if _, err := s.Do(args...); err != nil {
			return err
		}
	}
	for i, s := range c.Servers[c.masters:] {
		id, err := c.Servers[i%c.masters].ID()
		if err != nil {
			return err
		}
		if err := retryUntilDone(ctx, func() error {
			_, err := s.Do("CLUSTER", "REPLICATE", id)
			return errors.Join(err, c.introduceForgotten())
		}); err != nil {
			return err
		}
	}
	return c.Await(ctx)
}

// introduce makes each server known to the first one, and through it to all servers.
func (c *Cluster) introduce() error {
	host, port, _ := net.SplitHostPort(c.Servers[0].Addr())
	for _, s := range c.Servers[1:] {
		if _, err := s.Do("CLUSTER", "MEET", host, port); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
	}
	return nil
}

// introduceForgotten introduces the servers again if one does not know all of them: a server forgets another whose
// answer to the introduction takes longer than the node timeout, as it does on a busy machine.
func (c *Cluster) introduceForgotten() error {
	for _, s := range c.Servers {
		reply, err := s.Do("CLUSTER", "INFO")
		if errors.Is(err, syscall.ECONNREFUSED) {
			continue // it does not run
		}
		if err != nil {
			return err
		}
		text, _ := reply.(string)
		_, known, _ := strings.Cut(text, "cluster_known_nodes:")
		known, _, _ = strings.Cut(known, "\r")
		if n, err := strconv.Atoi(known); err != nil || n < len(c.Servers) {
			return errors.Join(err, c.introduce())
		}
	}
	return nil
}

// Await blocks until every running server reports that the cluster works, has the same master for each slot
// and, if it is a replica, is connected to its own master.
func (c *Cluster) Await(ctx context.Context) error {
	return retryUntilDone(ctx, func() error { return errors.Join(c.introduceForgotten(), c.checkAgreement()) })
}

// checkAgreement returns an error until c fulfills the conditions of Await.
func (c *Cluster) checkAgreement() error {
	var views []string
	for _, s := range c.Servers {
		reply, err := s.Do("CLUSTER", "INFO")
		if errors.Is(err, syscall.ECONNREFUSED) {
			continue // it does not run
		}
		if err != nil {
			return err
		}
		if text, _ := reply.(string); !strings.Contains(text, "cluster_state:ok") {
			return fmt.Errorf("%s: %s", s.Addr(), text)
		}
		if reply, err = s.Do("INFO", "replication"); err != nil {
			return err
		}
		if text, _ := reply.(string); strings.Contains(text, "role:slave") && !strings.Contains(text, "master_link_status:up") {
			return fmt.Errorf("%s is not in touch with its master", s.Addr())
		}
		owners, err := c.slotOwners(s)
		if err != nil {
			return err
		}
		views = append(views, fmt.Sprint(owners))
	}
	if len(slices.Compact(views)) > 1 {
		return errors.New("the servers disagree about the slots")
	}
	return nil
}

// slotOwners returns the ports of the masters of all slots, as s knows them.
func (c *Cluster) slotOwners(s *Server) (ports [clusterSlots]int64, err error) {
	reply, err := s.Do("CLUSTER", "SLOTS")
	if err != nil {
		return ports, err
	}
	ranges, _ := reply.([]any)
	for _, r := range ranges {
		fields, _ := r.([]any)
		first, _ := fields[0].(int64)
		last, _ := fields[1].(int64)
		master, _ := fields[2].([]any)
		port, _ := master[1].(int64)
		for i := first; i <= last; i++ {
			ports[i] = port
		}
	}
	return ports, nil
}

// Masters returns the present masters.
func (c *Cluster) Masters() (all []*Server) {
	for _, s := range c.Servers {
		if reply, err := s.Do("INFO", "replication"); err == nil && strings.Contains(reply.(string), "role:master") {
			all = append(all, s)
		}
	}
	return all
}

// Slots returns the slots of s according to s itself.
func (c *Cluster) Slots(s *Server) (slots []int, err error) {
	ports, err := c.slotOwners(s)
	for i, port := range ports {
		if port == int64(s.port) {
			slots = append(slots, i)
		}
	}
	return slots, err
}

// ReplicaOf returns a replica that is connected to s; nil: there is none.
func (c *Cluster) ReplicaOf(s *Server) *Server {
	for _, r := range c.Servers {
		reply, err := r.Do("INFO", "replication")
		text, _ := reply.(string)
		if err == nil && strings.Contains(text, "role:slave") && strings.Contains(text, "master_port:"+strconv.Itoa(s.port)+"\r") &&
			strings.Contains(text, "master_link_status:up") {
			return r
		}
	}
	return nil
}

// ID returns the id of the server in the cluster.
func (s *Server) ID() (string, error) {
	reply, err := s.Do("CLUSTER", "MYID")
	id, _ := reply.(string)
	return id, err
}

// Move moves slots with their keys from one master to another, as redis-cli does. pause, if not nil, is called
// before, between and after the moves of the keys of a slot.
func (c *Cluster) Move(from, to *Server, pause func(), slots ...int) error {
	if pause == nil {
		pause = func() {}
	}
	source, err := from.ID()
	if err != nil {
		return err
	}
	target, err := to.ID()
	if err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(to.Addr())
	for _, slot := range slots {
		number := strconv.Itoa(slot)
		if _, err := to.Do("CLUSTER", "SETSLOT", number, "IMPORTING", source); err != nil {
			return err
		}
		if _, err := from.Do("CLUSTER", "SETSLOT", number, "MIGRATING", target); err != nil {
			return err
		}
		for {
			pause()
			reply, err := from.Do("CLUSTER", "GETKEYSINSLOT", number, "1")
			if err != nil {
				return err
			}
			keys, _ := reply.([]any)
			if len(keys) == 0 {
				break
			}
			key, _ := keys[0].(string)
			args := []string{"MIGRATE", host, port, key, "0", "5000", "REPLACE"}
			if c.password() != "" {
				args = append(args, "AUTH", c.password())
			}
			if _, err := from.Do(args...); err != nil {
				return err
			}
		}
		// The new owner comes first, because the old one still redirects requests for missing keys to it.
		for _, s := range append([]*Server{to, from}, c.Masters()...) {
			if _, err := s.Do("CLUSTER", "SETSLOT", number, "NODE", target); err != nil && (s == to || s == from) {
				return err // another one may just have become a replica
			}
		}
	}
	return nil
}

// Migrate moves a slot with its keys at once, as Redis 8.4 and Valkey 9 can. It blocks until the slot has
// arrived. For older servers the error matches errors.ErrUnsupported.
func (c *Cluster) Migrate(ctx context.Context, from, to *Server, slot int) error {
	number := strconv.Itoa(slot)
	target, err := to.ID()
	if err != nil {
		return err
	}
	unknown := func(err error) bool { return err != nil && strings.Contains(err.Error(), "nknown") }
	able := false
	err = retryUntilDone(ctx, func() error { // an earlier migration may not have ended yet
		_, err := to.Do("CLUSTER", "MIGRATION", "IMPORT", number, number)
		if unknown(err) {
			_, err = from.Do("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", number, number, "NODE", target)
		}
		if able = !unknown(err); !able {
			return nil
		}
		return err
	})
	if err == nil && !able {
		err = errors.ErrUnsupported
	}
	if err != nil {
		return err
	}
	return retryUntilDone(ctx, func() error {
		slots, err := c.Slots(to)
		if err == nil && !slices.Contains(slots, slot) {
			err = fmt.Errorf("slot %d has not arrived", slot)
		}
		return err
	})
}

func (c *Cluster) password() string { return c.Servers[0].opts.Password }

// Stop ends all servers.
func (c *Cluster) Stop() error { return stopAll(c.Servers) }
