package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/report"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/driver"
)

// ticket names a lease that outlives the process which acquired it. A process with the ticket can renew and
// release the lease.
type ticket struct {
	Name      string         `json:"name"`
	Token     holdfast.Token `json:"token"`
	Owner     string         `json:"owner"`
	TTLMS     int64          `json:"ttl_ms,omitempty"`
	ExpiresAt time.Time      `json:"expires_at,omitzero"`
}

func newTicket(l *holdfast.Lease, ttl time.Duration) ticket {
	return ticket{
		Name: l.Key(), Token: l.Token(), Owner: l.Owner(), TTLMS: ttl.Milliseconds(), ExpiresAt: l.Deadline().UTC().Round(time.Millisecond),
	}
}

// ticketFlags name a lease.
type ticketFlags struct {
	token int64
	owner string
	file  string
	ttl   positiveDuration
	// changes is true if --ttl was given.
	changes bool
}

func (fl *ticketFlags) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.Int64Var(&fl.token, "token", 0, "fencing token of the lease")
	f.StringVar(&fl.owner, "owner", "", "owner `id` of the lease")
	f.StringVar(&fl.file, "file", "", "`file` that acquire wrote, in place of these")
}

// readTicket combines what the flags, the file and, inside a run, the environment contain. A missing file
// gives ErrLost: release has removed it.
func (fl *ticketFlags) readTicket(verb string, args []string) (t ticket, err error) {
	if fl.file != "" {
		text, err := report.ReadFile(fl.file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return t, fmt.Errorf("%w: there is no file %s, which acquire writes and release removes", holdfast.ErrLost, fl.file)
		case err != nil:
			return t, exitcode.Usagef("--file: %w", err)
		}
		if err := json.Unmarshal(text, &t); err != nil {
			return t, exitcode.Usagef("--file %s is not what acquire --file writes: %w", fl.file, err)
		}
	}
	inside := run.Inside()
	otherwise := t.Name
	if otherwise == "" && len(inside) == 1 {
		otherwise = inside[0].Name
	}
	if t.Name, err = wantName(verb, args, otherwise); err != nil {
		return t, err
	}
	if i := slices.IndexFunc(inside, func(l run.Lease) bool { return l.Name == t.Name }); fl.file == "" && i >= 0 {
		t.Token, t.Owner = inside[i].Token, inside[i].Owner
	}
	if fl.token != 0 {
		t.Token = holdfast.Token(fl.token)
	}
	if fl.owner != "" {
		t.Owner = fl.owner
	}
	switch {
	case verb != checkVerb && (t.Token <= 0 || t.Owner == ""):
		return t, exitcode.Usagef("which lease? give --token N and --owner OWNER as acquire printed them, or --file")
	case t.Token <= 0:
		return t, exitcode.Usagef("which lease? give --token N as acquire printed it, or --file")
	}
	return t, nil
}

// checkVerb is the only command that needs just a token, because it changes nothing.
const checkVerb = "check"

// readAll returns the ticket of readTicket. Inside a run of several names, if no lease is named, it returns
// one for each name.
func (fl *ticketFlags) readAll(args []string) (all []ticket, err error) {
	if inside := run.Inside(); len(inside) > 1 && len(args) == 0 && fl.file == "" && fl.token == 0 && fl.owner == "" {
		for _, l := range inside {
			all = append(all, ticket{Name: l.Name, Token: l.Token, Owner: l.Owner})
		}
		return all, nil
	}
	t, err := fl.readTicket(checkVerb, args)
	return []ticket{t}, err
}

func (a *app) acquireCommand() *cobra.Command {
	var noWait bool
	var wait patience
	var file, note string
	ttl := positiveDuration{duration(30 * time.Second)}
	cmd := &cobra.Command{
		Use:   "acquire [flags] NAME",
		Short: "Take a lock and keep it after this command ends, for scripts that run cannot wrap",
		Long: `Acquire takes the lock NAME, prints the lease and exits. The lock is held
for --ttl. No process renews it until holdfast renew does: prefer run.
`,
		Example: `  holdfast acquire --ttl 50s --file deploy.lease deploy
  holdfast acquire -n -o json backup`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := wantName("acquire", args, "")
			if err != nil {
				return err
			}
			now, err := wait.isNone(noWait, cmd.Flags().Changed)
			if err != nil {
				return err
			}
			opts := &holdfast.AcquireOptions{TTL: time.Duration(ttl.duration), Wait: time.Duration(wait.duration), NoRenew: true, Adoptable: true, Note: note}
			return a.acquireTicket(name, file, opts, now)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&noWait, "no-wait", "n", false, "give up at once if the lock is held")
	f.VarP(&wait, "wait", "w", waitHelp)
	f.Var(&ttl, "ttl", "how long the lock is kept")
	f.StringVar(&note, "note", "", "`text` for callers who find it held")
	f.StringVar(&file, "file", "", "`file` for renew, release and check")
	a.outputFlag(cmd)
	return cmd
}

