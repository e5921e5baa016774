//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
)

func (s *redisSite) actions() map[string]action {
	return map[string]action{
		"wipe-node": s.wipeNode, "restore-node": s.restoreNode, "flushall": s.commandAction("FLUSHALL"), "replicaof": s.replicateFromOther,
		"boot-behind": s.restartWithOldClock, "fill": s.fillMemory, "kill-connections": s.killConnections, "script-flush": s.commandAction("SCRIPT", "FLUSH"),
		"client-pause": s.clientPause, "debug-sleep": s.debugSleep, "psubscribe": s.subscribeToAll,
		"rotate-password": s.rotate, "rotate": s.rotateGap, "switch-server": s.switchServer,
		"hide-run-id": s.hideRunID, "look-like-cluster": s.rewriteInfo(asCluster), "other-names": s.rewriteInfo(asValkey),
		"lose-replies": s.loseReplies((*faultproxy.Proxy).CutAfter), "mute": s.loseReplies((*faultproxy.Proxy).MuteAfter),
	}
}

// restartWithOldClock simulates a machine that restarts empty, with a clock an hour behind that is set later:
// its server seems to have run for an hour.
func (s *redisSite) restartWithOldClock(f Fault, victim int, rest func(time.Duration)) error {
	v := s.servers[victim]
	v.life.Lock()
	defer v.life.Unlock()
	v.redis.Kill()
	err := v.clock.shift(-time.Hour)
	err = errors.Join(err, restartServer(v.redis.Wipe))
	rest(time.Duration(f.For))
	return errors.Join(err, v.clock.shift(0))
}

// fillMemory uses up a node's memory with other keys.
func (s *redisSite) fillMemory(f Fault, victim int, rest func(time.Duration)) error {
	v := s.servers[victim]
	v.life.Lock()
	defer v.life.Unlock()
	server := v.redis
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
		err = fmt.Errorf("it did not become full in time: %v", err)
	} else {
		err = nil
		rest(time.Duration(f.For))
	}
	_, err2 := server.Do(foreign...)
	_, err3 := server.Do("CONFIG", "SET", "maxmemory", "0")
	return errors.Join(err, err2, err3)
}

// killConnections ends the connections of all clients, including subscriptions.
func (s *redisSite) killConnections(_ Fault, victim int, _ func(time.Duration)) error {
	v := s.servers[victim]
	return errors.Join(v.command("CLIENT", "KILL", "TYPE", "normal"), v.command("CLIENT", "KILL", "TYPE", "pubsub"))
}

func (s *redisSite) clientPause(f Fault, victim int, rest func(time.Duration)) error {
	err := s.servers[victim].command("CLIENT", "PAUSE", strconv.FormatInt(time.Duration(f.For).Milliseconds(), 10), "ALL")
	rest(time.Duration(f.For))
	return err
}

// debugSleep blocks a node by a slow command.
func (s *redisSite) debugSleep(f Fault, victim int, _ func(time.Duration)) error {
	return s.servers[victim].command("DEBUG", "SLEEP", fmt.Sprint(time.Duration(f.For).Seconds()))
}

