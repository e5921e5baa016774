// Package cli is the command line of holdfast: its commands, flags and texts.
package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/lines"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// IO holds the streams that a command reads and writes.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
	Terminal bool // In is a terminal
}

// System returns the IO of this process. A closed pipe then causes a write error, instead of a signal that
// kills a process which may hold a lock.
func System() IO {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Terminal: isTerminal(os.Stdin)}
}

// app is one run of the program.
type app struct {
	io   IO
	self proc.Self
	log  *slog.Logger

	config         string // replaces the config files of the user and of the system
	backend        string
	backendFile    string
	output         string
	quiet, verbose bool
	logFormat      string
	prepared       bool           // the flags are read and log is set up
	code           exitcode.Code  // exit code if there is no error
	raise          syscall.Signal // signal by which to end this process
	leaves         bool           // the opened backend can leave a lock to other processes

	from   map[string]string // by flag: source of its value; no entry: the default
	unread []error           // errors of config files that exist
	warned bool              // the user was warned that ps shows a password
}

// Main runs the program with args, which begin with its name, and returns its exit code.
func Main(args []string, stdio IO) (code exitcode.Code) {
	if len(args) > 2 && args[1] == proc.HeirName {
		return finishOrphan(stdio.In, lines.New(stdio.Err, args[2], slog.LevelInfo))
	}
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintf(stdio.Err, "holdfast: a fault in holdfast itself, please report it: %v\n%s", r, debug.Stack())
			code = exitcode.Bug
		}
	}()
	out := &watchedWriter{Writer: stdio.Out}
	stdio.Out = out
	a := &app{io: stdio, self: proc.Myself(args[0])}
	a.log = lines.New(stdio.Err, "text", slog.LevelInfo)
	root := a.rootCommand()
	root.SetArgs(args[1:])
	cmd, err := root.ExecuteC()
	if out.err != nil && (err == nil || exitcode.Of(err) == exitcode.Bug) { // such as help or completion
		err = outputError(out.err)
	}
	if a.raise != 0 {
		endBySignal(a.raise)
	}
	if err == nil {
		return a.code
	}
	if !a.prepared {
		a.log = lines.New(stdio.Err, a.requestedFormat(root, args[1:]), slog.LevelInfo)
	}
	if !readerClosedPipe(cmd, err) {
		a.log.Error(oneLine(adviseDoctor(err)))
	}
	return exitcode.Of(err)
}

// readerClosedPipe reports whether cmd failed because its reader closed the pipe, as head does. The output of
// acquire and renew names a lease, so a failure to write it is an error.
func readerClosedPipe(cmd *cobra.Command, err error) bool {
	return exitcode.Of(err) == exitcode.Output && errors.Is(err, syscall.EPIPE) && cmd.Name() != "acquire" && cmd.Name() != "renew"
}

// requestedFormat returns the log format for errors that occur before the flags are read.
func (a *app) requestedFormat(root *cobra.Command, args []string) string {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		if value, ok := strings.CutPrefix(arg, "--log-format="); ok {
			return value
		}
		if arg == "--log-format" && i+1 < len(args) {
			return args[i+1]
		}
	}
	all, _ := a.sources(root) // errors of the sources are reported elsewhere
	for _, look := range append(all, fromEnvironment) {
		if value, _ := look("log-format"); value != "" {
			return value
		}
	}
	return ""
}

// oneLine formats an error as one line.
func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\t' })
	return strings.TrimPrefix(strings.Join(lines, " "), "holdfast: ")
}

const longDescription = `Holdfast runs commands under a lock that several machines share, and looks
after such locks. The backend, where they are kept, is given by a URL:

  redis://localhost:6379        one Redis or Valkey; rediss:// speaks TLS
  redlock://a:6379,b:6379,c     several independent ones, of which a majority decides;
                                a new set of them gives no lock in its first 62 seconds
  sqlite:///path/locks.db       a file, for the processes of one machine, with no server
  postgres://host/database      PostgreSQL
  mysql://host/database         MySQL or MariaDB
  etcd://a,b,c                  etcd
  zk://a,b,c                    ZooKeeper
  'a=URL b=URL'                 several of these, each with a part of the names

  export HOLDFAST_BACKEND=redis://localhost:6379
  holdfast run nightly-report -- ./report.sh
`

// gettingStarted is printed if no backend is set.
const gettingStarted = `Holdfast runs commands under a lock that several machines share.
No backend is set, where the locks are kept. To see what it does without one:
  holdfast demo
On one machine, a file will do, with no server:
  export HOLDFAST_BACKEND=sqlite:///tmp/locks.db
  holdfast run first -- echo "I have the lock"
  holdfast doctor    # what is wrong, and how to fix it
Which service to take for several machines: https://github.com/holdfast-go/holdfast/blob/main/docs/choosing.md
All commands:
  holdfast --help
`

