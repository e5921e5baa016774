//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
)

// nemesis carries out the faults of a schedule.
type nemesis struct {
	site     *site
	fleet    *fleet
	schedule *Schedule
	rand     *rand.Rand

	mu   sync.Mutex // guards what follows
	done []happened
	errs []error
}

// happened is a fault that took place.
type happened struct {
	Window int    `json:"window"`
	Class  string `json:"class"`
	Do     string `json:"do"`
	Victim string `json:"victim"`
	Start  int64  `json:"start"`
	End    int64  `json:"end"`
}

// action is what a fault does. It calls rest while the fault lasts.
type action func(n *nemesis, f Fault, victim int, rest func(time.Duration)) error

// actions by name; all of what they break they mend before they return.
var actions map[string]action

func init() { // not an initialiser: they refer to one another by name
	actions = map[string]action{
		"pause-client": (*nemesis).pauseClient, "kill-client": (*nemesis).killClient,
		"pause-node": (*nemesis).pauseNode, "kill-node": (*nemesis).killNode,
		"wipe-node": (*nemesis).wipeNode, "restore-node": (*nemesis).restoreNode,
		"flushall": ask("FLUSHALL"), "replicaof": (*nemesis).replicate,
		"clock": (*nemesis).jump, "strobe": (*nemesis).strobe, "boot-behind": (*nemesis).bootBehind,
		"fill": (*nemesis).fill, "kill-connections": (*nemesis).killConnections, "script-flush": ask("SCRIPT", "FLUSH"),
		"client-pause": (*nemesis).clientPause, "debug-sleep": (*nemesis).debugSleep, "psubscribe": (*nemesis).psubscribe,
		"rotate-password": (*nemesis).rotate, "switch-server": (*nemesis).switchServer,
		"hide-run-id": (*nemesis).hideRunID, "look-like-cluster": rewriteInfo(asCluster), "other-names": rewriteInfo(asValkey),
		"reopen-client": (*nemesis).reopen, "slow-hooks": (*nemesis).slowHooks, "throttle-client": (*nemesis).throttle,
		"delay": (*nemesis).delay, "cut": (*nemesis).cut,
		"drop-up":      blackhole(true, false),
		"drop-down":    blackhole(false, true),
		"split":        blackhole(true, true),
		"lose-replies": lose((*faultproxy.Proxy).CutAfter),
		"mute":         lose((*faultproxy.Proxy).MuteAfter),
	}
}

// run lets the faults of a window happen. It blocks until all are over.
func (n *nemesis) run(ctx context.Context, s *span) {
	var all sync.WaitGroup
	taken := map[int]bool{} // clients already killed or paused in this window
	for _, f := range s.Faults {
		for i, victim := range n.victims(f, taken) {
			f := f
			f.At += Duration(i) * f.Each
			all.Go(func() { n.fault(ctx, s, f, victim) })
		}
	}
	all.Wait()
}

// victims are numbers of clients, beyond those of Holdfast for peers, or of nodes.
// A fault that befalls clients befalls one peer as well, unless it is an order.
func (n *nemesis) victims(f Fault, taken map[int]bool) []int {
	if f.Clients == 0 {
		of := n.schedule.nodes(f.Of)
		n.rand.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
		return of[:f.Nodes]
	}
	var out []int
	for _, c := range n.rand.Perm(n.schedule.Clients - immortal) {
		if c += immortal; len(out) < f.Clients && !taken[c] {
			taken[c] = true
			out = append(out, c)
		}
	}
	if peers := len(n.fleet.ships) - n.schedule.Clients; peers > 0 && f.Do != "reopen-client" && f.Do != "slow-hooks" {
		if c := n.schedule.Clients + n.rand.IntN(peers); !taken[c] {
			taken[c] = true
			out = append(out, c)
		}
	}
	return out
}

func (n *nemesis) fault(ctx context.Context, s *span, f Fault, victim int) {
	sleep(ctx, time.Duration(s.start+int64(f.At)-mono()))
	if ctx.Err() != nil {
		return
	}
	h := happened{Window: s.index, Class: s.Class, Do: f.Do, Victim: "node " + strconv.Itoa(victim)}
	if f.Clients > 0 {
		h.Victim = n.fleet.orders[victim].Name
	}
	h.Start = mono()
	err := actions[f.Do](n, f, victim, func(d time.Duration) { sleep(ctx, d) })
	h.End = mono()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.done = append(n.done, h)
	if err != nil {
		n.errs = append(n.errs, fmt.Errorf("window %d: %s on %s: %w", s.index, f.Do, h.Victim, err))
	}
}

// of is what happened in a window.
func (n *nemesis) of(window int) []happened {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []happened
	for _, h := range n.done {
		if h.Window == window {
			out = append(out, h)
		}
	}
	return out
}

func (n *nemesis) pauseClient(f Fault, victim int, rest func(time.Duration)) error {
	s := n.fleet.ships[victim]
	s.life.Lock()
	defer s.life.Unlock()
	if err := s.pause(); err != nil {
		return err
	}
	rest(time.Duration(f.For))
	return s.resume()
}