// subscribeToAll subscribes to all channels.
func (s *redisSite) subscribeToAll(f Fault, victim int, rest func(time.Duration)) error {
	conn, err := net.Dial("tcp", s.servers[victim].redis.Addr())
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

// rotate changes a node's password, By before the clients learn of it, and later back again.
func (s *redisSite) rotate(f Fault, victim int, rest func(time.Duration)) error {
	v := s.servers[victim]
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

// switchServer makes a node's address lead to another server for a while. That server has run for long and has
// no locks.
func (s *redisSite) switchServer(f Fault, victim int, rest func(time.Duration)) error {
	v := s.servers[victim]
	lead := func(addr string) {
		for _, p := range v.proxies {
			p.Redirect(addr)
			p.Cut()
		}
	}
	lead(v.spare.Addr())
	rest(time.Duration(f.For))
	lead(v.redis.Addr())
	_, err := v.spare.Do("FLUSHALL")
	return err
}

// rewriteInfo changes what a node's INFO reports. Clients notice when they reconnect.
func (s *redisSite) rewriteInfo(edit func(string) string) action {
	return func(f Fault, victim int, rest func(time.Duration)) error {
		for _, p := range s.servers[victim].proxies {
			stop := p.Rewrite(faultproxy.Command("INFO"), edit)
			p.Cut()
			defer p.Cut()
			defer stop()
		}
		rest(time.Duration(f.For))
		return nil
	}
}

// hideRunID brings a node back empty, behind a proxy that hides its run id.
func (s *redisSite) hideRunID(f Fault, victim int, rest func(time.Duration)) error {
	return s.rewriteInfo(withoutRunID)(f, victim, func(d time.Duration) {
		v := s.servers[victim]
		v.life.Lock()
		defer v.life.Unlock()
		if err := restartServer(v.redis.Wipe); err != nil {
			return // the promises are judged by the real node
		}
		rest(d)
	})
}

func withoutRunID(info string) string {
	before, after, _ := strings.Cut(info, "run_id:")
	_, after, _ = strings.Cut(after, "\r\n")
	return before + after
}

// asCluster rewrites info to the info of a newer server's cluster node.
func asCluster(info string) string {
	return strings.NewReplacer("redis_mode:standalone", "server_mode:cluster", "cluster_enabled:0", "cluster_enabled:1").Replace(info)
}

func asValkey(info string) string {
	return strings.NewReplacer("redis_mode:", "server_mode:", "redis_version:", "server_version:").Replace(info)
}

func (s *redisSite) wipeNode(f Fault, victim int, rest func(time.Duration)) error {
	v := s.servers[victim]
	v.life.Lock()
	defer v.life.Unlock()
	v.redis.Kill()
	rest(time.Duration(f.For))
	return restartServer(v.redis.Wipe)
}

// restoreNode brings a node back with its data from a second before.
func (s *redisSite) restoreNode(f Fault, victim int, rest func(time.Duration)) error {
	v := s.servers[victim]
	v.life.Lock()
	defer v.life.Unlock()
	if err := v.backupAOF(); err != nil {
		return err
	}
	rest(time.Second)
	v.redis.Kill()
	if err := v.restoreAOF(); err != nil {
		return err
	}
	rest(time.Duration(f.For))
	return restartServer(v.redis.Restart)
}

// commandAction returns an action that sends a node a command.
func (s *redisSite) commandAction(args ...string) action {
	return func(_ Fault, victim int, _ func(time.Duration)) error {
		return s.servers[victim].command(args...)
	}
}

// command sends the node a command in its turn: another fault may end all connections.
func (n *redisNode) command(args ...string) error {
	n.life.Lock()
	defer n.life.Unlock()
	_, err := n.redis.Do(args...)
	return err
}

// replicateFromOther makes a node replace its data by another node's, and then makes it a master again.
func (s *redisSite) replicateFromOther(f Fault, victim int, rest func(time.Duration)) error {
	v := s.servers[victim]
	v.life.Lock()
	defer v.life.Unlock()
	other := s.servers[(victim+1)%len(s.servers)].redis.Addr()
	host, port, err := net.SplitHostPort(other)
	if err != nil {
		return err
	}
	_, err = v.redis.Do("REPLICAOF", host, port)
	rest(time.Duration(f.For))
	_, err2 := v.redis.Do("REPLICAOF", "NO", "ONE")
	return errors.Join(err, err2)
}

// loseReplies makes proxies drop replies to scripts that were executed.
func (s *redisSite) loseReplies(how func(*faultproxy.Proxy, faultproxy.Match, int) <-chan struct{}) action {
	return func(f Fault, victim int, rest func(time.Duration)) error {
		script := faultproxy.Command("EVALSHA")
		var muted []*faultproxy.Proxy
		for _, p := range s.servers[victim].proxiesFor(f) {
			how(p, func(args [][]byte) bool { return script(args) && rand.N(4) == 0 }, f.Count)
			muted = append(muted, p)
		}
		rest(time.Duration(f.For))
		for _, p := range slices.Backward(muted) {
			p.Cut() // a muted connection stays muted
		}
		return nil
	}
}