// acquireTicket acquires a lock and prints its ticket. If the output cannot be written, it releases the lock:
// a lease that no process knows would only block others.
func (a *app) acquireTicket(name, file string, opts *holdfast.AcquireOptions, once bool) error {
	if err := cmp.Or(a.loadBackend(), a.fitTTL("ttl", &opts.TTL)); err != nil {
		return err
	}
	place, err := report.File("--file", file)
	if err != nil {
		return exitcode.With(exitcode.Usage, err)
	}
	defer place.Close()
	ctx, stop := signalContext()
	defer stop()
	w := newWait(a.log, name, opts.Wait)
	parent := os.Getppid() // this process will have ended, so name its parent
	options := a.waiterOptions(cmp.Or(proc.Name(parent), "holdfast"), w)
	options.Holder.PID = parent
	patience := run.Patience{Most: opts.Wait, Began: time.Now()}
	var client *holdfast.Client
	if err := patience.During(ctx, func(ctx context.Context) error {
		client, err = a.openForHolder(ctx, options, opts.Wait > 0 && !once)
		return err
	}); err != nil {
		return waitEnded(ctx, name, a.adviseWaiting(err, opts.Wait > 0 || once))
	}
	take := client.Acquire
	if once {
		take = client.TryAcquire
	}
	if !a.leaves {
		err := fmt.Errorf("%w: a lock of a %s:// backend ends with the process that took it, so that acquire has nothing to leave; use run",
			holdfast.ErrUnsupported, a.backendScheme())
		return errors.Join(err, client.Close())
	}
	if err := a.protectFile(ctx, client, file, place.Kept()); err != nil {
		return errors.Join(signalOrError(ctx, err), client.Close())
	}
	stopTelling := w.report(client)
	opts.Wait = patience.Left()
	lease, err := take(ctx, name, opts)
	stopTelling()
	if err != nil {
		defer client.Close()
		return waitEnded(ctx, name, patience.NameEnd(a.busyError(client, err)))
	}
	t := newTicket(lease, opts.TTL)
	if err := a.writeTicket(t, place); err != nil {
		return errors.Join(err, client.Close()) // Close releases the lock
	}
	return errors.Join(lease.Detach(), client.Close())
}

// protectFile rejects a file whose lease is still held, because no other copy of the lease may exist.
func (a *app) protectFile(ctx context.Context, client *holdfast.Client, file string, kept bool) error {
	if !kept {
		return nil
	}
	var t ticket
	if text, err := report.ReadFile(file); err != nil || json.Unmarshal(text, &t) != nil || t.Name == "" {
		return nil // the file has no lease
	}
	if st, err := client.Inspect(ctx, t.Name); err == nil && t.matchesStatus(st) {
		return exitcode.Usagef("--file %s has a lease of %q that still has the lock; release it first, or name another file", file, t.Name)
	}
	return nil
}

// writeTicket writes the ticket to the file and to stdout.
func (a *app) writeTicket(t ticket, file *report.Place) error {
	if err := file.Write(t.text()); err != nil {
		return exitcode.With(exitcode.Output, err)
	}
	err := a.printTicket(t)
	if err != nil {
		file.Remove()
	}
	return err
}

func (t ticket) text() []byte {
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		panic(err) // cannot fail: strings, numbers and times
	}
	return append(view.EscapeJSON(text), '\n')
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

