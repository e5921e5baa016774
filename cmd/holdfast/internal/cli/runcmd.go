package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const runHelp = `Run waits for the locks NAME (if Redis is down: only with -w), runs the command,
and stops it if a lock is lost. HOLDFAST_LOCK_TOKEN has the fencing token.
`

// waitHelp describes --wait of run and acquire.
const waitHelp = "give up after this time (default: no limit)"

// runFlags are the flags of run, unchecked.
type runFlags struct {
	noWait, skip            bool
	wait                    patience
	maxWaiters, slots       int
	readers                 int
	shared                  bool
	splay                   duration
	busy, lost              code
	unavailable, scope      choice
	ttl, renew, margin      positiveDuration
	killAfter               optionalDuration
	holdAtLeast, maxRuntime duration
	onLost                  run.Policy
	command                 string
	nested                  bool
	note                    string
	guard, noGuard          bool
	statusFile              string
	statusFD                int
	textfile                string
	overdueAfter            duration
	job                     bool // run, not elect: the command is expected to end
}

func newRunFlags() *runFlags {
	return &runFlags{
		busy: code(exitcode.Busy), lost: code(exitcode.Lost), ttl: positiveDuration{duration(30 * time.Second)}, onLost: run.Term,
		unavailable: choice{"fail", []string{"fail", "skip", "run"}}, scope: choice{"group", []string{"group", "process"}},
	}
}

func (a *app) runCommand() *cobra.Command {
	fl := newRunFlags()
	cmd := &cobra.Command{
		Use:        "run [flags] NAME... -- COMMAND [ARGUMENT...]",
		SuggestFor: []string{"lock", "exec"},
		Short:      "Run a command while holding a lock",
		Long:       runHelp,
		Example: `  holdfast run nightly-report -- ./report.sh
  holdfast run -w 10m --max-runtime 1h deploy -- ./deploy.sh`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runUnderLock(cmd, fl, args) },
	}
	fl.job = true
	fl.addFlags(cmd)
	return cmd
}

func (fl *runFlags) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&fl.noWait, "no-wait", "n", false, "give up at once if the lock is held")
	f.VarP(&fl.wait, "wait", "w", waitHelp)
	f.IntVar(&fl.maxWaiters, "max-waiters", 0, "give up at once if so many wait already")
	f.IntVar(&fl.slots, "slots", 0, "let so many hold it at once")
	f.IntVar(&fl.readers, "readers", 0, "let so many read, or one write")
	f.BoolVar(&fl.shared, "shared", false, "be one of these readers")
	f.VarP(&fl.busy, "conflict-exit-code", "E", "exit code when it is held")
	f.BoolVarP(&fl.skip, "skip-ok", "x", false, "exit with 0 when it is held")
	f.Var(&fl.unavailable, "if-unavailable", "backend down: fail, skip, run")
	f.BoolVar(&fl.nested, "nested", false, "wait for a run around this one, too")
	f.Var(&fl.splay, "splay", "first wait a random time up to this")
	f.Var(&fl.holdAtLeast, "hold-at-least", "keep the lock this long at least")
	f.Var(&fl.maxRuntime, "max-runtime", "stop the command after this time")
	f.Var(&fl.overdueAfter, "overdue-after", "in --textfile: alert if none succeeds so long")
	fl.defineCommand(cmd)
}

// defineCommand defines the flags of run and elect.
func (fl *runFlags) defineCommand(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	note := "`text` for callers who find it held"
	if !fl.job {
		note = "`text` that the leader proclaims"
	}
	f.StringVar(&fl.note, "note", "", note)
	f.StringVarP(&fl.command, "command", "c", "", "run this `string` with /bin/sh -c")
	f.Var(&fl.ttl, "ttl", "time a lock outlives holdfast")
	f.Var(&fl.renew, "renew", "renew this often (default: ttl/3)")
	f.Var(&fl.killAfter, "kill-after", "from TERM to KILL (default: ttl/6, max 5s)")
	f.Var(&fl.margin, "margin", "from KILL to the end (default: ttl/20)")
	f.Var(&fl.onLost, "on-lost", "term, kill, signal=SIG or warn")
	f.Var(&fl.lost, "lost-exit-code", "exit code when it is lost")
	f.Var(&fl.scope, "signal-scope", "signals go to: group, process")
	f.BoolVar(&fl.guard, "guard", true, "kill it if holdfast dies")
	f.BoolVar(&fl.noGuard, "no-guard", false, "let it run on if holdfast dies")
	f.Lookup("guard").Hidden = true // the default; overrides no-guard in a config file
	f.StringVar(&fl.statusFile, "status-file", "", "`file` for how it ends, as JSON")
	f.IntVar(&fl.statusFD, "status-fd", 0, "the same, to an open descriptor")
	f.StringVar(&fl.textfile, "textfile", "", "`file` for metrics, for Prometheus")
}

