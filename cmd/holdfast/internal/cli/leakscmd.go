package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/report"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/postgres"
	"github.com/holdfast-go/holdfast/redis"
)

// leakFlags are the flags of leaks.
type leakFlags struct {
	fix, yes bool
	textfile string
}

// leak is a redis.Leak and whether it was deleted.
type leak struct {
	redis.Leak
	Deleted bool `json:"deleted,omitempty"`
}

func (a *app) leaksCommand() *cobra.Command {
	fl := &leakFlags{}
	cmd := &cobra.Command{
		Use:   "leaks",
		Short: "Find locks without a TTL on Redis or Valkey, which stay if their holders have died",
		Long: `Leaks prints the locks that have no TTL, which other libraries have made as a
rule. It reads the keys of each node in small steps, which takes a while where
there are millions, and needs the permission +scan. With --fix, once that is
confirmed, it deletes those of other libraries: each only if it still has the
same value and no TTL. It exits with 1 if there are leaks that were not
deleted.
`,
		Example: `  holdfast leaks
  holdfast leaks --fix --yes`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error { return a.runLeaks(fl) },
	}
	a.outputFlag(cmd)
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&fl.fix, "fix", false, "show the leaks, ask, and delete those of other libraries")
	f.BoolVarP(&fl.yes, "yes", "y", false, "do not ask")
	f.StringVar(&fl.textfile, "textfile", "", "`file` for their number, for Prometheus")
	return cmd
}

func (a *app) runLeaks(fl *leakFlags) error {
	if fl.fix && !fl.yes && !a.io.Terminal {
		return exitcode.Usagef("there is no terminal to ask on; give --yes")
	}
	place, err := report.PublicFile("--textfile", fl.textfile)
	if err != nil {
		return exitcode.With(exitcode.Usage, err)
	}
	defer place.Close()
	ctx, stop := signalContext()
	defer stop()
	drv, err := a.openRedis(ctx, &driver.OpenOptions{ReadOnly: !fl.fix})
	if err != nil {
		return signalOrError(ctx, err)
	}
	defer drv.Close()
	leaks, asked := a.findLeaks(ctx, drv)
	if asked != nil && ctx.Err() != nil {
		return signalOrError(ctx, asked)
	}
	if fl.fix {
		if err := a.deleteLeaks(ctx, drv, leaks, fl.yes); err != nil {
			return signalOrError(ctx, err)
		}
	}
	if err := a.writeLeaks(leaks, asked == nil); err != nil {
		return err
	}
	for _, l := range leaks {
		if !l.Deleted {
			a.code = exitcode.No
		}
	}
	if asked != nil {
		return asked
	}
	if err := place.Write(leakMetrics(leaks)); err != nil {
		return exitcode.With(exitcode.Output, err)
	}
	return nil
}

// openRedis opens the backend, which must be Redis or Valkey.
func (a *app) openRedis(ctx context.Context, opts *driver.OpenOptions) (*redis.Driver, error) {
	if err := a.loadBackend(); err != nil {
		return nil, err
	}
	if _, err := a.singleSetURL("leaks"); err != nil {
		return nil, err
	}
	if drv, err := a.offlineDriver(); err == nil {
		defer drv.Close()
		if _, redis := drv.(*redis.Driver); !redis {
			return nil, exitcode.Usagef("leaks is for Redis and Valkey; on %s locks and places in the queue lapse by themselves%s", a.backendScheme(), keptRows(drv))
		}
	}
	drv, err := a.dialWith(ctx, opts)
	if err != nil {
		return nil, err
	}
	return drv.(*redis.Driver), nil
}

// keptRows explains that a database keeps a row for each name; "" for other services.
func keptRows(drv driver.Driver) string {
	if _, tables := drv.(migrator); !tables {
		return ""
	}
	name := "sql.md"
	if _, ok := drv.(*postgres.Driver); ok {
		name = "postgres.md"
	}
	return ", and each name keeps a row, which has its token. How to purge them: " + pageURL(name)
}

