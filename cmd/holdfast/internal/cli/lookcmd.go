package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/election"
	"github.com/holdfast-go/holdfast/internal/pace"
)

func (a *app) showCommand() *cobra.Command {
	var ask bool
	cmd := &cobra.Command{
		Use:     "show [flags] NAME",
		Aliases: []string{"status"},
		Short:   "Show who holds a lock, and what each node knows about it",
		Example: `  holdfast show nightly-report
  holdfast show -e nightly-report || echo nobody holds it`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := wantName("show", args, "")
			if err != nil {
				return err
			}
			return a.withClient(a.openReader, func(ctx context.Context, client *holdfast.Client) error { return a.show(ctx, client, name, ask) })
		},
		ValidArgsFunction: a.completeNames,
	}
	a.outputFlag(cmd)
	cmd.Flags().BoolVarP(&ask, "exit-code", "e", false, "print nothing; exit code 0: held, 1: free")
	return cmd
}

// show prints the holder of a lock, or, with ask, reports whether the lock is held.
func (a *app) show(ctx context.Context, client *holdfast.Client, name string, ask bool) error {
	st, asked := client.Inspect(ctx, name)
	if asked != nil && !(errors.Is(asked, holdfast.ErrUnavailable) && view.Unknown(st)) {
		return asked
	}
	if ask {
		if asked == nil && !st.Held {
			a.code = exitcode.No
		}
		return asked
	}
	var queue []driver.Waiter
	if st.Waiters > 0 {
		var err error
		if queue, err = client.Queue(ctx, name, queueShown); err != nil && asked == nil {
			a.log.Warn("who waits is not known: " + oneLine(err))
		}
	}
	var slots [][]string
	if asked == nil && !st.Held && a.output != "json" {
		slots = a.slotRows(ctx, client, name)
	}
	if err := a.writeStatus(st, queue, slots); err != nil {
		return err
	}
	return asked // the other nodes' answers were printed
}

// queueShown is the number of waiters that show prints.
const queueShown = 20

// slotRows returns the holders of the slots of a semaphore, or of an RWLock's readers, if the backend answers
// in time.
func (a *app) slotRows(ctx context.Context, client *holdfast.Client, name string) (rows [][]string) {
	ctx, cancel := context.WithTimeout(ctx, pace.HintTime())
	defer cancel()
	for st, err := range client.List(ctx, name+"#") {
		if err != nil {
			break
		}
		if _, bad := strconv.ParseUint(strings.TrimPrefix(st.Key, name+"#"), 10, 8); bad == nil && st.Held {
			rows = append(rows, []string{st.Key, fmt.Sprintf("%s by %s, lease %s left", view.State(st), view.Holder(st), view.Short(st.Remaining))})
		}
	}
	slices.SortFunc(rows, func(a, b []string) int { return cmp.Or(cmp.Compare(len(a[0]), len(b[0])), cmp.Compare(a[0], b[0])) })
	return rows
}

func (a *app) writeStatus(st holdfast.Status, queue []driver.Waiter, slots [][]string) error {
	if a.output == "json" {
		return a.writeJSON(view.NewLock(st, queue))
	}
	about := describeRows(st)
	if len(slots) > 0 {
		about[1][1] += " as a plain lock; its slots or readers:"
	}
	if err := a.writeTable(slices.Concat(about, queueRows(queue), slots)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.io.Out); err != nil {
		return outputError(err)
	}
	return a.writeTable(nodeRows(st))
}

func queueRows(queue []driver.Waiter) (rows [][]string) {
	for i, w := range queue {
		text := w.Holder.String()
		if !w.Since.IsZero() {
			text += ", asked " + view.Age(w.Since) + " ago"
		}
		rows = append(rows, []string{fmt.Sprintf("%d. waits", i+1), text})
	}
	return rows
}

