package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/lines"
)

func readRunPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/run.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDocumentHasExitCodeTable(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	for _, r := range exitcode.Table {
		fmt.Fprintf(&table, "| %s | %s |\n", r.Code, r.Meaning)
	}
	if !strings.Contains(readRunPage(t), "| code | meaning |\n|---|---|\n"+table.String()+"\n") {
		t.Errorf("docs/run.md lacks this table:\n%s", table.String())
	}
}

func TestDocumentNamesEveryFlagOfRun(t *testing.T) {
	t.Parallel()
	text := readRunPage(t)
	eachFlag(t, "run", func(f *pflag.Flag) {
		if !strings.Contains(text, "`--"+f.Name) {
			t.Errorf("docs/run.md does not name --%s", f.Name)
		}
	})
}

// eachFlag calls see for every flag of a command.
func eachFlag(t *testing.T, command string, see func(*pflag.Flag)) {
	t.Helper()
	root := (&app{io: IO{Out: new(bytes.Buffer), Err: new(bytes.Buffer)}}).rootCommand()
	cmd, _, err := root.Find([]string{command})
	if err != nil {
		t.Fatal(err)
	}
	all := func(f *pflag.Flag) {
		if f.Name != "help" {
			see(f)
		}
	}
	cmd.LocalFlags().VisitAll(all)
	cmd.InheritedFlags().VisitAll(all)
}

// The test sets each flag by its variable alone, to a wrong value. The error must name the variable.
func TestEveryFlagHasVariable(t *testing.T) {
	wrong := map[string]string{"bool": "maybe", "int": "many"}
	for _, name := range []string{"duration", "code", "policy", "word"} {
		wrong[name] = "wrong"
	}
	eachFlag(t, "run", func(f *pflag.Flag) {
		value, ok := wrong[f.Value.Type()]
		if !ok {
			return // a string, which accepts any value
		}
		t.Run(f.Name, func(t *testing.T) { // not parallel: the environment is the process's
			t.Setenv(variableName(f.Name), value)
			code, _, log := call("run", "job", "--", "true")
			if code != exitcode.Usage || !strings.Contains(log, variableName(f.Name)+`="`+value+`"`) || strings.Contains(log, "strconv") {
				t.Errorf("exit code %d, %q", code, log)
			}
		})
	})
}

// The error for a wrong value names the flag, in the words of this command and not of the parsing library.
func TestWrongValueErrorsArePlain(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--quiet=maybe": `--quiet="maybe": give true or false; see holdfast run --help`, "--status-fd=x": `--status-fd="x": give a whole number`,
		"--ttl=soon": `--ttl="soon": "soon" is not a duration`, "--scope=x": "unknown flag: --scope",
	} {
		if code, _, log := call("run", flag, "job", "--", "true"); code != exitcode.Usage || !strings.Contains(log, want) || strings.Contains(log, "strconv") {
			t.Errorf("%s: exit code %d, %q", flag, code, log)
		}
	}
}

// call runs the program in this process.
func call(args ...string) (code exitcode.Code, out, log string) {
	var o, l bytes.Buffer
	code = Main(append([]string{"holdfast"}, args...), IO{In: strings.NewReader(""), Out: &o, Err: &l})
	return code, o.String(), l.String()
}

// A program that reads JSON also gets JSON for wrong usage, whichever way the format is set.
func TestErrorsHaveLogFormat(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte("log-format = json\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"run", "--no-such-flag", "--log-format", "json"},
		{"run", "--log-format=json", "--ttl", "soon"},
		{"--log-format=json", "no-such-command"},
		{"run", "--log-format=json", "job"},
	} {
		if code, _, log := call(args...); code != exitcode.Usage || !strings.HasPrefix(log, `{"time":`) {
			t.Errorf("%v: exit code %d, %s", args, code, log)
		}
	}
	for name, value := range map[string]string{"HOLDFAST_LOG_FORMAT": "json", "HOLDFAST_CONFIG": file} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if code, _, log := call("run", "--no-such-flag"); code != exitcode.Usage || !strings.HasPrefix(log, `{"time":`) {
				t.Errorf("exit code %d, %s", code, log)
			}
		})
	}
	if _, _, log := call("run", "--no-such-flag", "--", "--log-format=json"); !strings.HasPrefix(log, "holdfast: ") {
		t.Errorf("the arguments of the command set the format: %s", log)
	}
}

func TestPanicExitsWithBugCode(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	code := Main([]string{"holdfast", "version"}, IO{Out: panickingWriter{}, Err: &log})
	if code != exitcode.Bug || !strings.Contains(log.String(), "a fault in holdfast itself") {
		t.Errorf("exit code %d, %q", code, log.String())
	}
}

type panickingWriter struct{}

func (panickingWriter) Write([]byte) (int, error) { panic("no") }

