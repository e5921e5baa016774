package cli

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/force"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/live"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/top"
)

// topFlags are the flags of top.
type topFlags struct {
	every positiveDuration
	sort  choice
}

func (a *app) topCommand() *cobra.Command {
	fl := &topFlags{every: positiveDuration{duration(time.Second)}, sort: choice{value: string(live.ByState)}}
	for _, s := range live.Sorts {
		fl.sort.words = append(fl.sort.words, string(s))
	}
	cmd := &cobra.Command{
		Use:   "top [flags] [PREFIX]",
		Short: "Watch locks, holders, waiters and nodes on the whole terminal",
		Long: `Top shows the locks whose name begins with PREFIX, or all, and keeps the
picture up to date: who holds what, for how long, what is left of the lease,
how many wait, and how the nodes are. Enter shows one lock with those who wait
and the vote of each node, / filters, s sorts, F takes a lock from its holder,
? helps, q quits.

It only reads, until a lock is taken away; the records of that are printed as
JSON at the end. It works without colours too (NO_COLOR).
`,
		Example: `  holdfast top
  holdfast top --sort waiting billing/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix, err := wantPrefix(args)
			if err != nil {
				return err
			}
			return a.runTop(prefix, fl)
		},
		ValidArgsFunction: a.completeNames,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(&fl.every, "every", "how often the screen is drawn again")
	f.Var(&fl.sort, "sort", "the order of the locks at the start")
	return cmd
}

// wantPrefix returns the prefix from the arguments: "" for all locks.
func wantPrefix(args []string) (string, error) {
	if len(args) > 1 {
		return "", exitcode.Usagef("one prefix is expected, not %d: %s", len(args), strings.Join(args, " "))
	}
	return strings.Join(args, ""), nil
}

func (a *app) runTop(prefix string, fl *topFlags) error {
	in, ok1 := a.io.In.(*os.File)
	out, ok2 := a.io.Out.(*watchedWriter).Writer.(*os.File)
	if !ok1 || !ok2 || !isTerminal(in) || !isTerminal(out) {
		return exitcode.Usagef("top needs a terminal for stdin and stdout; ls prints the locks, and ls -o json is for programs")
	}
	if err := top.Terminal(); err != nil {
		return exitcode.With(exitcode.Usage, err)
	}
	defer a.pauseLog()()
	ctx, stop := signalContext()
	defer stop()
	source, end, err := a.startSource(ctx, prefix)
	if err != nil {
		return signalOrError(ctx, err)
	}
	records, err := top.Run(ctx, source, top.Options{
		In: in, Out: out, Force: a.forceReleaseViewed, Every: time.Duration(fl.every.duration), Sort: live.Sort(fl.sort.value), Plain: os.Getenv("NO_COLOR") != "",
	})
	end()
	for _, r := range records {
		if err := a.writeJSON(r); err != nil {
			return err
		}
	}
	return signalOrError(ctx, err)
}

// pauseLog keeps the log off the terminal while something is drawn on it, until the returned function is
// called.
func (a *app) pauseLog() func() {
	log, stderr := a.log, a.io.Err
	if f, ok := stderr.(*os.File); ok && isTerminal(f) {
		a.log, a.io.Err = slog.New(slog.DiscardHandler), io.Discard
	}
	return func() { a.log, a.io.Err = log, stderr }
}

// startSource begins to read a backend, without writing there. It fails if nothing can be read: no node is
// reached, or a permission is missing. end stops it.
func (a *app) startSource(ctx context.Context, prefix string) (source *live.Source, end func(), err error) {
	client, err := a.openReader(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, err := range client.List(ctx, prefix) {
		if err != nil && exitcode.Of(err) != exitcode.Unavailable { // a missing permission on too many nodes counts as both
			client.Close()
			return nil, nil, err
		}
		break
	}
	source = live.New(client, &live.Options{Prefix: prefix})
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx) })
	return source, func() {
		stop()
		running.Wait()
		client.Close()
	}, nil
}

// forceReleaseViewed force-releases a lock of a view. It opens a client that may write for that.
func (a *app) forceReleaseViewed(ctx context.Context, st holdfast.Status, reason string) (force.Record, error) {
	client, err := a.openWriter(ctx)
	if err != nil {
		return force.Record{}, err
	}
	defer client.Close()
	return force.Release(ctx, client, st, reason)
}
