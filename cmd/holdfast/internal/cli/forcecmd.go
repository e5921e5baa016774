package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/force"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// forceFlags are the flags of force-release.
type forceFlags struct {
	token  int64
	reason string
	yes    bool
}

func (a *app) forceCommand() *cobra.Command {
	fl := &forceFlags{}
	cmd := &cobra.Command{
		Use:   "force-release [flags] NAME --token N --reason TEXT",
		Short: "Take a lock away from the holder that has a given token",
		Long: `Force-release shows the holder, asks for the name of the lock, and takes it
away if --token is still the holder's. It never takes it from a later holder.
The holder is notified at once, with the reason, if it can be reached, and
otherwise learns it at its next renewal, as on SQLite, MySQL and MariaDB always;
until then it may go on. The command prints a record as JSON. If no replica has
confirmed, the record has a warning: a failover may bring the holder back.
`,
		Example: `  holdfast force-release nightly-report --token 8841 --reason "hangs" --yes
  holdfast force-release backup --token 0 --reason "need not be kept" --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := wantName("force-release", args, "")
			if err != nil {
				return err
			}
			if strings.TrimSpace(fl.reason) == "" {
				return exitcode.Usagef("say why: --reason TEXT goes into the record, and to the holder")
			}
			return a.withClient(a.openWriter, func(ctx context.Context, client *holdfast.Client) error {
				return a.forceRelease(ctx, client, name, fl, cmd.Flags().Changed("token"))
			})
		},
		ValidArgsFunction: a.completeNames,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Int64Var(&fl.token, "token", 0, "token that show prints; 0 where it has none")
	f.StringVar(&fl.reason, "reason", "", "`text` for the record, and for the holder")
	f.BoolVarP(&fl.yes, "yes", "y", false, "do not ask")
	return cmd
}

func (a *app) forceRelease(ctx context.Context, client *holdfast.Client, name string, fl *forceFlags, given bool) error {
	st, err := client.Inspect(ctx, name)
	if err != nil {
		return err
	}
	switch {
	case !st.Held:
		return exitcode.With(exitcode.No, fmt.Errorf("nobody holds %q", name))
	case st.Kept && fl.token == 0 && !given:
		return exitcode.Usagef("%q was released by %v, and is kept for another %s as it asked (--hold-at-least); to end that, give --token 0",
			name, view.Holder(st), view.Short(st.Remaining))
	case st.Kept && fl.token != 0:
		return exitcode.With(exitcode.No, fmt.Errorf(
			"token %d has no holder any more: %q was released by %v, and is kept for another %s as it asked; --token 0 ends that",
			fl.token, name, view.Holder(st), view.Short(st.Remaining)))
	case !given && fl.token == 0:
		return exitcode.Usagef("%q is held by %v; to take it away, give --token %d", name, view.Holder(st), st.Token)
	case st.Token != holdfast.Token(fl.token):
		return exitcode.With(exitcode.No, fmt.Errorf("token %d is not the holder's: %q is held by %v, token %d", fl.token, name, view.Holder(st), st.Token))
	}
	if err := a.confirmForce(ctx, st, fl.yes); err != nil {
		return err
	}
	record, err := force.Release(ctx, client, st, fl.reason)
	if err != nil {
		return err
	}
	if record.Warning != "" {
		a.log.Error("warning: " + oneLine(errors.New(record.Warning))) // also with -q
	}
	if !st.Kept && !a.notifiesForce(name) {
		a.log.Warn(fmt.Sprintf("this backend cannot notify the holder: it stops at its next renewal, within %s, and may go on until then",
			view.Short(st.Remaining)))
	}
	return a.writeJSON(record)
}

// confirmForce shows the holder and asks for the name of the lock.
func (a *app) confirmForce(ctx context.Context, st holdfast.Status, yes bool) error {
	if yes {
		return nil
	}
	if !a.io.Terminal {
		return exitcode.Usagef("there is no terminal to ask on; give --yes")
	}
	for _, row := range describeRows(st) {
		fmt.Fprintf(a.io.Err, "%-8s %s\n", row[0], view.Printable(row[1]))
	}
	if a.failsOver() {
		fmt.Fprintln(a.io.Err, "If a replica takes over that has not heard of this, the holder may come back. Stop its process first, if you can.")
	}
	question := "To take the lock away from this holder, type its name: "
	if st.Kept {
		question = "The holder has released the lock, and asked to keep it for so long. To end that, type the name of the lock: "
	}
	err := a.askConfirmation(ctx, question, view.Printable(st.Key))
	if errors.Is(err, errNotConfirmed) {
		return exitcode.Usagef("that is not the name of the lock; nothing was done")
	}
	return err
}

// errNotConfirmed reports an answer other than the requested one.
var errNotConfirmed = exitcode.Usagef("that was not confirmed; nothing was done")

// askConfirmation asks a question on the terminal. It returns nil if the answer is want.
func (a *app) askConfirmation(ctx context.Context, question, want string) error {
	fmt.Fprint(a.io.Err, question)
	line := make(chan string, 1)
	go func() {
		text, err := bufio.NewReader(a.io.In).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			text = ""
		}
		line <- strings.TrimSuffix(text, "\n")
	}()
	select {
	case text := <-line:
		if text != want {
			return errNotConfirmed
		}
		return nil
	case <-ctx.Done():
		fmt.Fprintln(a.io.Err) // put the message on a line of its own
		if why, ok := errors.AsType[exitcode.Interruption](context.Cause(ctx)); ok {
			why.What = "this command before it was confirmed; nothing was done"
			return why
		}
		return ctx.Err()
	}
}

// failsOver reports whether another server may replace a server of the backend.
func (a *app) failsOver() bool {
	for _, kind := range []string{"+sentinel", "+replicas", "+cluster"} {
		if strings.Contains(a.backendScheme(), kind) {
			return true
		}
	}
	return false
}