// The help of a command fits on a terminal, except for commands with many flags. It ends with two examples,
// which the tests of this module's root run.
func TestHelpFitsScreen(t *testing.T) {
	t.Parallel()
	for _, cmd := range Command().Commands() {
		most := 24
		switch cmd.Name() {
		case "help", "completion", "exit-codes": // help topics
			continue
		case "run", "elect":
			most = 40
		}
		code, out, log := call(cmd.Name(), "--help")
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if code != exitcode.OK || log != "" || len(lines) > most {
			t.Errorf("%s: exit code %d, %d lines of help, want at most %d", cmd.Name(), code, len(lines), most)
		}
		for i, line := range lines {
			if len(line) > 80 {
				t.Errorf("%s: line %d of the help has %d columns: %s", cmd.Name(), i+1, len(line), line)
			}
		}
		if len(lines) < 3 || lines[len(lines)-3] != "Examples:" || !strings.Contains(lines[len(lines)-1], "holdfast "+cmd.Name()) {
			t.Errorf("%s: the help does not end with two examples:\n%s", cmd.Name(), out)
		}
	}
}

func TestHelpLinksToAnExistingPage(t *testing.T) {
	t.Parallel()
	for _, args := range append([][]string{nil}, commandNames()...) {
		_, out, _ := call(append(args, "--help")...)
		_, path, ok := strings.Cut(out, "https://github.com/holdfast-go/holdfast/blob/main/")
		path, _, _ = strings.Cut(path, "\n")
		if _, err := os.Stat("../../../../" + path); !ok || err != nil {
			t.Errorf("the help of %v links to %q: %v", args, path, err)
		}
	}
}

// commandNames returns the name of each command with its own help.
func commandNames() (all [][]string) {
	for _, cmd := range Command().Commands() {
		if cmd.Runnable() && !cmd.HasAvailableSubCommands() && cmd.Name() != "help" {
			all = append(all, []string{cmd.Name()})
		}
	}
	return all
}

func TestErrorsAreOneLine(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"run"},
		{"no-such-command"},
		{"run", "--no-such-flag"},
		{"run", "--ttl"},
		{"run", "job", "--", "no-such-program"},
		{"run", "-b", "redlock://a,b:x", "job", "--", "true"},
		{"acquire"},
		{"acquire", "one", "two"},
		{"show"},
		{"ls", "one", "two"},
		{"force-release", "job"},
		{"check"},
		{"completion", "no-such-shell"},
		{"demo", "argument"},
	} {
		code, _, log := call(args...)
		if strings.Count(log, "\n") != 1 || code != exitcode.Usage && code != exitcode.NotFound {
			t.Errorf("%v: exit code %d, %q", args, code, log)
		}
	}
}

func TestSecretsStayOutOfErrors(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://:hunter2@127.0.0.1:1", "http://:hunter2@host", "redis://u:hunter2%@host"} {
		if _, _, log := call("show", "-b", url, "job"); strings.Contains(log, "hunter2") || log == "" {
			t.Errorf("%s: %q", url, log)
		}
	}
}

func TestContradictingWaitFlagsAreRejected(t *testing.T) {
	t.Parallel()
	ten := patience{optionalDuration{duration: duration(10 * time.Second), set: true}}
	for _, row := range []struct {
		name        string
		wait        patience
		noWait      bool
		given       string // flags on the command line; the rest is set by variables
		want, fails bool
	}{
		{"ForEver", patience{}, false, "", false, false},
		{"NoWait", patience{}, true, "no-wait", true, false},
		{"ZeroIsNoWait", patience{optionalDuration{set: true}}, false, "wait", true, false},
		{"Wait", ten, false, "wait", false, false},
		{"Contradiction", ten, true, "wait no-wait", false, true},
		{"BothByVariables", ten, true, "", true, false},
	} {
		given := func(flag string) bool { return slices.Contains(strings.Fields(row.given), flag) }
		if got, err := row.wait.isNone(row.noWait, given); got != row.want || (err != nil) != row.fails {
			t.Errorf("%s: no wait %v, %v; want %v, an error %v", row.name, got, err, row.want, row.fails)
		}
	}
}

func TestContradictingGuardFlagsAreRejected(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name           string
		guard, noGuard bool
		given          string // flags on the command line; the rest are defaults
		want, fails    bool
	}{
		{"Neither", true, false, "", true, false},
		{"Guard", true, false, "guard", true, false},
		{"GuardFalse", false, false, "guard", false, false},
		{"NoGuard", true, true, "no-guard", false, false},
		{"NoGuardTwice", false, true, "guard no-guard", false, false},
		{"Contradiction", true, true, "guard no-guard", false, true},
	} {
		fl := &runFlags{guard: row.guard, noGuard: row.noGuard}
		a := &app{from: make(map[string]string)}
		for flag := range strings.FieldsSeq(row.given) {
			a.from[flag] = "--" + flag
		}
		if got, err := fl.wantsGuard(a); got != row.want || (err != nil) != row.fails {
			t.Errorf("%s: %v, %v; want %v, an error %v", row.name, got, err, row.want, row.fails)
		}
	}
}