// runUnderLock runs a command under a lock.
func (a *app) runUnderLock(cmd *cobra.Command, fl *runFlags, args []string) error {
	j, err := a.newJob(cmd, fl, args)
	if err != nil {
		return err
	}
	defer j.close()
	j.manager.notifyWaiting("waiting for %s", j.plan.Locks())
	res := j.newRunner(fl.wait.duration > 0 && !j.plan.NoWait).Run(j.plan)
	a.code, a.raise = res.Status.ExitCode, res.Raise
	if a.code == exitcode.OK && !res.Status.Started {
		j.manager.notifyReady("not run: %s", oneLine(res.Err)) // else systemd reports a failure, because the service never was ready
	}
	j.printConclusion(res)
	j.reports.end(res.Status)
	return nil
}

// job is a command to run, and the receivers of its reports.
type job struct {
	app     *app
	plan    *run.Plan
	log     *slog.Logger
	reports *reports
	manager *manager
}

// newJob checks all that can be checked before the lock is requested.
func (a *app) newJob(cmd *cobra.Command, fl *runFlags, args []string) (*job, error) {
	r, err := a.openReports(fl)
	if err != nil {
		return nil, err
	}
	plan, err := a.newPlan(cmd, fl, args)
	if err == nil {
		r.begun.Name = plan.Name()
		err = r.begin()
	}
	if err != nil {
		st := run.Status{Outcome: run.Failed, ExitCode: exitcode.Of(err), Error: err.Error(), BeganAt: r.begun.BeganAt, EndedAt: time.Now().UTC()}
		if dash := cmd.ArgsLenAtDash(); len(args) > 0 && dash != 0 {
			st.Name = strings.Join(args[:max(dash, 1)], " ")
		}
		r.end(st)
		r.close()
		return nil, err
	}
	if missing := run.Missing(); missing != "" {
		a.log.Debug("on this system, " + missing)
	}
	return &job{app: a, plan: plan, log: a.log.With("name", plan.Name()), reports: r, manager: newManager()}, nil
}

func (j *job) close() {
	j.reports.close()
	j.manager.close()
}

// newRunner returns the runner of the job. If patient, it also waits for a backend that is down.
func (j *job) newRunner(patient bool) *run.Runner {
	a, plan := j.app, j.plan
	w := newWait(j.log, slices.Min(plan.Names), plan.Wait)
	return &run.Runner{
		Self: proc.Self{Path: a.self.Path, Name: a.self.Name, Log: a.logFormat}, Log: j.log,
		Open: func(ctx context.Context, renewed func(holdfast.RenewedEvent)) (*holdfast.Client, error) {
			opts := a.waiterOptions(shownCommand(plan.Args), w)
			opts.Hooks.Renewed = renewed
			client, err := a.openForHolder(ctx, opts, patient)
			return client, a.adviseWaiting(err, patient || plan.NoWait || plan.Otherwise != "fail")
		},
		Waits: w.report,
		Take:  run.Take,
		Started: func(held run.Held) {
			j.reports.noteStart(held)
			j.manager.notifyReady("running the command under %s", plan.Locks())
		},
		Reloaded: j.manager.notifyReloaded,
		Orphan:   func(held run.Held) []byte { return a.encodeOrphan(held, plan.TTL, plan.HoldAtLeast) },
		Busy:     a.busyError,
	}
}