func (a *app) renewCommand() *cobra.Command {
	fl := &ticketFlags{ttl: positiveDuration{duration(30 * time.Second)}}
	cmd := &cobra.Command{
		Use:   "renew [flags] [NAME]",
		Short: "Renew a lease that acquire took",
		Long: `Renew keeps the lock for --ttl from now on, if the lease still has it, or for
the TTL in --file if --ttl is not given. It never takes a free lock: a lease
that is gone stays gone.
`,
		Example: `  holdfast renew --file deploy.lease
  holdfast renew --file deploy.lease --ttl 55s`,
		RunE: func(cmd *cobra.Command, args []string) error {
			fl.changes = cmd.Flags().Changed("ttl")
			return a.withGrant(fl, args, "renew", a.renewTicket)
		},
	}
	fl.addFlags(cmd)
	cmd.Flags().Var(&fl.ttl, "ttl", "how long the lock is kept from now on")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) renewTicket(ctx context.Context, fl *ticketFlags, t ticket, drv driver.Driver, g driver.Grant) error {
	g.TTL = time.Duration(fl.ttl.duration)
	switch had := time.Duration(t.TTLMS) * time.Millisecond; {
	case had == 0:
	case !fl.changes:
		g.TTL = had
	case !drv.Limits().ChangeTTL && g.TTL != had:
		return fmt.Errorf("--ttl %v: %w: it cannot change the %v that the lease has; leave --ttl away", g.TTL, holdfast.ErrUnsupported, had)
	}
	if err := a.fitTTL("ttl", &g.TTL); err != nil {
		return err
	}
	if least := drv.Limits().MinTTL; g.TTL < least {
		return exitcode.Usagef("%s %v: too short; give %v at least", a.nameFlag("ttl"), g.TTL, least)
	}
	file, err := report.File("--file", fl.file)
	if err != nil {
		return exitcode.With(exitcode.Usage, err)
	}
	defer file.Close()
	r := drv.Renew(ctx, []driver.Grant{g})[0]
	if r.Err != nil {
		return r.Err
	}
	t.TTLMS, t.ExpiresAt = g.TTL.Milliseconds(), r.TrustedUntil.UTC().Round(time.Millisecond)
	if err := file.Write(t.text()); err != nil {
		return exitcode.With(exitcode.Output, err)
	}
	return a.printTicket(t)
}

func (a *app) releaseCommand() *cobra.Command {
	fl := &ticketFlags{ttl: positiveDuration{duration(10 * time.Second)}}
	cmd := &cobra.Command{
		Use:        "release [flags] [NAME]",
		SuggestFor: []string{"unlock"},
		Short:      "Release a lease that acquire took",
		Long: `Release frees the lock, if the lease still has it, and removes the file of
--file. A second release, and a renew, then exit with 79, as they do for every
lease that is gone, and check with 1.
`,
		Example: `  holdfast release --file deploy.lease
  holdfast release --token "$TOKEN" --owner "$OWNER" deploy`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withGrant(fl, args, "release", a.releaseTicket)
		},
	}
	fl.addFlags(cmd)
	return cmd
}

func (a *app) releaseTicket(ctx context.Context, fl *ticketFlags, _ ticket, drv driver.Driver, g driver.Grant) error {
	err := drv.Release(ctx, g, 0)
	if err == nil && fl.file != "" {
		err = report.Remove(fl.file)
	}
	return err
}

// withGrant calls do with the lease that the flags name, if it is held.
func (a *app) withGrant(
	fl *ticketFlags, args []string, verb string,
	do func(context.Context, *ticketFlags, ticket, driver.Driver, driver.Grant) error,
) error {
	t, err := fl.readTicket(verb, args)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(run.Inside(), func(l run.Lease) bool { return l.Owner == t.Owner }) {
		return exitcode.Usagef("this lease belongs to holdfast run, which renews and releases it")
	}
	ctx, stop := signalContext()
	defer stop()
	drv, err := a.openDriver(ctx)
	if err != nil {
		return signalOrError(ctx, err)
	}
	client, err := holdfast.New(drv, a.clientOptions("holdfast"))
	if err != nil {
		return err
	}
	defer client.Close()
	st, err := client.Inspect(ctx, t.Name)
	if err != nil {
		return signalOrError(ctx, err)
	}
	if !t.isKnownByNode(st) {
		return &holdfast.Error{Op: verb, Key: t.Name, Err: fmt.Errorf("%w: %s", holdfast.ErrLost, t.describeGone(st))}
	}
	owner, _ := t.grant()
	err = do(ctx, fl, t, drv, driver.Grant{Key: t.Name, Owner: owner, TTL: time.Duration(fl.ttl.duration)})
	if errors.Is(err, holdfast.ErrLost) || errors.Is(err, holdfast.ErrUnavailable) {
		err = &holdfast.Error{Op: verb, Key: t.Name, Err: err}
	}
	return signalOrError(ctx, err)
}

