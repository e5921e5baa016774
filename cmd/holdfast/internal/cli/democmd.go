package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/demo"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

func (a *app) demoCommand() *cobra.Command {
	var redis bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show in a few seconds what happens to locks when nodes fail and holders sleep",
		Long: `Demo lets several clients append to one ledger that checks fencing tokens. It
stops two of five nodes, pauses a holder beyond its lease, and checks whether a
write was lost or doubled. It needs no server: the nodes are inside the
process, or, with --redis, redis-server processes that it starts and stops.
`,
		Example: `  holdfast demo
  holdfast demo --redis`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error { return a.runDemo(redis) },
	}
	cmd.Flags().BoolVar(&redis, "redis", false, "use five real redis-server processes")
	return cmd
}

func (a *app) runDemo(redis bool) error {
	ctx, stop := signalContext()
	defer stop()
	nodes := demo.Memory()
	if redis {
		var err error
		if nodes, err = demo.Redis(ctx); errors.Is(err, demo.ErrNotInstalled) {
			return exitcode.With(exitcode.Unavailable, err)
		} else if err != nil {
			return signalOrError(ctx, err)
		}
	}
	err := errors.Join(demo.Run(ctx, nodes, a.io.Out), nodes.Close())
	if errors.Is(err, demo.ErrBroken) {
		return exitcode.With(exitcode.No, err)
	}
	return signalOrError(ctx, err)
}
