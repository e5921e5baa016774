//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
)

// nemesis executes the faults of a schedule.
type nemesis struct {
	site     site
	fleet    *fleet
	schedule *Schedule
	rand     *rand.Rand

	mu   sync.Mutex // guards the fields below
	done []pastFault
	errs []error
}

// pastFault is a fault that took place.
type pastFault struct {
	Window int    `json:"window"`
	Class  string `json:"class"`
	Do     string `json:"do"`
	Victim string `json:"victim"`
	Start  int64  `json:"start"`
	End    int64  `json:"end"`
}

// action executes a fault. It calls rest while the fault lasts, and repairs it before it returns.
type action func(f Fault, victim int, rest func(time.Duration)) error

// actions returns the actions by name: those for all clients and servers, and the site's own.
func (n *nemesis) actions() map[string]action {
	all := map[string]action{
		"pause-client": n.pauseClient, "kill-client": n.killClient, "throttle-client": n.throttleClient,
		"upgrade-client": n.replaceBuild(newer), "downgrade-client": n.replaceBuild(older),
		"reopen-client": n.closeClient, "slow-hooks": n.slowHooks, "crowd": n.sendCrowd,
		"pause-node": n.pauseNode, "kill-node": n.killNode, "clock": n.jumpClock, "strobe": n.strobeClock,
		"delay": n.delayTraffic, "cut": n.cutTraffic, "late": n.deliverLate, "forget": n.forgetConnections,
		"drop-up": n.dropTraffic(true, false), "drop-down": n.dropTraffic(false, true), "split": n.dropTraffic(true, true),
	}
	maps.Copy(all, n.site.actions())
	return all
}

// causeWindowFaults executes the faults of a window. It blocks until all are over.
func (n *nemesis) causeWindowFaults(ctx context.Context, s *span) {
	var all sync.WaitGroup
	taken := map[int]bool{} // clients already killed or paused in this window
	for _, f := range s.Faults {
		for i, victim := range n.pickVictims(f, taken) {
			f := f
			f.At += Duration(i) * f.Each
			all.Go(func() { n.runFault(ctx, s, f, victim) })
		}
	}
	all.Wait()
}

// pickVictims returns numbers of clients (numbers beyond Holdfast's are of the other library) or of nodes. A
// fault of clients also hits one client of the other library, unless it is an order.
func (n *nemesis) pickVictims(f Fault, taken map[int]bool) []int {
	if f.Clients == 0 {
		of := n.schedule.nodesOfKind(f.Of)
		n.rand.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
		return of[:f.Nodes]
	}
	var out []int
	for _, c := range n.rand.Perm(n.schedule.Clients - unfaultedClients) {
		if c += unfaultedClients; len(out) < f.Clients && !taken[c] {
			taken[c] = true
			out = append(out, c)
		}
	}
	if peers := n.schedule.Peers; peers > 0 && !f.isOrder() {
		if c := n.schedule.Clients + n.rand.IntN(peers); !taken[c] {
			taken[c] = true
			out = append(out, c)
		}
	}
	return out
}

// isOrder reports whether the victim executes the fault itself.
func (f Fault) isOrder() bool {
	return slices.Contains([]string{"reopen-client", "slow-hooks", "crowd", "upgrade-client", "downgrade-client"}, f.Do)
}

func (n *nemesis) runFault(ctx context.Context, s *span, f Fault, victim int) {
	sleep(ctx, time.Duration(s.start+int64(f.At)-monotonicNow()))
	if ctx.Err() != nil {
		return
	}
	if f.Of == leader {
		if victim = n.site.leader(ctx); victim < 0 {
			return // no leader: an election is in progress
		}
	}
	h := pastFault{Window: s.index, Class: s.Class, Do: f.Do, Victim: "node " + strconv.Itoa(victim)}
	if f.Clients > 0 {
		h.Victim = n.fleet.orders[victim].Name
	}
	h.Start = monotonicNow()
	err := n.actions()[f.Do](f, victim, func(d time.Duration) { sleep(ctx, d) })
	h.End = monotonicNow()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.done = append(n.done, h)
	if err != nil {
		n.errs = append(n.errs, fmt.Errorf("window %d: %s on %s: %w", s.index, f.Do, h.Victim, err))
	}
}

// faultsOf returns the faults of a window.
func (n *nemesis) faultsOf(window int) []pastFault {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []pastFault
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
	return n.fleet.start(victim, s.build.other())
}

// replaceBuild ends a client in good order, unless it has that build already, and starts one with that build.
func (n *nemesis) replaceBuild(by build) action {
	return func(_ Fault, victim int, _ func(time.Duration)) error {
		s := n.fleet.ships[victim]
		s.life.Lock()
		defer s.life.Unlock()
		if n.fleet.isMixed() && s.build == by {
			return nil
		}
		return errors.Join(s.leave(leaveWithin), n.fleet.start(victim, by))
	}
}

// leaveWithin bounds the time in which a client ends: its jobs and its calls to storages continue.
const leaveWithin = 30 * time.Second