// findLeaks collects the leaks. It draws a progress bar on a terminal.
func (a *app) findLeaks(ctx context.Context, drv *redis.Driver) (leaks []leak, asked error) {
	progress, done := a.progressBar()
	defer done()
	for l, err := range drv.Leaks(ctx, progress) {
		if err != nil {
			return leaks, err
		}
		leaks = append(leaks, leak{Leak: l})
	}
	return leaks, nil
}

// barWidth is the width of the bar, and barEvery the interval at which it is drawn.
const (
	barWidth = 40
	barEvery = 100 * time.Millisecond
)

// progressBar draws the progress of a search if stderr is a terminal.
func (a *app) progressBar() (progress func(done, all int64), erase func()) {
	file, ok := a.io.Err.(*os.File)
	if !ok || !isTerminal(file) || a.quiet {
		return nil, func() {}
	}
	var drawn time.Time
	return func(done, all int64) {
			if now := time.Now(); now.Sub(drawn) > barEvery {
				drawn = now
				full := int(barWidth * done / max(all, 1))
				fmt.Fprintf(file, "\r[%s%s] %3d %%", strings.Repeat("#", full), strings.Repeat(" ", barWidth-full), 100*done/max(all, 1))
			}
		}, func() {
			if !drawn.IsZero() {
				fmt.Fprintf(file, "\r%s\r", strings.Repeat(" ", barWidth+8))
			}
		}
}

// deleteLeaks asks for confirmation and deletes the leaks that can be deleted.
func (a *app) deleteLeaks(ctx context.Context, drv *redis.Driver, leaks []leak, yes bool) error {
	fixable := 0
	for _, l := range leaks {
		if l.Fixable {
			fixable++
		}
	}
	if fixable == 0 {
		return nil
	}
	if !yes {
		for _, l := range leaks {
			fmt.Fprintf(a.io.Err, "%s: %s: %s\n", view.Printable(l.Node), view.Printable(l.Key), view.Printable(l.Text))
		}
		if err := a.askConfirmation(ctx, fmt.Sprintf("To delete %d of them, whose holders have to be dead, type yes: ", fixable), "yes"); err != nil {
			return err
		}
	}
	for i, l := range leaks {
		if !l.Fixable {
			continue
		}
		deleted, err := drv.DeleteLeak(ctx, l.Leak)
		if err != nil {
			return err
		}
		if leaks[i].Deleted = deleted; !deleted {
			leaks[i].Text = "it has another value or a TTL by now, and was left alone"
		}
	}
	return nil
}

// writeLeaks prints the leaks. whole is false if some keys could not be read: then there may be more leaks.
func (a *app) writeLeaks(leaks []leak, whole bool) error {
	if a.output == "json" {
		return a.writeJSON(append([]leak{}, leaks...))
	}
	if len(leaks) == 0 {
		if whole {
			a.log.Info("no leaks: every lock has a TTL")
		}
		return nil
	}
	rows := [][]string{{"NODE", "KEY", "OWNER", "LEAK"}}
	for _, l := range leaks {
		text := l.Text
		if l.Deleted {
			text = "deleted: " + text
		}
		rows = append(rows, []string{l.Node, l.Key, l.Owner, text})
	}
	return a.writeTable(rows)
}

// leakMetrics formats the leaks for the textfile collector of the node exporter.
func leakMetrics(leaks []leak) []byte {
	count := 0
	for _, l := range leaks {
		if !l.Deleted {
			count++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# HELP holdfast_leaks Locks without a TTL at the last look, on each node.\n# TYPE holdfast_leaks gauge\nholdfast_leaks %d\n", count)
	b.WriteString("# HELP holdfast_leaks_last_look_timestamp_seconds When that was.\n# TYPE holdfast_leaks_last_look_timestamp_seconds gauge\n")
	fmt.Fprintf(&b, "holdfast_leaks_last_look_timestamp_seconds %d\n", time.Now().Unix())
	return []byte(b.String())
}
