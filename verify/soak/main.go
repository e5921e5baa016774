//go:build linux

// Soak runs Holdfast on every engine at once for hours, at a low rate, and checks whether any resource use grows.
//
//	go run ./soak -hours 2                       all engines, and 10^6 hand-overs on PostgreSQL
//	go run ./soak -hours 0.05                    checks only that all parts run: curves are judged from 20 minutes on
//	go run ./soak -engines redis,etcd -rate 100  two of them, with 100 locks a second on each
//
// # What runs
//
// Each engine has its servers and two processes that use Holdfast: one runs to the end, and its memory is measured; the
// other is killed and restarted again and again. They pass locks to one another, acquire new names and let some of these
// leases expire, give up waits, acquire slots of a semaphore, read and write, acquire two locks at once, and lead. Beside
// the clients of the first engine the command runs: with its guard for hours, again and again for a moment, and as a
// console that a browser reads. At times a server is restarted, or a replica takes over. No Redis loses data by that.
// Rows of names that no client uses any more are purged as the pages of the engines say.
//
// # What is checked
//
// Memory, goroutines and descriptors of the clients; memory, keys, rows, leases, sessions and connections of the
// servers: a figure grows if its Theil-Sen slope, after the warm-up and over the last half alone, would add too much in
// the length of the run. Every holder marks its work in memory that all processes share: no two work at once, and
// tokens rise.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/tempo"
	"github.com/holdfast-go/holdfast/verify/tool"
)

func main() {
	if text := os.Getenv(orderVariable); text != "" {
		tempo.Adopt()
		tool.Exit("soak", runClient(text))
	}
	tool.Run("soak", func(ctx context.Context) error { return runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

var errBroken = errors.New("something grows, or a promise was broken; see the report")

// usualRate is the rate of hand-overs per second on PostgreSQL: a million in two hours, with a reserve for faults.
const usualRate = 1.05e6 / 7200

func runCommand(ctx context.Context, args []string, out, logs io.Writer) error {
	p := &plan{command: true, logs: logs}
	var hours float64
	var only string
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.SetOutput(logs)
	f.Float64Var(&hours, "hours", 2, "how long to run")
	f.StringVar(&only, "engines", "", "comma-separated: redis, redlock, cluster, sentinel, etcd, zookeeper, postgres, mariadb, sqlite; default: all")
	f.Float64Var(&p.rate, "rate", 20, "locks a second, of each engine; half of them are hand-overs")
	f.Float64Var(&p.handovers, "handovers", 0, "hand-overs of PostgreSQL in the run, less what faults cost; 0: 146 a second, a million in two hours")
	f.StringVar(&p.out, "out", "", "folder for report.txt and report.json, which has all samples; default: a new temporary one")
	if err := f.Parse(args); err != nil {
		return err
	}
	p.length = time.Duration(hours * float64(time.Hour))
	if p.length <= 0 || p.rate <= 0 {
		return errors.New("-hours and -rate have to be above 0")
	}
	if p.handovers <= 0 {
		p.handovers = usualRate * p.length.Seconds()
	}
	var err error
	if p.engines, err = chooseEngines(only); err != nil {
		return err
	}
	r, err := p.runEngines(ctx)
	if err != nil {
		return err
	}
	io.WriteString(out, r.Text())
	if !r.Passed() {
		return errBroken
	}
	return nil
}

// chooseEngines returns the engines of these names, or all.
func chooseEngines(only string) (chosen []engine, err error) {
	if only == "" {
		return engines, nil
	}
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(engines, func(e engine) bool { return e.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no engine %q", name)
		}
		chosen = append(chosen, engines[i])
	}
	return chosen, nil
}

// runEngines starts the engines one after another, watches them for the length of the plan or until ctx ends,
// stops them, and reports.
func (p *plan) runEngines(ctx context.Context) (_ *Report, err error) {
	if p.out == "" {
		p.out, err = os.MkdirTemp("", "holdfast-soak-report-")
	} else {
		err = os.MkdirAll(p.out, 0o700)
	}
	if err != nil {
		return nil, err
	}
	var all []*watchedEngine
	for n, e := range p.engines {
		w, startErr := p.startEngine(ctx, n)
		if startErr != nil {
			err = fmt.Errorf("%s: %w", e.name, startErr)
			break
		}
		all = append(all, w)
		fmt.Fprintf(p.logs, "soak: %s runs\n", e.name)
	}
	var watching sync.WaitGroup
	if err == nil {
		for n, w := range all {
			watching.Go(func() { w.watchRun(ctx, n) })
		}
		watching.Wait()
	}
	stopped := make([]error, len(all))
	for n, w := range all {
		watching.Go(func() { stopped[n] = w.stopAll() })
	}
	watching.Wait()
	if err != nil {
		return nil, errors.Join(append(stopped, err)...)
	}
	for n, w := range all {
		w.noteTrouble("stop", stopped[n])
	}
	r := newReport(all)
	fmt.Fprintln(p.logs, "soak: report.txt and report.json are in", p.out)
	return r, r.saveFiles(p.out)
}