// closeClient closes a client in the middle of its work.
func (n *nemesis) closeClient(_ Fault, victim int, _ func(time.Duration)) error {
	s := n.fleet.ships[victim]
	s.life.Lock()
	defer s.life.Unlock()
	return s.sendOrder(reopen)
}

// slowHooks makes each hook of a client slow.
func (n *nemesis) slowHooks(f Fault, victim int, rest func(time.Duration)) error {
	s := n.fleet.ships[victim]
	s.life.Lock()
	defer s.life.Unlock()
	err := s.sendOrder(slowHooks + time.Duration(f.By).String())
	rest(time.Duration(f.For))
	return errors.Join(err, s.sendOrder(slowHooks+"0"))
}

// sendCrowd makes thousands of callers ask a client at once, each for a free lock.
func (n *nemesis) sendCrowd(f Fault, victim int, _ func(time.Duration)) error {
	s := n.fleet.ships[victim]
	s.life.Lock()
	defer s.life.Unlock()
	return s.sendOrder(crowd + strconv.Itoa(f.Count*runtime.NumCPU()))
}

// throttleClient gives a client a fifth of a processor, as a quota does: 20 ms in each 100.
func (n *nemesis) throttleClient(f Fault, victim int, rest func(time.Duration)) error {
	s := n.fleet.ships[victim]
	s.life.Lock()
	defer s.life.Unlock()
	var errs error
	for end := monotonicNow() + int64(f.For); monotonicNow() < end; {
		errs = errors.Join(errs, s.pause())
		rest(80 * time.Millisecond)
		errs = errors.Join(errs, s.resume())
		rest(20 * time.Millisecond)
	}
	return errs
}

func (n *nemesis) pauseNode(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes()[victim]
	v.life.Lock()
	defer v.life.Unlock()
	if err := v.server.Pause(); err != nil {
		return err
	}
	rest(time.Duration(f.For))
	return v.server.Resume()
}

// restartServer bounds the start of a server. It has no other context, because the servers outlive an aborted
// run.
func restartServer(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return do(ctx)
}

func (n *nemesis) killNode(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes()[victim]
	v.life.Lock()
	defer v.life.Unlock()
	v.server.Kill()
	rest(time.Duration(f.For))
	return restartServer(v.server.Restart)
}

func (n *nemesis) jumpClock(f Fault, victim int, rest func(time.Duration)) error {
	v := n.site.nodes()[victim]
	err := v.clock.shift(time.Duration(f.By))
	rest(time.Duration(f.For))
	return errors.Join(err, v.clock.shift(0))
}

// strobeClock sets a clock back and forth.
func (n *nemesis) strobeClock(f Fault, victim int, rest func(time.Duration)) error {
	v, err := n.site.nodes()[victim], error(nil)
	for end := monotonicNow() + int64(f.For); monotonicNow() < end && err == nil; {
		err = v.clock.shift(time.Duration(f.By))
		rest(5 * time.Millisecond)
		err = errors.Join(err, v.clock.shift(0))
		rest(5 * time.Millisecond)
	}
	return errors.Join(err, v.clock.shift(0))
}

// proxiesFor returns the proxies of a node that a network fault affects.
func (n *node) proxiesFor(f Fault) []*faultproxy.Proxy {
	if f.Side > 0 {
		return n.proxies[f.Side-1 : f.Side]
	}
	return n.proxies[:]
}

func (n *nemesis) delayTraffic(f Fault, victim int, rest func(time.Duration)) error {
	for _, p := range n.site.nodes()[victim].proxiesFor(f) {
		p.SetDelay(time.Duration(f.By))
		defer p.SetDelay(0)
	}
	rest(time.Duration(f.For))
	return nil
}

func (n *nemesis) cutTraffic(f Fault, victim int, _ func(time.Duration)) error {
	for _, p := range n.site.nodes()[victim].proxiesFor(f) {
		p.Cut()
	}
	return nil
}

// deliverLate holds back what clients send within By, ends their connections, and delivers it after they have
// long continued over others.
func (n *nemesis) deliverLate(f Fault, victim int, rest func(time.Duration)) error {
	for _, p := range n.site.nodes()[victim].proxiesFor(f) {
		defer p.Strand()()
	}
	rest(time.Duration(f.By))
	err := n.cutTraffic(f, victim, nil)
	rest(time.Duration(f.For - f.By))
	return err
}

// forgetConnections makes the existing connections silent while the fault lasts, though they stay open.
func (n *nemesis) forgetConnections(f Fault, victim int, rest func(time.Duration)) error {
	for _, p := range n.site.nodes()[victim].proxiesFor(f) {
		defer p.Forget()()
	}
	rest(time.Duration(f.For))
	return nil
}

func (n *nemesis) dropTraffic(up, down bool) action {
	return func(f Fault, victim int, rest func(time.Duration)) error {
		for _, p := range n.site.nodes()[victim].proxiesFor(f) {
			p.Blackhole(up, down)
			defer p.Blackhole(false, false) // held data is delivered late
		}
		rest(time.Duration(f.For))
		return nil
	}
}