func describeRows(st holdfast.Status) [][]string {
	rows := [][]string{{"name", st.Key}, {"state", view.State(st)}}
	if st.Held {
		holder, token := "holder", "token"
		value, leads := election.Value(st.Holder)
		if leads = leads && !st.Kept; leads {
			holder, token, st.Holder.Note = "leader", "term", ""
		}
		rows = append(rows, []string{holder, view.Holder(st)})
		if value != "" && leads {
			rows = append(rows, []string{"proclaims", value})
		}
		rows = append(rows, []string{"owner", st.Owner})
		if st.Token != 0 {
			rows = append(rows, []string{token, view.Token(st.Token)})
		}
		if !st.Since.IsZero() {
			rows = append(rows, []string{"asked", view.Age(st.Since) + " ago, by the holder's clock"})
		}
		left := view.Short(st.Remaining)
		if st.Remaining >= 0 {
			left += " left"
		}
		rows = append(rows, []string{"lease", left})
	}
	return append(rows, []string{"waiting", strconv.Itoa(st.Waiters)})
}

func nodeRows(st holdfast.Status) [][]string {
	rows := [][]string{{"NODE", "OWNER", "TOKEN", "LEFT", "WAITING", "ERROR"}}
	for _, n := range st.Nodes {
		row := []string{n.Node, n.Owner, view.Token(holdfast.Token(n.Token)), "", strconv.Itoa(n.Waiters), ""}
		if n.Owner != "" {
			row[3] = view.Short(n.Remaining)
		}
		if n.Err != nil {
			row[4], row[5] = "", n.Err.Error()
		}
		rows = append(rows, row)
	}
	return rows
}

func (a *app) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls [flags] [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held or waited for",
		Example: `  holdfast ls
  holdfast ls -o json billing/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix, err := wantPrefix(args)
			if err != nil {
				return err
			}
			return a.withClient(a.openReader, func(ctx context.Context, client *holdfast.Client) error { return a.printList(ctx, client, prefix) })
		},
	}
	a.outputFlag(cmd)
	return cmd
}

func (a *app) printList(ctx context.Context, client *holdfast.Client, prefix string) error {
	print, end := a.listPrinter()
	shown := 0
	var asked error
	for st, err := range client.List(ctx, prefix) {
		if err != nil {
			asked = err
			break
		}
		if err := print(st); err != nil {
			return err
		}
		shown++
	}
	if asked == nil || shown > 0 {
		if err := end(); err != nil {
			return err
		}
	}
	return asked // the part of the list that was read has been printed
}

// listPrinter returns functions that print a lock of a list, and end the list.
func (a *app) listPrinter() (print func(holdfast.Status) error, end func() error) {
	if a.output == "json" {
		j := &array{out: a.io.Out}
		return func(st holdfast.Status) error { return j.add(view.NewLock(st, nil)) }, j.flush
	}
	t := &table{out: a.io.Out, rows: [][]string{{"NAME", "STATE", "HOLDER", "TOKEN", "ASKED", "LEFT", "WAITING"}}, since: time.Now()}
	return func(st holdfast.Status) error { return t.add(listRow(st)) }, t.flush
}

func listRow(st holdfast.Status) []string {
	row := []string{st.Key, view.State(st), "", "", "", "", strconv.Itoa(st.Waiters)}
	if st.Held {
		row[2], row[3], row[5] = view.Holder(st), view.Token(st.Token), view.Short(st.Remaining)
		if !st.Since.IsZero() {
			row[4] = view.Age(st.Since) + " ago"
		}
	}
	return row
}

// completeNames returns the names of held locks for the shell's completion, without names that a shell would
// not read as one word.
func (a *app) completeNames(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	a.quiet = true
	if len(args) > 0 || a.setUp(cmd) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	err := a.withClient(a.openReader, func(ctx context.Context, client *holdfast.Client) error {
		for st, err := range client.List(ctx, prefix) {
			if err != nil {
				return err
			}
			if view.Completable(st.Key) {
				names = append(names, st.Key)
			}
		}
		return nil
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