// printConclusion logs why the command was not run, or was stopped.
func (j *job) printConclusion(res run.Result) {
	log := j.log.With("outcome", res.Status.Outcome, "exit_code", res.Status.ExitCode)
	switch {
	case res.Err == nil:
	case res.Status.ExitCode == exitcode.OK && !res.Status.Started: // skipped as requested
		log.Info("not run: " + oneLine(res.Err))
	default:
		log.Error(oneLine(adviseDoctor(res.Err)))
	}
}

func (a *app) newPlan(cmd *cobra.Command, fl *runFlags, args []string) (*run.Plan, error) {
	given := cmd.Flags().Changed
	names, argv, err := fl.splitArgs(cmd.ArgsLenAtDash(), given("command"), args)
	if err != nil {
		return nil, err
	}
	if err := a.loadBackend(); err != nil {
		return nil, err
	}
	if given("slots") && (fl.slots < 1 || len(names) > 1) {
		return nil, exitcode.Usagef("--slots %d of %s: give 1 to 64, and one NAME", fl.slots, strings.Join(names, " "))
	}
	switch {
	case fl.shared && fl.readers == 0:
		return nil, exitcode.Usagef("--shared without --readers N: give the number that all runs of %s give", strings.Join(names, " "))
	case fl.slots > 0 && fl.readers > 0:
		return nil, exitcode.Usagef("--slots %d and --readers %d contradict each other; give one of them", fl.slots, fl.readers)
	case (given("readers") || fl.shared) && (fl.readers < 2 || len(names) > 1):
		return nil, exitcode.Usagef("--readers %d of %s: give 2 to 64, the same in each run, and one NAME", fl.readers, strings.Join(names, " "))
	}
	if fl.maxWaiters < 0 {
		return nil, exitcode.Usagef("--max-waiters %d: give 1 at least, or 0 for no bound; -n does not wait at all", fl.maxWaiters)
	}
	path, err := findProgram(argv[0])
	if err != nil {
		return nil, err
	}
	noWait, err := fl.wait.isNone(fl.noWait, given)
	if err != nil {
		return nil, err
	}
	guard, err := fl.wantsGuard(a)
	if err != nil {
		return nil, err
	}
	p := &run.Plan{
		Names: names, Path: path, Args: argv, Backend: a.backendScheme(), Secret: driverkit.Mask(os.Getenv("HOLDFAST_BACKEND")) != os.Getenv("HOLDFAST_BACKEND"),
		NoWait: noWait, Wait: time.Duration(fl.wait.duration), MaxWaiters: fl.maxWaiters, Slots: fl.slots, Readers: fl.readers, Shared: fl.shared,
		Splay: time.Duration(fl.splay), Otherwise: fl.unavailable.value,
		TTL: time.Duration(fl.ttl.duration), Renew: time.Duration(fl.renew.duration),
		KillAfter: time.Duration(fl.killAfter.duration), Margin: time.Duration(fl.margin.duration),
		HoldAtLeast: time.Duration(fl.holdAtLeast), MaxRuntime: time.Duration(fl.maxRuntime),
		OnLost: fl.onLost, OnlyChild: fl.scope.value == "process", Guard: guard, Nested: fl.nested, Note: fl.note,
		Busy: exitcode.Code(fl.busy), Lost: exitcode.Code(fl.lost),
	}
	if fl.killAfter.set && p.KillAfter == 0 {
		p.KillAfter = run.AtOnce
	}
	if fl.skip {
		p.Busy = exitcode.OK
	}
	if err := cmp.Or(a.fitTTL("ttl", &p.TTL), a.fitTTL("hold-at-least", &p.HoldAtLeast)); err != nil {
		return nil, err
	}
	if a.backendLimits().Nodes == 0 {
		p.Service = pace.Alone
	}
	return p, p.Defaults()
}

// wantsGuard reports whether the run has a guard.
func (fl *runFlags) wantsGuard(a *app) (bool, error) {
	if fl.noGuard && fl.guard && a.from["guard"] != "" {
		return false, exitcode.Usagef("%s and %s contradict each other; give one of them", a.nameFlag("guard"), a.nameFlag("no-guard"))
	}
	return fl.guard && !fl.noGuard, nil
}

