package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// doctorFlags are the flags of doctor.
type doctorFlags struct {
	ttl    positiveDuration
	ignore []string
}

func (a *app) doctorCommand() *cobra.Command {
	fl := &doctorFlags{ttl: positiveDuration{duration(10 * time.Second)}}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong with the backend, and tell how to fix it",
		Long: `Doctor looks at each node of the backend and prints a line for each check: the
verdict, what was found, what it means, and how to fix it. It changes nothing
there. It exits with 1 if there is a warning or a fault, and with 0 if there is
none.

A warning means that locks work now. A fault means that locks do not work on
that node, or can be given to two. A skipped check needs a permission that
locks do not need.
`,
		Example: `  holdfast doctor
  holdfast doctor -q --ignore persistence`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error { return a.runDoctor(fl) },
	}
	a.outputFlag(cmd)
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(&fl.ttl, "ttl", "TTL that round trips are held against")
	f.StringSliceVar(&fl.ignore, "ignore", nil, "`checks` that do not count; with -q not shown")
	return cmd
}

func (a *app) runDoctor(fl *doctorFlags) error {
	if err := checkCheckNames(fl.ignore); err != nil {
		return err
	}
	ctx, stop := signalContext()
	defer stop()
	findings, err := a.diagnose(ctx, time.Duration(fl.ttl.duration))
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return signalOrError(ctx, err)
	}
	counts := func(f driver.Finding) bool { return f.Bad() && !slices.Contains(fl.ignore, f.Check) }
	if slices.ContainsFunc(findings, counts) {
		a.code = exitcode.No
	}
	switch {
	case a.output == "json":
		return a.writeJSON(findings)
	case !a.quiet:
		counts = func(driver.Finding) bool { return true }
	case a.code != exitcode.No:
		return nil
	}
	return a.writeTable(findingRows(findings, counts))
}

// checkCheckNames rejects unknown names of checks.
func checkCheckNames(names []string) error {
	for _, name := range names {
		if slices.Contains(driverkit.Checks, name) {
			continue
		}
		if near := driverkit.NearestWord(name, driverkit.Checks); near != "" {
			return exitcode.Usagef("--ignore: there is no check %q; the nearest is %s", name, near)
		}
		return exitcode.Usagef("--ignore: there is no check %q; there are %s", name, strings.Join(driverkit.Checks, ", "))
	}
	return nil
}

// diagnose runs the doctor on the backend, even if the backend cannot be opened.
func (a *app) diagnose(ctx context.Context, ttl time.Duration) ([]holdfast.Finding, error) {
	file := a.backendFilePath()
	if err := a.loadBackend(); err != nil {
		return nil, err
	}
	if a.backend == "" {
		return nil, a.errNoBackend()
	}
	found, err := diagnoseBackend(ctx, a.backend, ttl)
	if file != "" && driverkit.Mask(a.backend) != a.backend {
		var notes driverkit.Findings
		notes.CheckFileModes(file)
		found = append(found, notes.Found...)
	}
	return found, a.nameSetting(err)
}

// backendFilePath returns the file that names the backend; empty: none.
func (a *app) backendFilePath() string {
	at := max(strings.LastIndex(a.from["backend"], ":"), 0) // the line of a config file
	return cmp.Or(a.backendFile, a.from["backend"][:at])
}

// verdictOrder is the order in which findings are shown.
var verdictOrder = []driver.Verdict{driver.VerdictFault, driver.VerdictWarning, driver.VerdictSkipped, driver.VerdictOK}

// findingRows returns the findings for which shown is true, the worst first. Nodes with the same finding share
// a row.
func findingRows(findings []holdfast.Finding, shown func(holdfast.Finding) bool) [][]string {
	all := make(map[string]bool)
	nodes := make(map[holdfast.Finding][]string)
	var unlike []holdfast.Finding
	for _, f := range findings {
		key := f
		key.Node = ""
		if f.Node != "" {
			all[f.Node] = true
		}
		if _, known := nodes[key]; !known {
			unlike = append(unlike, key)
		}
		nodes[key] = append(nodes[key], f.Node)
	}
	slices.SortStableFunc(unlike, func(a, b holdfast.Finding) int {
		return cmp.Compare(slices.Index(verdictOrder, a.Verdict), slices.Index(verdictOrder, b.Verdict))
	})
	rows := [][]string{{"VERDICT", "CHECK", "NODE", "FINDING"}}
	for _, f := range unlike {
		where := strings.Join(nodes[f], ",")
		if n := len(nodes[f]); n == len(all) && n > 1 {
			where = "all"
		}
		if text := strings.TrimSuffix(f.Text+"; "+f.Fix, "; "); shown(f) {
			rows = append(rows, []string{string(f.Verdict), f.Check, where, text})
		}
	}
	return rows
}