// completionHelp shows how to load completions; the help of each subcommand has more.
const completionHelp = `Completion prints a script by which a shell completes commands, flags and the
names of locks. For the present shell:

  source <(holdfast completion bash)       # needs the package bash-completion
  source <(holdfast completion zsh)
  holdfast completion fish | source

For every new one, put that line into ~/.bashrc, ~/.zshrc (after compinit) or
~/.config/fish/config.fish.
`

// usageEnd is the last part of every help text.
const usageEnd = `
Every flag can be set by a variable as well, --kill-after by HOLDFAST_KILL_AFTER,
and in a config file: see holdfast config --help.
Write durations as 90s, 1m30s or 250ms; a number alone means seconds.
"holdfast help exit-codes" explains the exit codes.
All pages: https://github.com/holdfast-go/holdfast/blob/main/docs/README.md
`

// usageOf returns the usage part of a command's help. It fits a screen and ends with the examples, which most
// readers look for.
func usageOf(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s\n", cmd.UseLine())
	if cmd.HasAvailableLocalFlags() {
		b.WriteString("\n" + cmd.LocalFlags().FlagUsagesWrapped(80))
	}
	b.WriteString("\nBesides: -b URL, -q, -v, and the other flags of holdfast --help. A variable such\n" +
		"as HOLDFAST_KILL_AFTER or a config file sets each. See holdfast help exit-codes.\n" +
		pageURL(cmp.Or(pages[cmd.Name()], "run.md")) + "\n")
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	return b.String()
}

// pages names the page of each command that docs/run.md does not describe.
var pages = map[string]string{
	"console": "console.md", "top": "console.md", "doctor": "operations.md", "leaks": "operations.md", "migrate": "postgres.md",
}

// pageURL returns the URL of a page below docs/.
func pageURL(name string) string {
	return "https://github.com/holdfast-go/holdfast/blob/main/docs/" + name
}

// Command returns the root command, for the program and for the manual.
func Command() *cobra.Command { return new(app).rootCommand() }

func (a *app) rootCommand() *cobra.Command {
	version := false
	root := &cobra.Command{
		SuggestionsMinimumDistance: 2,

		Use:           "holdfast",
		Short:         "Run commands under a lock that several machines share",
		Long:          longDescription,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return errNoCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return a.writeVersion()
			}
			if a.from["backend"]+a.from["backend-file"] == "" {
				_, err := fmt.Fprint(a.io.Out, gettingStarted)
				return outputError(err)
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.setUp(cmd) },
	}
	root.SetIn(a.io.In)
	root.SetOut(a.io.Out)
	root.SetErr(a.io.Err)
	replaceTexts(root)
	root.Flags().BoolVar(&version, "version", false, "print the version")
	f := root.PersistentFlags()
	f.SortFlags = false
	f.StringVarP(&a.backend, "backend", "b", "", "`URL` of the backend")
	f.StringVar(&a.backendFile, "backend-file", "", "`file` that has the URL, for one with a password")
	f.StringVar(&a.config, "config", "", "config `file`, see holdfast config --help")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print errors only")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "print what happens to the lease as well")
	f.StringVar(&a.logFormat, "log-format", "text", "`format` on stderr: text or json")
	root.AddCommand(
		a.runCommand(), a.electCommand(), a.acquireCommand(), a.renewCommand(), a.releaseCommand(), a.checkCommand(),
		a.showCommand(), a.listCommand(), a.watchCommand(), a.topCommand(), a.consoleCommand(), a.forceCommand(), a.doctorCommand(), a.leaksCommand(),
		a.configCommand(), a.migrateCommand(), a.demoCommand(), a.versionCommand(),
		&cobra.Command{Use: "exit-codes", Short: "What exit codes mean", Long: "Exit codes:\n\n" + exitcode.Help()}, // a help topic: the command does nothing
	)
	addBuiltIns(root)
	completeWords(root)
	return root
}

// replaceTexts replaces cobra's texts for flag errors and usage.
func replaceTexts(root *cobra.Command) {
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			f := bad.GetFlag()
			err = fmt.Errorf("--%s=%q: %w", f.Name, bad.GetValue(), plainError(f.Value.Type(), bad.Unwrap()))
		}
		see := fmt.Sprintf("see %s --help", cmd.CommandPath())
		if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
			var known []string
			cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
			if near := driverkit.NearestWord(name, known); near != "" {
				see = fmt.Sprintf("did you mean --%s? See %s --help", near, cmd.CommandPath())
			}
		}
		return exitcode.Usagef("%w; %s", err, see)
	})
	usage := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error { // a template would keep the linker from removing unused methods
		if cmd.HasParent() && cmd.Runnable() && !cmd.HasAvailableSubCommands() {
			cmd.Print(usageOf(cmd))
			return nil
		}
		err := usage(cmd)
		cmd.Print(usageEnd)
		return err
	})
}