func (a *app) checkCommand() *cobra.Command {
	fl := &ticketFlags{}
	cmd := &cobra.Command{
		Use:   "check [flags] [NAME]",
		Short: "Report by the exit code whether a lease still has the lock: 0 yes, 1 no",
		Long: `Check asks the backend whether a lease still has the lock. Inside a run it needs
neither name nor token, and of several names it asks for all. The answer may be
out of date once it is printed: let a storage that checks tokens protect what is
written later.
`,
		Example: `  holdfast check --file deploy.lease
  holdfast run job -- sh -c 'holdfast check && ./report.sh'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := fl.readAll(args)
			switch {
			case errors.Is(err, holdfast.ErrLost): // released, and its file removed
				a.code = exitcode.No
				return a.writeCheck(all[0], holdfast.Status{}, false, strings.TrimPrefix(err.Error(), holdfast.ErrLost.Error()+": "))
			case err != nil:
				return err
			}
			return a.withClient(a.openReader, func(ctx context.Context, client *holdfast.Client) error {
				for _, t := range all {
					if err := a.checkTicket(ctx, client, t); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	fl.addFlags(cmd)
	a.outputFlag(cmd)
	return cmd
}

func (a *app) checkTicket(ctx context.Context, client *holdfast.Client, t ticket) error {
	st, err := client.Inspect(ctx, t.Name)
	if err != nil {
		return err
	}
	held := t.matchesStatus(st)
	if !held {
		a.code = exitcode.No
	}
	return a.writeCheck(t, st, held, t.describeGone(st))
}

// writeCheck prints whether a lease is held, or what has replaced it.
func (a *app) writeCheck(t ticket, st holdfast.Status, held bool, gone string) error {
	if a.output == "json" {
		return a.writeJSON(map[string]any{"name": t.Name, "token": t.Token, "held": held, "remaining_ms": remainingMillis(st, held)})
	}
	if !held {
		_, err := fmt.Fprintf(a.io.Out, "gone: %s\n", view.Printable(gone))
		return outputError(err)
	}
	_, err := fmt.Fprintf(a.io.Out, "held: %s, token %d, lease %s left\n", view.Printable(t.Name), t.Token, view.Short(st.Remaining))
	return outputError(err)
}

func remainingMillis(st holdfast.Status, held bool) int64 {
	if !held {
		return 0
	}
	return st.Remaining.Milliseconds()
}

// grant returns the owner and the first token of the grant of t.
func (t ticket) grant() (owner string, first holdfast.Token) {
	owner, token := driver.GrantOf(t.Owner, int64(t.Token))
	return owner, holdfast.Token(token)
}

// matchesStatus reports whether st describes the lease of t. With the same owner, most nodes may have a later token,
// which they gave it after the grant. The token of a reader belongs to the name, and its place has another
// token.
func (t ticket) matchesStatus(st holdfast.Status) bool {
	owner, first := t.grant()
	if owner != "" && owner == st.Owner && strings.HasPrefix(st.Holder.Note, "reader of ") {
		return st.Held
	}
	return st.Held && (owner == "" && first == st.Token || owner == st.Owner && (first <= st.Token || t.isKnownByNode(st)))
}

// isKnownByNode reports whether a node on which t has the lock also knows t's token.
func (t ticket) isKnownByNode(st holdfast.Status) bool {
	owner, first := t.grant()
	return st.Held && owner == st.Owner && slices.ContainsFunc(st.Nodes, func(n holdfast.NodeView) bool {
		return n.Err == nil && n.Owner == owner && n.Token == int64(first)
	})
}

// describeGone describes the holder or state that replaced a lost lease.
func (t ticket) describeGone(st holdfast.Status) string {
	if !st.Held {
		return fmt.Sprintf("nobody holds %q", t.Name)
	}
	return fmt.Sprintf("%q is held by %v, token %d", t.Name, st.Holder, st.Token)
}
