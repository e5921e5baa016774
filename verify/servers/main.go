//go:build linux

// Servers runs Holdfast on the servers that tools/servers fetches, also behind proxies and poolers, and on
// servers that only imitate them, and writes the results into the table of docs/servers.md.
//
//	go run ./servers -md ../docs/servers.md         every row; the servers are fetched first
//	go run ./servers -only mysql-9.7.4              print only the rows of this server
//	go run ./servers -only mysql -steps look        only look: no suite, scripts, chaos or hammer
//	go run ./servers -hammer 10m                    ten minutes of hammer each
//
// With -md, the page keeps rows and steps that are not run.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/tempo"
	"github.com/holdfast-go/holdfast/verify/tool"
)

// The table is between these lines of the page.
const tableStart, tableEnd = "<!-- begin: go run ./servers -md ../docs/servers.md -->\n", "<!-- end -->\n"

const heading = "| server | locks | order | wake-up | fence | `doctor` | suite | scripts | chaos | hammer | last run |\n" +
	"|---|---|---|---|---|---|---|---|---|---|---|\n"

// settings are the flags of the command line.
type settings struct {
	only   string
	steps  string
	page   string
	out    string // folder for the output of the steps
	chaos  time.Duration
	hammer time.Duration
}

func main() {
	if os.Getenv(workerVariable) != "" {
		tempo.Adopt()
		tool.Exit("servers", runWorker(context.Background()))
	}
	var s settings
	flag.StringVar(&s.only, "only", "", "run the rows alone whose name has one of these `texts`, or is one, separated by semicolons")
	flag.StringVar(&s.steps, "steps", "look,suite,scripts,chaos,hammer", "`steps` to run")
	flag.StringVar(&s.page, "md", "", "the `file` of the page, between whose marks the table goes; empty: print it")
	flag.StringVar(&s.out, "out", "", "`folder` for the output of the steps; empty: a new temporary one")
	flag.DurationVar(&s.chaos, "chaos", time.Minute, "how long each run of chaos takes")
	flag.DurationVar(&s.hammer, "hammer", 2*time.Minute, "how long each hammer takes")
	flag.Parse()
	tool.Run("servers", func(ctx context.Context) error { return testServers(ctx, s) })
}

// testServers runs the steps on the chosen servers and writes the table. It returns an error if a step failed on
// a server that is no imitation.
func testServers(ctx context.Context, s settings) (err error) {
	if s.out == "" {
		if s.out, err = os.MkdirTemp("", "holdfast-servers-"); err != nil {
			return err
		}
	}
	if s.out, err = filepath.Abs(s.out); err != nil {
		return err
	}
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "servers: the output of each step is in", s.out)
	programs, err := os.MkdirTemp("", "holdfast-servers-bin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs)
	if err := buildPrograms(ctx, programs); err != nil {
		return err
	}
	if s.page == "" {
		io.WriteString(os.Stdout, heading)
	}
	var failed []string
	for _, r := range rows {
		if !r.matchesText(s.only) {
			continue
		}
		res := &result{name: r.name, cells: make(map[string]string)}
		if s.page != "" {
			table, err := pageAt(s.page).Table()
			if err != nil {
				return err
			}
			res.adoptLine(linesByRow(table)[r.name])
		}
		r.run(ctx, s, res)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if len(res.bad) > 0 && !r.alike {
			failed = append(failed, r.name+" ("+strings.Join(res.bad, ", ")+")")
		}
		io.WriteString(os.Stdout, res.line())
		if s.page != "" {
			if err := writeLine(s.page, r.name, res.line()); err != nil {
				return err
			}
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, "; "))
	}
	return nil
}

// writeLine writes the line of a row into the page's table. Lines of other rows stay; lines of deleted rows
// go.
func writeLine(page, name, line string) error {
	return pageAt(page).Fill(func(old string) string {
		lines, table := linesByRow(old), heading
		lines[name] = line
		for _, r := range rows {
			table += lines[r.name]
		}
		return table
	})
}

// pageAt returns the page with the table of the servers.
func pageAt(path string) tool.Page { return tool.Page{Path: path, Begin: tableStart, End: tableEnd} }

