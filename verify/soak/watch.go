//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// plan holds the settings of a run.
type plan struct {
	length    time.Duration
	engines   []engine
	rate      float64 // locks per second, per engine
	handovers float64 // hand-overs on PostgreSQL in the whole run
	command   bool    // the command runs beside the clients of the first engine
	out       string
	logs      io.Writer
}

// sampleInterval returns the time between two samples.
func (p *plan) sampleInterval() time.Duration { return max(p.length/120, 2*time.Second) }

// faultEvery is the number of samples between two faults. Every second fault kills a client.
const faultEvery = 5

// relayShape returns the number of names in the relay, and the time between two hand-overs of each, for this
// rate of hand-overs.
func relayShape(rate float64) (names int, beat time.Duration) {
	names = min(max(int(rate/5), 1), mostHot)
	return names, time.Duration(float64(names) / rate * float64(time.Second))
}

// sample holds the figures at one time.
type sample struct {
	Hours   float64            `json:"hours"`
	Figures map[string]float64 `json:"figures"`
	Counts  state              `json:"counts"` // of all clients, since the start
}

// watchedEngine is a soak of one engine.
type watchedEngine struct {
	plan    *plan
	engine  engine
	service *service
	beside  *commandRun // nil: none
	order   order
	stays   *process // lives through the run
	falls   *process // is killed repeatedly
	fallen  int
	before  state // counts of the killed processes
	faults  int
	began   time.Time

	samples  []sample
	missed   int // samples without an answer of a server
	troubles []string
}

// startEngine starts the servers of an engine and its clients. After an error it leaves nothing behind.
func (p *plan) startEngine(ctx context.Context, n int) (_ *watchedEngine, err error) {
	w := &watchedEngine{plan: p, engine: p.engines[n]}
	if w.service, err = w.engine.start(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stopAll())
		}
	}()
	if p.command && n == 0 {
		if w.beside, err = startBeside(ctx, w.service.url, p.logs); err != nil {
			return nil, err
		}
	}
	// Half of the rate is hand-overs, and half is the rest; each of the two processes has half of both.
	handovers := p.rate / 2
	if w.engine.name == "postgres" {
		handovers = p.handovers / p.length.Seconds()
	}
	w.order = order{URL: w.service.url, Board: filepath.Join(p.out, w.engine.name+".board")}
	w.order.Hot, w.order.Beat = relayShape(handovers)
	w.order.Pause = time.Duration(2 * float64(len(otherWorkers)) / (p.rate / 2) * float64(time.Second))
	if err := os.RemoveAll(w.order.Board); err != nil {
		return nil, err
	}
	for _, p := range []**process{&w.stays, &w.falls} {
		if *p, err = w.launchClient(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// launchClient starts a client under a new name.
func (w *watchedEngine) launchClient() (*process, error) {
	o := w.order
	o.Name = fmt.Sprintf("client%d", w.fallen)
	w.fallen++
	return startProcess(o, w.plan.logs)
}

// watchRun takes samples and causes faults until the end of the run, or ctx ends.
func (w *watchedEngine) watchRun(ctx context.Context, shift int) {
	w.began = time.Now()
	end, tick := time.After(w.plan.length), time.NewTicker(w.plan.sampleInterval())
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-tick.C:
		}
		w.takeSample(ctx)
		if ctx.Err() == nil && (n+shift)%faultEvery == 0 {
			w.causeFault(ctx)
		}
	}
}

func (w *watchedEngine) noteTrouble(what string, err error) {
	if err != nil {
		w.troubles = append(w.troubles, fmt.Sprintf("after %v: %s: %v", time.Since(w.began).Round(time.Second), what, err))
		fmt.Fprintf(w.plan.logs, "soak: %s: %s: %v\n", w.engine.name, what, err)
	}
}

// takeSample records the figures, unless a server does not answer, as during an election after a fault.
func (w *watchedEngine) takeSample(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s := sample{Hours: time.Since(w.began).Hours(), Figures: map[string]float64{}}
	if err := w.stays.askState(); err != nil {
		w.noteTrouble("client", err)
		return
	}
	if err := w.falls.askState(); err != nil {
		w.noteTrouble("client", err)
		return
	}
	s.Counts = w.before.addCounts(w.stays.last).addCounts(w.falls.last)
	s.Figures["client heap"] = float64(w.stays.last.Heap)
	s.Figures["client goroutines"] = float64(w.stays.last.Goroutines)
	s.Figures["client files"] = float64(w.stays.last.Files)
	s.Figures["client rss"] = usedMemory(w.stays.cmd.Process.Pid)
	if pids := w.service.pids(); len(pids) > 0 {
		s.Figures["server memory"] = usedMemory(pids...)
	}
	if w.beside != nil {
		if err := w.beside.readConsole(ctx, s.Figures); ctx.Err() == nil {
			w.noteTrouble("command", err)
		}
	}
	if err := w.service.look(ctx, s.Figures); err != nil {
		fmt.Fprintf(w.plan.logs, "soak: %s: no sample: %v\n", w.engine.name, err)
		w.missed++
		return
	}
	w.samples = append(w.samples, s)
}

// causeFault kills a client, or causes a fault of a server.
func (w *watchedEngine) causeFault(ctx context.Context) {
	w.faults++
	if w.service.fault != nil && w.faults%2 == 0 {
		err := w.service.fault(ctx, w.faults/2)
		if ctx.Err() == nil {
			w.noteTrouble("fault", err)
		}
		return
	}
	w.falls.kill()
	w.before = w.before.addCounts(w.falls.last)
	next, err := w.launchClient()
	if err != nil {
		w.noteTrouble("start a client", err)
		return
	}
	w.falls = next
}

// addCounts returns the sum of two states.
func (a state) addCounts(b state) state {
	sum := state{
		Granted: a.Granted + b.Granted, HandedOver: a.HandedOver + b.HandedOver, GivenUp: a.GivenUp + b.GivenUp, Failed: a.Failed + b.Failed,
		Lost: a.Lost + b.Lost, Overlaps: a.Overlaps + b.Overlaps, Disorders: a.Disorders + b.Disorders, Error: a.Error,
	}
	if b.Error != "" {
		sum.Error = b.Error
	}
	return sum
}

// stopAll stops clients and servers.
func (w *watchedEngine) stopAll() (errs error) {
	for _, p := range []*process{w.stays, w.falls} {
		if p != nil {
			errs = errors.Join(errs, p.endClient())
		}
	}
	if w.beside != nil {
		errs = errors.Join(errs, w.beside.stop())
	}
	return errors.Join(errs, w.service.stop())
}