func (n *nemesis) killClient(f Fault, victim int, rest func(time.Duration)) error {
	s := n.fleet.ships[victim]
	s.life.Lock()
	defer s.life.Unlock()
	s.kill()
	rest(time.Duration(f.For))
	return n.fleet.start(victim)
}

func (n *nemesis) pauseNode(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes[victim]
	v.life.Lock()
	defer v.life.Unlock()
	if err := v.server.Pause(); err != nil {
		return err
	}
	rest(time.Duration(f.For))
	return v.server.Resume()
}

// restart bounds the start of a server; it has no other context, as the servers
// outlive a run that is broken off.
func restart(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return do(ctx)
}

func (n *nemesis) killNode(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes[victim]
	v.life.Lock()
	defer v.life.Unlock()
	v.server.Kill()
	rest(time.Duration(f.For))
	return restart(v.server.Restart)
}

func (n *nemesis) wipeNode(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes[victim]
	v.life.Lock()
	defer v.life.Unlock()
	v.server.Kill()
	rest(time.Duration(f.For))
	return restart(v.server.Wipe)
}

// restoreNode brings a node back with what it had on disk a second before.
func (n *nemesis) restoreNode(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes[victim]
	v.life.Lock()
	defer v.life.Unlock()
	if err := v.keepCopy(); err != nil {
		return err
	}
	rest(time.Second)
	v.server.Kill()
	if err := v.restore(); err != nil {
		return err
	}
	rest(time.Duration(f.For))
	return restart(v.server.Restart)
}

// ask sends a node a command.
func ask(args ...string) action {
	return func(n *nemesis, _ Fault, victim int, _ func(time.Duration)) error {
		_, err := n.site.nodes[victim].server.Do(args...)
		return err
	}
}

// replicate makes a node throw away its data for those of another, and a master again.
func (n *nemesis) replicate(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes[victim]
	v.life.Lock()
	defer v.life.Unlock()
	other := n.site.nodes[(victim+1)%len(n.site.nodes)].server.Addr()
	host, port, err := net.SplitHostPort(other)
	if err != nil {
		return err
	}
	_, err = v.server.Do("REPLICAOF", host, port)
	rest(time.Duration(f.For))
	_, err2 := v.server.Do("REPLICAOF", "NO", "ONE")
	return errors.Join(err, err2)
}

func (n *nemesis) jump(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes[victim]
	err := v.shift(time.Duration(f.By))
	rest(time.Duration(f.For))
	return errors.Join(err, v.shift(0))
}

// strobe sets a clock to and fro.
func (n *nemesis) strobe(f Fault, victim int, rest func(time.Duration)) error {
	v, err := n.site.nodes[victim], error(nil)
	for end := mono() + int64(f.For); mono() < end && err == nil; {
		err = v.shift(time.Duration(f.By))
		rest(5 * time.Millisecond)
		err = errors.Join(err, v.shift(0))
		rest(5 * time.Millisecond)
	}
	return errors.Join(err, v.shift(0))
}

// proxies are those of a node that a network fault is for.
func (n *nemesis) proxies(f Fault, victim int) []*faultproxy.Proxy {
	all := n.site.nodes[victim].proxies[:]
	if f.Side > 0 {
		return all[f.Side-1 : f.Side]
	}
	return all
}

func (n *nemesis) delay(f Fault, victim int, rest func(time.Duration)) error {
	for _, p := range n.proxies(f, victim) {
		p.SetDelay(time.Duration(f.By))
		defer p.SetDelay(0)
	}
	rest(time.Duration(f.For))
	return nil
}

func (n *nemesis) cut(f Fault, victim int, _ func(time.Duration)) error {
	for _, p := range n.proxies(f, victim) {
		p.Cut()
	}
	return nil
}

func blackhole(up, down bool) action {
	return func(n *nemesis, f Fault, victim int, rest func(time.Duration)) error {
		for _, p := range n.proxies(f, victim) {
			p.Blackhole(up, down)
			defer p.Blackhole(false, false) // what was stopped is delivered, late
		}
		rest(time.Duration(f.For))
		return nil
	}
}

// lose has the replies to scripts lost after they were executed.
func lose(how func(*faultproxy.Proxy, faultproxy.Match, int) <-chan struct{}) action {
	return func(n *nemesis, f Fault, victim int, rest func(time.Duration)) error {
		script := faultproxy.Command("EVALSHA")
		var muted []*faultproxy.Proxy
		for _, p := range n.proxies(f, victim) {
			how(p, func(args [][]byte) bool { return script(args) && rand.N(4) == 0 }, f.Count)
			muted = append(muted, p)
		}
		rest(time.Duration(f.For))
		for _, p := range slices.Backward(muted) {
			p.Cut() // a muted connection stays so for ever
		}
		return nil
	}
}