// linesByRow returns the lines of a table by the names of their rows.
func linesByRow(table string) map[string]string {
	lines := make(map[string]string)
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) > 1 {
			lines[strings.TrimPrefix(cells[0], "| ")] = line
		}
	}
	return lines
}

// result is one line of the table.
type result struct {
	name  string
	cells map[string]string
	bad   []string // failed steps
}

var columns = []string{"locks", "order", "wake-up", "fence", "doctor", "suite", "scripts", "chaos", "hammer"}

func (r *result) line() string {
	var b strings.Builder
	b.WriteString("| " + r.name)
	for _, c := range columns {
		b.WriteString(" | " + cmp.Or(strings.ReplaceAll(r.cells[c], "|", "¦"), "–"))
	}
	fmt.Fprintf(&b, " | %s |\n", time.Now().UTC().Format(time.DateOnly))
	return b.String()
}

// adoptLine copies the cells of an earlier line for the steps that are not run.
func (r *result) adoptLine(line string) {
	cells := strings.Split(strings.TrimSpace(line), " | ")
	if len(cells) != len(columns)+2 {
		return
	}
	for i, c := range columns {
		r.cells[c] = cells[i+1]
	}
}

// isRejected reports whether checkServer found no working lock, so that later steps have nothing to try.
func (r *result) isRejected() bool {
	return r.cells["locks"] != "yes" && r.cells["locks"] != ""
}

// noteFailure records the error of a step for the table, in the words of the server and of Holdfast, and prints
// it whole.
func (r *result) noteFailure(column string, err error) {
	r.bad = append(r.bad, column)
	r.cells[column] = shortenError(err.Error())
	fmt.Fprintf(os.Stderr, "servers: %s: %s: %v\n", r.name, column, err)
}

// maxCell bounds an error in a cell of the table, in runes.
const maxCell = 80

var (
	origin  = regexp.MustCompile(`^.*\bnode 127\.0\.0\.1:\d+: (node is not fit for locks: )?|^fence: sqlfence: `)
	address = regexp.MustCompile(`127\.0\.0\.1:\d+(,127\.0\.0\.1:\d+)* `)
)

// shortenError makes an error fit into a cell: it drops everything before the cause and the addresses of this
// run, and truncates the end.
func shortenError(text string) string {
	text = origin.ReplaceAllString(strings.Join(strings.Fields(text), " "), "")
	text = address.ReplaceAllString(text, "")
	if runes := []rune(text); len(runes) > maxCell {
		text = string(runes[:maxCell-1])
		if i := strings.LastIndexByte(text, ' '); i > 0 {
			text = text[:i]
		}
		text = strings.TrimRight(text, " ,:;(…") + "…"
	}
	return text
}

// run downloads and starts the server, runs the steps, and records their results.
func (r *row) run(ctx context.Context, s settings, res *result) {
	for _, need := range r.needs {
		program, err := fetchServer(ctx, need.server)
		if err != nil {
			res.cells["locks"] = "not run: " + shortenError(err.Error())
			return
		}
		os.Setenv(need.variable, program)
		defer os.Unsetenv(need.variable)
	}
	url, stop, err := r.start(ctx)
	if err != nil {
		res.noteFailure("locks", fmt.Errorf("it does not start: %w", err))
		return
	}
	for step := range strings.SplitSeq(s.steps, ",") {
		if take := map[string]func(){
			"look":    func() { r.checkServer(ctx, url, res) },
			"suite":   func() { r.runTests(ctx, s, "suite", r.suite, url, res) },
			"scripts": func() { r.walkCommands(ctx, s, url, res) },
			"chaos":   func() { r.runChaos(ctx, s, res) },
			"hammer":  func() { r.runHammer(ctx, s, url, res) },
		}[step]; take != nil {
			take()
		}
	}
	if err := stop(); err != nil {
		res.noteFailure("locks", fmt.Errorf("it does not stop: %w", err))
	}
}

// fetchServer returns the program of a server, which tools/servers downloads. Its error names a version that
// is no longer available.
func fetchServer(ctx context.Context, name string) (string, error) {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "../tools/servers", name)
	cmd.Stderr = &said
	path, err := cmd.Output()
	if err != nil {
		return "", errors.New(strings.TrimPrefix(strings.TrimSpace(said.String()), "tools/servers: "))
	}
	return strings.TrimSpace(string(path)), nil
}