// The text shows the program, and nothing that may be a secret.
func TestShownCommandHidesSecrets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"make deploy && make smoke":       "make deploy && make smoke",
		"PGPASSWORD=s3cret psql -c x":     "psql",
		"mysql -ps3cret":                  "mysql",
		"curl https://u:s3cret@h":         "curl",
		"login 's3cret'":                  "login",
		"A=1":                             "sh",
		"'":                               "sh",
		"one " + strings.Repeat("x", 100): "one",
	} {
		if got := shownCommand([]string{"/bin/sh", "-c", text, "sh", "s3cret"}); got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
	if got := shownCommand([]string{"/usr/bin/report.sh", "s3cret"}); got != "report.sh" {
		t.Errorf("%q", got)
	}
}

func TestLogOmitsEmptyAttributes(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		log := lines.New(&b, format, slog.LevelInfo)
		var none error
		log.Info("node changed", "node", "a:1", "cause", none)
		if text := b.String(); strings.Contains(text, "cause") || strings.Contains(text, "nil") || !strings.Contains(text, "a:1") {
			t.Errorf("%s: %s", format, text)
		}
	}
}

func TestHandedOverLeaseMatchesTicket(t *testing.T) {
	t.Parallel()
	st := holdfast.Status{Held: true, Token: 64, Owner: "client.1"}
	for _, row := range []struct {
		ticket ticket
		want   bool
	}{
		{ticket{Token: 64, Owner: "client.1"}, true},
		{ticket{Token: 64}, true},
		{ticket{Token: 66, Owner: "client.1+2"}, true},
		{ticket{Token: 66, Owner: "client.1+1"}, false},
		{ticket{Token: 66, Owner: "client.1"}, false},
		{ticket{Token: 64, Owner: "other.1"}, false},
	} {
		if got := row.ticket.matchesStatus(st); got != row.want {
			t.Errorf("%+v stands: %v, want %v", row.ticket, got, row.want)
		}
	}
	if (ticket{Token: 64}).matchesStatus(holdfast.Status{Token: 64}) {
		t.Error("a free lock matches the ticket")
	}
}

func TestCodesFollowErrors(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err  error
		want exitcode.Code
	}{
		{nil, exitcode.OK},
		{errors.New("odd"), exitcode.Bug},
		{&holdfast.HeldError{}, exitcode.Busy},
		{&holdfast.UnavailableError{}, exitcode.Unavailable},
		{holdfast.ErrLost, exitcode.Lost},
		{fmt.Errorf("x: %w", holdfast.ErrInvalid), exitcode.Usage},
		{exitcode.Interruption{Signal: 15}, 143},
		{errors.Join(&holdfast.HeldError{}, exitcode.Interruption{Signal: 2}), 130},
	} {
		if got := exitcode.Of(row.err); got != row.want {
			t.Errorf("%v: code %d, want %d", row.err, got, row.want)
		}
	}
}

func TestConsolePageNamesEveryFlag(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../docs/console.md")
	if err != nil {
		t.Fatal(err)
	}
	root := (&app{io: IO{Out: new(bytes.Buffer), Err: new(bytes.Buffer)}}).rootCommand()
	for _, name := range []string{"top", "console"} {
		cmd, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !strings.Contains(string(text), "`"+name+" --"+f.Name) {
				t.Errorf("docs/console.md does not name --%s of %s", f.Name, name)
			}
		})
	}
}

// The prompt asks about a change that cannot be undone.
func TestInterruptedPromptCancelsChange(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(exitcode.Interruption{Signal: syscall.SIGINT})
	silent, typed := io.Pipe()
	defer typed.Close()
	a := &app{io: IO{In: silent, Err: io.Discard}}
	err := signalOrError(ctx, a.askConfirmation(ctx, "sure? ", "yes"))
	if want := "SIGINT ended this command before it was confirmed; nothing was done"; fmt.Sprint(err) != want || exitcode.Of(err) != 130 {
		t.Errorf("%v, code %d, want %q", err, exitcode.Of(err), want)
	}
}

func TestInterruptedWaitNamesLastObstacle(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(exitcode.Interruption{Signal: syscall.SIGTERM})
	down := &holdfast.UnavailableError{Err: errors.New("silent")}
	err := waitEnded(ctx, "job", fmt.Errorf("%w: %w", context.Canceled, down))
	if want := `SIGTERM ended the wait for "job"; no lock was taken; what stood in the way last: silent`; fmt.Sprint(err) != want || exitcode.Of(err) != 143 {
		t.Errorf("%v, code %d, want %q", err, exitcode.Of(err), want)
	}
}
