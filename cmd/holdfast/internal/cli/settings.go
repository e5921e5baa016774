package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// systemConfig is the config file of all users.
const systemConfig = "/etc/holdfast/config"

// exclusiveFlags lists pairs of flags that exclude each other: a source that sets one of them also overrides
// the other one in later sources.
var exclusiveFlags = map[string]string{
	"wait": "no-wait", "no-wait": "wait", "guard": "no-guard", "no-guard": "guard", "backend": "backend-file", "backend-file": "backend",
}

// source returns the value that one place sets for a flag, and the name of the place.
type source func(flag string) (text, where string)

// fromEnvironment is the source that reads environment variables.
func fromEnvironment(flag string) (text, where string) {
	return os.Getenv(variableName(flag)), variableName(flag)
}

// variableName returns the environment variable that sets a flag.
func variableName(flag string) string {
	return "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// configLine is a line "flag = value" of a config file. A backend may have several lines, each with some of
// its URLs, as in the file of --backend-file.
type configLine struct {
	number int
	value  string
}

// readConfig reads a config file. It rejects a flag that no command has.
func readConfig(path string, known func(string) bool) (source, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines := make(map[string]configLine)
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		at := number
		value, bad := configValue(value)
		switch {
		case !ok:
			return nil, exitcode.Usagef("%s:%d: write a flag without dashes, =, and its value, as in ttl = 20s", path, number)
		case !known(name):
			return nil, exitcode.Usagef("%s:%d: no command has a flag --%s", path, number, name)
		case bad != nil:
			return nil, exitcode.Usagef("%s:%d: %s: %w", path, number, name, bad)
		case lines[name].number > 0 && name != "backend":
			return nil, exitcode.Usagef("%s:%d: %s is set in line %d already", path, number, name, lines[name].number)
		case lines[name].number > 0:
			at, value = lines[name].number, lines[name].value+" "+value
		}
		lines[name] = configLine{at, value}
	}
	return func(flag string) (text, where string) {
		return lines[flag].value, fmt.Sprintf("%s:%d", path, lines[flag].number)
	}, nil
}

// configValue parses the value of a line: the text up to a comment, which begins with " #", or the text
// between two quotes.
func configValue(text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" || text[0] != '"' && text[0] != '\'' {
		text, _, _ = strings.Cut(" "+text, " #")
		text, _, _ = strings.Cut(text, "\t#")
		return strings.TrimSpace(text), nil
	}
	value, rest, ended := strings.Cut(text[1:], text[:1])
	switch rest = strings.TrimSpace(rest); {
	case !ended:
		return "", errors.New("the value begins with a quote and does not end with one; put the same quote behind it, or leave both out")
	case rest != "" && rest[0] != '#':
		return "", errors.New("only a comment may follow the closing quote; put the whole value between quotes, of the other kind if it has such")
	}
	return value, nil
}

// nameFlag returns the name of a flag for a message: the flag, variable or line of a file that set it.
func (a *app) nameFlag(flag string) string {
	switch where := a.from[flag]; where {
	case "":
		return "--" + flag
	case "--" + flag, variableName(flag):
		return where
	default:
		return where + ": " + flag
	}
}

// serviceLinks matches the variables that Kubernetes gives each container for a service whose name begins with
// holdfast.
var serviceLinks = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// warnOfVariables warns of variables that look like settings but set no flag.
func (a *app) warnOfVariables(root *cobra.Command) {
	prefix := variableName("")
	var known []string // without the prefix, with which all begin
	for _, cmd := range append(root.Commands(), root) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { // VERSION too, which install scripts set
			known = append(known, strings.TrimPrefix(variableName(f.Name), prefix))
		})
	}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		rest, ours := strings.CutPrefix(name, prefix)
		if !ours || value == "" || strings.HasPrefix(name, run.EnvPrefix) || serviceLinks.MatchString(name) || slices.Contains(known, rest) {
			continue
		}
		mend := "see holdfast config --help"
		if near := driverkit.NearestWord(rest, known); near != "" {
			mend = "did you mean " + prefix + near + "?"
		}
		a.log.Warn(fmt.Sprintf("the variable %s sets nothing; %s", name, mend))
	}
}

// sources returns the sources below the command line, highest priority first.
func (a *app) sources(root *cobra.Command) ([]source, error) {
	all := []source{fromEnvironment}
	for _, path := range a.configFiles() {
		c, err := readConfig(path, func(name string) bool { return hasFlag(root, name) })
		switch {
		case err == nil:
			all = append(all, c)
		case exitcode.Of(err) == exitcode.Usage:
			return nil, err
		case a.config != "":
			return nil, exitcode.Usagef("--config: %w", err)
		case !errors.Is(err, fs.ErrNotExist):
			a.unread = append(a.unread, err)
		}
	}
	return all, nil
}

