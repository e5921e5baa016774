//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
)

// bootBehind is a machine that comes back empty and an hour late, until its clock is set: its server seems to have
// run for an hour.
func (n *nemesis) bootBehind(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes[victim]
	v.life.Lock()
	defer v.life.Unlock()
	v.server.Kill()
	err := v.shift(-time.Hour)
	err = errors.Join(err, restart(v.server.Wipe))
	rest(time.Duration(f.For))
	return errors.Join(err, v.shift(0))
}

// fill has foreign keys use up a node's memory.
func (n *nemesis) fill(f Fault, victim int, rest func(time.Duration)) error {
	server := n.site.nodes[victim].server
	info, err := server.Do("INFO", "memory")
	if err != nil {
		return err
	}
	_, after, _ := strings.Cut(info.(string), "used_memory:")
	number, _, _ := strings.Cut(after, "\r\n")
	used, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	if _, err := server.Do("CONFIG", "SET", "maxmemory", strconv.Itoa(used+512<<10)); err != nil {
		return err
	}
	foreign := []string{"UNLINK"}
	for err == nil && len(foreign) < 100 {
		key := "foreign:" + strconv.Itoa(len(foreign))
		_, err = server.Do("SET", key, strings.Repeat("x", 64<<10))
		foreign = append(foreign, key)
	}
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		err = fmt.Errorf("it did not become full: %w", err)
	} else {
		err = nil
		rest(time.Duration(f.For))
	}
	_, err2 := server.Do(foreign...)
	_, err3 := server.Do("CONFIG", "SET", "maxmemory", "0")
	return errors.Join(err, err2, err3)
}

// killConnections is an operator who ends all clients, subscribed ones among them.
func (n *nemesis) killConnections(_ Fault, victim int, _ func(time.Duration)) error {
	server := n.site.nodes[victim].server
	_, err := server.Do("CLIENT", "KILL", "TYPE", "normal")
	_, err2 := server.Do("CLIENT", "KILL", "TYPE", "pubsub")
	return errors.Join(err, err2)
}

func (n *nemesis) clientPause(f Fault, victim int, rest func(time.Duration)) error {
	_, err := n.site.nodes[victim].server.Do("CLIENT", "PAUSE", strconv.FormatInt(time.Duration(f.For).Milliseconds(), 10), "ALL")
	rest(time.Duration(f.For))
	return err
}

// debugSleep is a command that takes long.
func (n *nemesis) debugSleep(f Fault, victim int, _ func(time.Duration)) error {
	_, err := n.site.nodes[victim].server.Do("DEBUG", "SLEEP", fmt.Sprint(time.Duration(f.For).Seconds()))
	return err
}

// psubscribe is somebody who listens to everything.
func (n *nemesis) psubscribe(f Fault, victim int, rest func(time.Duration)) error {
	conn, err := net.Dial("tcp", n.site.nodes[victim].server.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(resp.AppendCommand(nil, "PSUBSCRIBE", "*")); err != nil {
		return err
	}
	go io.Copy(io.Discard, conn) // ends with conn
	rest(time.Duration(f.For))
	return nil
}

// rotate changes a node's password, By before the clients hear of it, and later back again.
func (n *nemesis) rotate(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes[victim]
	v.life.Lock()
	defer v.life.Unlock()
	change := func(password string) error {
		err := v.setPassword(password)
		rest(time.Duration(f.By))
		return errors.Join(err, v.tellPassword(password))
	}
	err := change("second")
	rest(time.Duration(f.For - 2*f.By))
	return errors.Join(err, change(firstPassword))
}

// switchServer has a node's address lead to another server for a while, which has run for long and knows nothing.
func (n *nemesis) switchServer(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes[victim]
	lead := func(addr string) {
		for _, p := range v.proxies {
			p.Redirect(addr)
			p.Cut()
		}
	}
	lead(v.spare.Addr())
	rest(time.Duration(f.For))
	lead(v.server.Addr())
	_, err := v.spare.Do("FLUSHALL")
	return err
}

// rewriteInfo changes what a node tells of itself. Clients notice as they connect anew.
func rewriteInfo(edit func(string) string) action {
	return func(n *nemesis, f Fault, victim int, rest func(time.Duration)) error {
		for _, p := range n.site.nodes[victim].proxies {
			stop := p.Rewrite(faultproxy.Command("INFO"), edit)
			p.Cut()
			defer p.Cut()
			defer stop()
		}
		rest(time.Duration(f.For))
		return nil
	}
}

// hideRunID brings a node back empty, behind something that does not tell its runs apart.
func (n *nemesis) hideRunID(f Fault, victim int, rest func(time.Duration)) error {
	return rewriteInfo(withoutRunID)(n, f, victim, func(d time.Duration) {
		v := n.site.nodes[victim]
		v.life.Lock()
		defer v.life.Unlock()
		if err := restart(v.server.Wipe); err != nil {
			return // the promises are held against the node as it is
		}
		rest(d)
	})
}

func withoutRunID(info string) string {
	before, after, _ := strings.Cut(info, "run_id:")
	_, after, _ = strings.Cut(after, "\r\n")
	return before + after
}

// asCluster is how a node of a cluster of newer servers says so.
func asCluster(info string) string {
	return strings.NewReplacer("redis_mode:standalone", "server_mode:cluster", "cluster_enabled:0", "cluster_enabled:1").Replace(info)
}

func asValkey(info string) string {
	return strings.NewReplacer("redis_mode:", "server_mode:", "redis_version:", "server_version:").Replace(info)
}

// reopen has a client closed in the middle of its work.
func (n *nemesis) reopen(_ Fault, victim int, _ func(time.Duration)) error {
	s := n.fleet.ships[victim]
	s.life.Lock()
	defer s.life.Unlock()
	return s.tell(reopen)
}

// slowHooks has each hook of a client take long.
func (n *nemesis) slowHooks(f Fault, victim int, rest func(time.Duration)) error {
	s := n.fleet.ships[victim]
	s.life.Lock()
	defer s.life.Unlock()
	err := s.tell(slowHooks + time.Duration(f.By).String())
	rest(time.Duration(f.For))
	return errors.Join(err, s.tell(slowHooks+"0"))
}

// throttle gives a client a fifth of a processor, as a quota does: 20 ms in each 100.
func (n *nemesis) throttle(f Fault, victim int, rest func(time.Duration)) error {
	s := n.fleet.ships[victim]
	s.life.Lock()
	defer s.life.Unlock()
	var errs error
	for end := mono() + int64(f.For); mono() < end; {
		errs = errors.Join(errs, s.pause())
		rest(80 * time.Millisecond)
		errs = errors.Join(errs, s.resume())
		rest(20 * time.Millisecond)
	}
	return errs
}
