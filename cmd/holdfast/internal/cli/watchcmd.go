package cli

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// lockChange is one line of watch.
type lockChange struct {
	Time   time.Time  `json:"time"`
	Change string     `json:"change"`
	Lock   *view.Lock `json:"lock,omitempty"` // the current state; of a freed lock only the name
	Error  string     `json:"error,omitempty"`
}

// lastPrinted is the last printed state of a lock.
type lastPrinted struct {
	owner   string
	waiters int
}

func (a *app) watchCommand() *cobra.Command {
	every := positiveDuration{duration(time.Second)}
	cmd := &cobra.Command{
		Use:   "watch [flags] [PREFIX]",
		Short: "Print what changes about locks, as lines of JSON",
		Long: `Watch lists the locks again and again and prints a line of JSON for each
change, until a signal ends it. What happens and is undone between two looks is
not seen. "change" is

  present      the lock was held or waited for at the first look
  taken        nobody held it, and somebody does
  passed       another holder has it
  waiting      the number of those who wait is another
  freed        nobody holds it any more
  unavailable  too few nodes answer, and why; nothing is known until
  available    enough do again
`,
		Example: `  holdfast watch
  holdfast watch --every 5s billing/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix, err := wantPrefix(args)
			if err != nil {
				return err
			}
			return a.withClient(a.openReader, func(ctx context.Context, client *holdfast.Client) error {
				return a.runWatch(ctx, client, prefix, time.Duration(every.duration))
			})
		},
	}
	cmd.Flags().Var(&every, "every", "time between two looks")
	return cmd
}

func (a *app) runWatch(ctx context.Context, client *holdfast.Client, prefix string, every time.Duration) error {
	w := &watcher{print: func(c lockChange) error {
		c.Time = time.Now().UTC()
		_, err := a.io.Out.Write(jsonLine(c))
		return outputError(err)
	}}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := w.printChanges(ctx, client, prefix); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watcher holds the states at the last read.
type watcher struct {
	print func(lockChange) error
	known map[string]lastPrinted // nil: nothing was read yet
	down  bool                   // the last read failed
}

// printChanges prints what has changed since the last read.
func (w *watcher) printChanges(ctx context.Context, client *holdfast.Client, prefix string) error {
	now := make(map[string]lastPrinted, len(w.known))
	for st, err := range client.List(ctx, prefix) {
		switch {
		case err != nil && exitcode.Of(err) == exitcode.Unavailable && ctx.Err() == nil: // may go away by itself
			if w.known != nil {
				maps.Copy(w.known, now) // keep the states that were printed
			}
			return w.printFailure(err)
		case err != nil:
			return err
		case view.Unknown(st):
			continue // the error is returned at the end
		}
		now[st.Key] = lastPrinted{st.Owner, st.Waiters}
		if err := w.printChange(st); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.known)) {
		if _, there := now[name]; !there {
			if err := w.print(lockChange{Change: "freed", Lock: &view.Lock{Name: name}}); err != nil {
				return err
			}
		}
	}
	w.known = now
	if w.down {
		w.down = false
		return w.print(lockChange{Change: "available"})
	}
	return nil
}

// printChange prints how a lock differs from its known state.
func (w *watcher) printChange(st holdfast.Status) error {
	was := w.known[st.Key]
	what := ""
	switch {
	case w.known == nil:
		what = "present"
	case was.owner == "" && st.Owner != "":
		what = "taken"
	case was.owner != "" && st.Owner == "":
		what = "freed"
	case was.owner != st.Owner:
		what = "passed"
	case was.waiters != st.Waiters:
		what = "waiting"
	default:
		return nil
	}
	lock := view.NewLock(st, nil)
	return w.print(lockChange{Change: what, Lock: &lock})
}

// printFailure prints once why the state is unknown.
func (w *watcher) printFailure(err error) error {
	if w.down {
		return nil
	}
	w.down = true
	return w.print(lockChange{Change: "unavailable", Error: oneLine(err)})
}
