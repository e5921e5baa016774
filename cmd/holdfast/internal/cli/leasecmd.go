package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/redlock"
)

// ticket is a lease that outlives the process which took it. Whoever has it can
// renew and release.
type ticket struct {
	Name      string         `json:"name"`
	Token     holdfast.Token `json:"token"`
	Owner     string         `json:"owner"`
	TTLMS     int64          `json:"ttl_ms,omitempty"`
	ExpiresAt time.Time      `json:"expires_at,omitzero"`
}

func newTicket(l *holdfast.Lease, ttl time.Duration) ticket {
	return ticket{
		Name: l.Key(), Token: l.Token(), Owner: l.ID(), TTLMS: ttl.Milliseconds(), ExpiresAt: l.Deadline().UTC().Round(time.Millisecond),
	}
}

// ticketFlags say which lease is meant.
type ticketFlags struct {
	token int64
	owner string
	file  string
	ttl   duration
}

func (fl *ticketFlags) define(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.Int64Var(&fl.token, "token", 0, "fencing token of the lease")
	f.StringVar(&fl.owner, "owner", "", "owner `id` of the lease")
	f.StringVar(&fl.file, "file", "", "`file` that acquire wrote, instead of --token and --owner")
}

// read puts together what flags, the file and, inside a run, the environment say.
func (fl *ticketFlags) read(args []string) (t ticket, err error) {
	if fl.file != "" {
		text, err := os.ReadFile(fl.file)
		if err != nil {
			return t, exitcode.Usagef("--file: %w", err)
		}
		if err := json.Unmarshal(text, &t); err != nil {
			return t, exitcode.Usagef("--file %s is not what acquire --file writes: %w", fl.file, err)
		}
	}
	outer := os.Getenv(run.EnvPrefix + "NAME")
	otherwise := t.Name
	if otherwise == "" {
		otherwise = outer
	}
	if t.Name, err = wantName(args, otherwise); err != nil {
		return t, err
	}
	if fl.file == "" && t.Name == outer {
		t.Token = tokenFromText(os.Getenv(run.EnvPrefix + "TOKEN"))
		t.Owner = os.Getenv(run.EnvPrefix + "OWNER")
	}
	if fl.token != 0 {
		t.Token = holdfast.Token(fl.token)
	}
	if fl.owner != "" {
		t.Owner = fl.owner
	}
	if t.Token <= 0 {
		return t, exitcode.Usagef("which lease? give --token N as acquire printed it, or --file")
	}
	return t, nil
}

func tokenFromText(s string) holdfast.Token {
	n, _ := strconv.ParseInt(s, 10, 64) // 0 is no token
	return holdfast.Token(n)
}

func (a *app) acquireCommand() *cobra.Command {
	var noWait bool
	var wait patience
	var file string
	ttl := duration(30 * time.Second)
	cmd := &cobra.Command{
		Use:   "acquire [flags] NAME",
		Short: "Take a lock and leave it standing, for scripts that cannot be wrapped by run",
		Long: `Acquire takes the lock NAME, prints the lease and exits. The lock stands for --ttl
unless it is renewed; nobody watches over it, so prefer run where you can.
`,
		Example: `  holdfast acquire --ttl 5m --file /run/deploy.lease deploy
  ./deploy.sh; holdfast release --file /run/deploy.lease`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := wantName(args, "")
			if err != nil {
				return err
			}
			now, err := wait.none(noWait, cmd.Flags().Changed)
			if err != nil {
				return err
			}
			opts := &holdfast.AcquireOptions{TTL: time.Duration(ttl), Wait: time.Duration(wait.duration), NoRenew: true}
			return a.acquire(name, file, opts, now)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&noWait, "no-wait", "n", false, "give up at once if somebody else holds the lock")
	f.VarP(&wait, "wait", "w", "give up after this time; 0 means at once (default: wait for ever)")
	f.Var(&ttl, "ttl", "how long the lock stands")
	f.StringVar(&file, "file", "", "write the lease to this `file` as well, for renew, release and check")
	a.outputFlag(cmd)
	return cmd
}

// acquire takes a lock for whoever reads the output. If nobody can, it is given
// back: a lease that nobody knows would only be in the way.
func (a *app) acquire(name, file string, opts *holdfast.AcquireOptions, once bool) error {
	if file != "" {
		if err := (run.Reports{Path: file}).Check(); err != nil {
			return exitcode.Usagef("%s", strings.Replace(err.Error(), "--status-file", "--file", 1))
		}
	}
	ctx, stop := interruptible()
	defer stop()
	client, drv, err := a.parts(ctx)
	if err != nil {
		return interruptedBy(ctx, err)
	}
	take := client.Acquire
	if once {
		take = client.TryAcquire
	}
	lease, err := take(ctx, name, opts)
	if err != nil {
		defer client.Close()
		return interruptedBy(ctx, a.busyError(client, name, err))
	}
	t := newTicket(lease, opts.TTL)
	if err := a.hand(t, file); err != nil {
		return errors.Join(err, client.Close()) // which releases
	}
	return drv.Close() // and not the client: that would release
}

// hand gives the lease to the file and to whoever reads stdout.
func (a *app) hand(t ticket, file string) error {
	if file != "" {
		if err := writeTicket(file, t); err != nil {
			return exitcode.With(exitcode.Output, err)
		}
	}
	err := a.printTicket(t)
	if err != nil && file != "" {
		os.Remove(file)
	}
	return err
}