// addBuiltIns adds the commands and flags for help and completion.
func addBuiltIns(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		cmd.InitDefaultHelpFlag()
		cmd.Flags().Lookup("help").Hidden = true // its reader knows it
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				if about, _, err := root.Find(args); err != nil || about == root && len(args) > 0 {
					return errNoCommand(root, args[0])
				}
				return nil
			}
		case "completion":
			cmd.Long = completionHelp
			cmd.Args = nil
			cmd.RunE = func(*cobra.Command, []string) error {
				return exitcode.Usagef("which shell? give bash, zsh, fish or powershell; see holdfast completion --help")
			}
		}
	}
}

// completeWords completes the values of flags with a fixed list of words, for all commands below root.
func completeWords(root *cobra.Command) {
	fixed := map[string][]string{"on-lost": {"term", "kill", "signal=INT", "signal=USR1", "warn"}, "log-format": {"text", "json"}, "output": {"table", "json"}}
	complete := func(cmd *cobra.Command, f *pflag.Flag) {
		words := fixed[f.Name]
		if c, ok := f.Value.(*choice); ok {
			words = c.words
		}
		if words != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // cannot fail for a flag of cmd
		}
	}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { complete(root, f) })
	for _, cmd := range root.Commands() {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { complete(cmd, f) })
	}
}

// errNoCommand returns the error for an unknown command, with the closest command.
func errNoCommand(root *cobra.Command, name string) error {
	text := "see holdfast --help"
	if close := root.SuggestionsFor(name); len(close) > 0 {
		text = "did you mean " + strings.Join(close, " or ") + "? See holdfast --help"
	}
	return exitcode.Usagef("there is no command %q; %s", name, text)
}

// noArguments rejects arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return exitcode.Usagef("%s takes no arguments, not %q", cmd.CommandPath(), args)
	}
	return nil
}

// setUp reads the variables and config files and sets up the log, before a command runs.
func (a *app) setUp(cmd *cobra.Command) error {
	if err := a.applySources(cmd.Root(), cmd.Flags()); err != nil {
		return err
	}
	if a.logFormat != "text" && a.logFormat != "json" {
		return exitcode.Usagef("%s %q is neither text nor json", a.nameFlag("log-format"), a.logFormat)
	}
	if a.output != "" && a.output != "table" && a.output != "json" {
		return exitcode.Usagef("%s %q is neither table nor json", a.nameFlag("output"), a.output)
	}
	level := slog.LevelInfo
	switch {
	case a.quiet:
		level = slog.LevelError
	case a.verbose:
		level = slog.LevelDebug
	}
	a.log, a.prepared = lines.New(a.io.Err, a.logFormat, level), true
	a.warnOfVariables(cmd.Root())
	return nil
}

func (a *app) outputFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.output, "output", "o", "table", "`format`: table or json")
}

// wantName returns the lock name for a command from the arguments, or otherwise, if there is none.
func wantName(verb string, args []string, otherwise string) (string, error) {
	switch {
	case len(args) > 1:
		return "", exitcode.Usagef("one name is expected, not %d: %s", len(args), strings.Join(args, " "))
	case len(args) == 1 && args[0] == "":
		return "", exitcode.Usagef("the name of the lock is empty; is a variable not set?")
	case len(args) == 1:
		return args[0], nil
	case otherwise != "":
		return otherwise, nil
	}
	return "", exitcode.Usagef("the name of the lock is missing, as in: holdfast %s nightly-report", verb)
}

// endBySignal ends this process, and all others of its group, by a signal.
func endBySignal(s syscall.Signal) {
	signal.Reset(s)
	signalGroup(s)
}

// watchedWriter remembers the first write error.
type watchedWriter struct {
	io.Writer
	err error
}

// Write implements io.Writer.
func (w *watchedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if w.err == nil {
		w.err = err
	}
	return n, err
}

var errOutput = errors.New("the output could not be written")

// outputError wraps the error of a write in its exit code.
func outputError(err error) error {
	if err == nil {
		return nil
	}
	return exitcode.With(exitcode.Output, fmt.Errorf("%w: %w; look at what reads it", errOutput, err))
}
