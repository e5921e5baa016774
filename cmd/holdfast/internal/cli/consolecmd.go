package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/force"
)

// consoleFlags are the flags of console.
type consoleFlags struct {
	listen     string
	hosts      []string
	allowForce bool
}

func (a *app) consoleCommand() *cobra.Command {
	fl := &consoleFlags{}
	cmd := &cobra.Command{
		Use:   "console [flags] [PREFIX]",
		Short: "Show locks, waiters, votes, nodes and the doctor's findings on a web page",
		Long: `Console serves a web page with the locks whose name begins with PREFIX, or all,
and keeps it up to date. It runs until a signal ends it.

Whoever reaches the address can read the page: names, hosts and notes. So by
default only this machine does; put a proxy that asks who it is before any
other address. With --allow-force the page can take locks away; it asks for the
token that is printed at the start. The records of that are printed as JSON on
stdout.
`,
		Example: `  holdfast console --listen 127.0.0.1:0
  holdfast console --listen localhost:0 --allow-force billing/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix, err := wantPrefix(args)
			if err != nil {
				return err
			}
			return a.runConsole(prefix, fl)
		},
		ValidArgsFunction: a.completeNames,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&fl.listen, "listen", "127.0.0.1:7788", "`address` to serve the page on")
	f.StringSliceVar(&fl.hosts, "host", nil, "`names` by which browsers may call it")
	f.BoolVar(&fl.allowForce, "allow-force", false, "let the page take locks away")
	return cmd
}

func (a *app) runConsole(prefix string, fl *consoleFlags) error {
	ctx, stop := signalContext()
	defer stop()
	listener, err := listen(ctx, fl.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	source, end, err := a.startSource(ctx, prefix)
	if err != nil {
		return signalOrError(ctx, err)
	}
	defer end()
	opts := console.Options{Source: source, Diagnose: func(ctx context.Context) ([]holdfast.Finding, error) { return a.diagnose(ctx, 0) }}
	for _, host := range fl.hosts {
		opts.Hosts = append(opts.Hosts, strings.ToLower(host))
	}
	if fl.allowForce {
		opts.Force = a.forceReleaseViewed
		opts.Taken = func(r force.Record) {
			if err := a.writeJSON(r); err != nil {
				a.log.Error("the record of a lock that was taken away is lost: " + oneLine(err))
			}
		}
	}
	opts.Refused = func(address string) { // also with -q: an attacker may be guessing
		a.log.Error("the console was given a wrong token, and took nothing away", "address", address)
	}
	server := console.New(opts)
	if err := a.announce(listener.Addr(), server.Token()); err != nil {
		return err
	}
	return server.Serve(ctx, listener)
}

// listen opens the address.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		err = fmt.Errorf("--listen %s: another program has this port; give another one, or port 0 for a free one", address)
	case errors.Is(err, syscall.EACCES):
		err = fmt.Errorf("--listen %s: this user may not take this port; give one from 1024 on", address)
	case err != nil:
		err = fmt.Errorf("--listen %s: %w; give an address of this machine and a port, such as 127.0.0.1:7788", address, err)
	}
	if err != nil {
		return nil, exitcode.With(exitcode.Usage, err)
	}
	return l, nil
}

// announce prints the address of the console and its token, which is printed only here.
func (a *app) announce(addr net.Addr, token string) error {
	here := addr.String()
	at, err := netip.ParseAddrPort(here)
	if err == nil && at.Addr().IsUnspecified() { // a browser cannot connect to that address
		here = fmt.Sprintf("localhost:%d", at.Port())
	}
	if err == nil && !at.Addr().IsLoopback() {
		a.log.Warn("other machines can reach this console: whoever does can read all locks", "address", addr.String())
	}
	text := fmt.Sprintf("console at http://%s/", here)
	if token != "" {
		text += "\ntoken for taking locks away: " + token
	}
	_, err = fmt.Fprintln(a.io.Out, text)
	return outputError(err)
}