// configFiles returns the configuration files to read, the user's before the system's.
func (a *app) configFiles() []string {
	if a.config = cmp.Or(a.config, os.Getenv("HOLDFAST_CONFIG")); a.config != "" {
		return []string{a.config}
	}
	files := []string{systemConfig}
	if dir, err := os.UserConfigDir(); err == nil {
		files = slices.Insert(files, 0, filepath.Join(dir, "holdfast", "config"))
	}
	return files
}

// hasFlag reports whether a command has a flag of this name that can be set outside the command line.
func hasFlag(root *cobra.Command, name string) bool {
	if name == "help" || name == "config" || name == "version" {
		return false
	}
	return slices.ContainsFunc(append(root.Commands(), root), func(cmd *cobra.Command) bool {
		return cmd.LocalFlags().Lookup(name) != nil
	})
}

// applySources sets the flags that the command line lacks, and records in a.from the source of each value.
func (a *app) applySources(root *cobra.Command, flags *pflag.FlagSet) error {
	all, err := a.sources(root)
	if err != nil {
		return err
	}
	a.from = make(map[string]string)
	flags.Visit(func(f *pflag.Flag) { a.from[f.Name] = "--" + f.Name })
	for _, look := range all {
		before := maps.Clone(a.from)
		flags.VisitAll(func(f *pflag.Flag) {
			text, where := look(f.Name)
			if err != nil || text == "" || before[f.Name] != "" || before[exclusiveFlags[f.Name]] != "" || !hasFlag(root, f.Name) {
				return
			}
			a.from[f.Name] = where
			if bad := f.Value.Set(text); bad != nil {
				err = exitcode.Usagef("%s=%q: %w", a.nameFlag(f.Name), text, plainError(f.Value.Type(), bad))
			}
		})
	}
	return err
}

// loadBackend reads the URLs from --backend-file, if that is set.
func (a *app) loadBackend() error {
	switch {
	case a.backendFile == "":
	case a.backend != "":
		return exitcode.Usagef("%s and %s contradict each other; give one of them", a.nameFlag("backend"), a.nameFlag("backend-file"))
	default:
		text, err := os.ReadFile(a.backendFile)
		if err != nil {
			return exitcode.Usagef("%s: %w", a.nameFlag("backend-file"), err)
		}
		a.backend = strings.TrimSpace(string(text))
		if a.backend == "" {
			return exitcode.Usagef("%s: the file %s is empty; write the URL of the backend into it", a.nameFlag("backend-file"), a.backendFile)
		}
		a.backendFile = ""
	}
	if a.from["backend"] == "--backend" && driverkit.HasPassword(a.backend) && !a.warned {
		a.warned = true
		a.log.Warn("ps shows the password in --backend to everybody; put the URL into a file and name that by --backend-file")
	}
	return nil
}

// setting is one row of the command config.
type setting struct {
	Flag  string `json:"flag"`
	Value string `json:"value"`
	From  string `json:"from"`
}

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the settings that hold, and where each comes from",
		Long: `Config shows what holds for holdfast run, and where it comes from: a flag of
run, which can be tried here, goes before a variable such as
HOLDFAST_KILL_AFTER, that before the user's config file, and that before
/etc/holdfast/config. --config names one file in place of both. A line has a
flag without dashes, an = and its value:

  backend-file = /run/secrets/holdfast
  ttl = 20s   # a comment; "quotes" keep a # and blanks

A backend may have several lines, each with a URL of a node, or of a set:
a=URL. Passwords are not shown.
`,
		Example: `  holdfast config
  holdfast config --config holdfast.conf --ttl 10s`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.showConfig(cmd) },
	}
	a.outputFlag(cmd)
	newRunFlags().addFlags(cmd) // to show their values; they can also be given here
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Name != "output" })
	return cmd
}

func (a *app) showConfig(cmd *cobra.Command) error {
	all := []setting{}
	rows := [][]string{{"FLAG", "VALUE", "FROM"}}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !hasFlag(cmd.Root(), f.Name) || f.Name == "output" {
			return
		}
		s := setting{Flag: f.Name, Value: driverkit.Mask(f.Value.String()), From: cmp.Or(a.from[f.Name], "default")}
		all = append(all, s)
		if s.Value == "" {
			_, derived, _ := strings.Cut(f.Usage, "(default: ") // such as ttl/3
			s.Value = strings.TrimSuffix(derived, ")")
		}
		rows = append(rows, []string{s.Flag, s.Value, s.From})
	})
	for _, err := range a.unread {
		a.log.Warn("not read: " + err.Error())
	}
	if a.output == "json" {
		return a.writeJSON(all)
	}
	return a.writeTable(rows)
}