// splitArgs separates the names from the command. dash is the number of arguments before --, or -1. shell
// means that -c was given as a flag; if only its variable is set, a command after -- wins.
func (fl *runFlags) splitArgs(dash int, shell bool, args []string) (names, argv []string, err error) {
	verb := "elect"
	if fl.job {
		verb = "run"
	}
	script := fl.command
	if !shell && dash >= 0 && len(args) > dash {
		script = ""
	}
	switch {
	case dash < 0 && script != "":
		dash = len(args)
	case dash < 0 && len(args) > 1:
		return nil, nil, exitcode.Usagef("put -- between the name and the command: holdfast %s %s -- %s", verb, args[0], strings.Join(args[1:], " "))
	case dash < 0 && len(args) == 1:
		return nil, nil, exitcode.Usagef("the command is missing: holdfast %s %s -- COMMAND", verb, args[0])
	}
	switch {
	case dash < 1:
		return nil, nil, exitcode.Usagef("a name is expected before the command: holdfast %s NAME -- COMMAND", verb)
	case slices.Contains(args[:dash], ""):
		return nil, nil, exitcode.Usagef("the name of the lock is empty; is a variable not set?")
	case dash > 1 && !fl.job:
		return nil, nil, exitcode.Usagef("one name is expected before the command, as there is one leader: holdfast elect NAME -- COMMAND")
	}
	names, argv = args[:dash], args[dash:]
	switch {
	case script != "":
		return names, append([]string{"/bin/sh", "-c", script, "sh"}, argv...), nil
	case len(argv) == 0:
		return nil, nil, exitcode.Usagef("the command is missing: holdfast %s %s -- COMMAND", verb, strings.Join(names, " "))
	}
	return names, argv, nil
}

// maxShownWords bounds, in bytes, the part of a -c text that is stored with the lock.
const maxShownWords = 40

// shownCommand returns the public description of a command: its name, or the first words of a -c text, up to
// anything that may be a secret, such as an option or a variable.
func shownCommand(argv []string) string {
	if argv[0] != "/bin/sh" || len(argv) < 4 || argv[1] != "-c" || argv[3] != "sh" {
		return filepath.Base(argv[0])
	}
	text := ""
	for word := range strings.FieldsSeq(argv[2]) {
		assigns := strings.Contains(word, "=")
		switch {
		case assigns && text == "": // PASSWORD=… command
			continue
		case assigns, strings.ContainsAny(word, `"'`), strings.HasPrefix(word, "-"), strings.Contains(word, "://"), len(text)+len(word) >= maxShownWords:
			return cmp.Or(text, "sh")
		}
		text = strings.TrimPrefix(text+" "+word, " ")
	}
	return cmp.Or(text, "sh")
}

// findProgram finds a program before the lock is requested, so that a missing one costs no lock.
func findProgram(program string) (string, error) {
	path, err := exec.LookPath(program)
	switch {
	case err == nil:
		return path, nil
	case isFolder(program):
		return "", exitcode.With(exitcode.NotExecutable, fmt.Errorf("%s is a folder; name a program in it", program))
	case errors.Is(err, os.ErrPermission), isFile(program):
		return "", exitcode.With(exitcode.NotExecutable, fmt.Errorf("%s cannot be executed; chmod +x makes a program of a file", program))
	case errors.Is(err, exec.ErrDot):
		return "", exitcode.With(exitcode.NotFound, fmt.Errorf("%s is found in the current folder only; write ./%s", program, program))
	case strings.Contains(program, string(filepath.Separator)):
		return "", exitcode.With(exitcode.NotFound, fmt.Errorf("there is no program %s", program))
	}
	return "", exitcode.With(exitcode.NotFound, fmt.Errorf("there is no program %s in PATH; install it, or give its absolute path", program))
}

// isFolder reports whether program, which was not found as a command, is the path of a folder.
func isFolder(program string) bool {
	info, err := os.Stat(program)
	return err == nil && info.IsDir() && strings.Contains(program, string(filepath.Separator))
}

func isFile(path string) bool {
	if !strings.Contains(path, string(filepath.Separator)) {
		return false
	}
	_, err := os.Stat(path)
	return err == nil
}