func writeTicket(file string, t ticket) error {
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // 0600: it is as good as the lock
	if err != nil {
		return fmt.Errorf("--file: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("--file: %w", err)
	}
	return nil
}

func (a *app) printTicket(t ticket) error {
	if a.output == "json" {
		return a.writeJSON(t)
	}
	return a.writeTable([][]string{
		{"name", t.Name},
		{"token", strconv.FormatInt(int64(t.Token), 10)},
		{"owner", t.Owner},
		{"ttl", (time.Duration(t.TTLMS) * time.Millisecond).String()},
		{"expires", t.ExpiresAt.Format(time.RFC3339Nano)},
	})
}

// parts opens the backend for a command that leaves a lease standing: to do so it
// closes the driver and not the client.
func (a *app) parts(ctx context.Context) (*holdfast.Client, *redlock.Driver, error) {
	drv, err := a.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	client, err := holdfast.New(drv, a.options("holdfast"))
	if err != nil {
		return nil, nil, errors.Join(err, drv.Close())
	}
	return client, drv, nil
}

func (a *app) renewCommand() *cobra.Command {
	fl := &ticketFlags{ttl: duration(30 * time.Second)}
	cmd := &cobra.Command{
		Use:   "renew [flags] [NAME]",
		Short: "Renew a lease that acquire took",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.continued(fl, args, func(ctx context.Context, l *holdfast.Lease, drv *redlock.Driver) error {
				t := newTicket(l, time.Duration(fl.ttl))
				if err := drv.Close(); err != nil { // and not the client: that would release
					return err
				}
				return a.hand(t, fl.file)
			})
		},
	}
	fl.define(cmd)
	cmd.Flags().Var(&fl.ttl, "ttl", "how long the lock stands from now on")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) releaseCommand() *cobra.Command {
	fl := &ticketFlags{ttl: duration(10 * time.Second)}
	cmd := &cobra.Command{
		Use:   "release [flags] [NAME]",
		Short: "Release a lease that acquire took",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.continued(fl, args, func(ctx context.Context, l *holdfast.Lease, drv *redlock.Driver) error {
				err := errors.Join(l.Release(ctx), drv.Close())
				if err == nil && fl.file != "" {
					err = os.Remove(fl.file)
				}
				return err
			})
		},
	}
	fl.define(cmd)
	return cmd
}

// continued takes over the lease that the flags name and does something to it.
func (a *app) continued(fl *ticketFlags, args []string, do func(context.Context, *holdfast.Lease, *redlock.Driver) error) error {
	t, err := fl.read(args)
	if err != nil {
		return err
	}
	if t.Owner == "" {
		return exitcode.Usagef("which lease? give --owner ID as acquire printed it, or --file")
	}
	ctx, stop := interruptible()
	defer stop()
	client, drv, err := a.parts(ctx)
	if err != nil {
		return interruptedBy(ctx, err)
	}
	lease, err := client.Adopt(ctx, t.Name, t.Owner, t.Token, &holdfast.AcquireOptions{TTL: time.Duration(fl.ttl), NoRenew: true})
	if err != nil {
		defer client.Close()
		return interruptedBy(ctx, err)
	}
	return do(ctx, lease, drv)
}

func (a *app) checkCommand() *cobra.Command {
	fl := &ticketFlags{}
	cmd := &cobra.Command{
		Use:   "check [flags] [NAME]",
		Short: "Say by the exit code whether a lease still stands: 0 yes, 1 no",
		Long: `Check asks the backend whether the lease of --token still stands. Inside a run it
needs neither name nor token. The answer is as old as the answer is: what must not
happen after the lease ended needs a storage that checks tokens.
`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.check(fl, args) },
	}
	fl.define(cmd)
	a.outputFlag(cmd)
	return cmd
}

func (a *app) check(fl *ticketFlags, args []string) error {
	t, err := fl.read(args)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	client, err := a.client(ctx)
	if err != nil {
		return interruptedBy(ctx, err)
	}
	defer client.Close()
	st, err := client.Inspect(ctx, t.Name)
	if err != nil {
		return interruptedBy(ctx, err)
	}
	held := t.stands(st)
	if !held {
		a.code = exitcode.No
	}
	if a.output == "json" {
		return a.writeJSON(map[string]any{"name": t.Name, "token": t.Token, "held": held, "remaining_ms": remaining(st, held)})
	}
	if !held {
		_, err = fmt.Fprintf(a.io.Out, "gone: %s\n", printable(t.gone(st)))
		return wrote(err)
	}
	_, err = fmt.Fprintf(a.io.Out, "held: %s, token %d, lease %s left\n", printable(t.Name), t.Token, short(st.Remaining))
	return wrote(err)
}

func remaining(st holdfast.Status, held bool) int64 {
	if !held {
		return 0
	}
	return st.Remaining.Milliseconds()
}

// stands says whether t is the lease that st is about. A lease that was handed on
// inside a process has "+k" behind its owner, and k more than the grant's token.
func (t ticket) stands(st holdfast.Status) bool {
	owner, passed, _ := strings.Cut(t.Owner, "+")
	first := t.Token - tokenFromText(passed)
	return st.Held && st.Token == first && (owner == "" || owner == st.ID)
}

// gone says what stands in place of a lease that is gone.
func (t ticket) gone(st holdfast.Status) string {
	if !st.Held {
		return fmt.Sprintf("nobody holds %q", t.Name)
	}
	return fmt.Sprintf("%q is held by %v, token %d", t.Name, st.Holder, st.Token)
}
