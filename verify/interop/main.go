package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/verify/interop/foreign"
	"github.com/holdfast-go/holdfast/verify/tool"
)

func main() {
	count := flag.Int("count", 600, "how many `increments` the workers of the other library make")
	only := flag.String("only", "", "run the libraries alone whose name has this `text`")
	page := flag.String("md", "", "the `file` of the page, between whose marks the table goes; empty: print it")
	flag.Parse()
	if *only != "" && *page != "" {
		fmt.Fprintln(os.Stderr, "interop: the page has all libraries: give -md or -only")
		os.Exit(2)
	}
	tool.Run("interop", func(ctx context.Context) error { return reportLibraries(ctx, *count, *only, *page) })
}

// The table is between these lines of the page.
const tableStart, tableEnd = "<!-- begin: go run ./interop -md ../docs/interop.md -->\n", "<!-- end -->\n"

func reportLibraries(ctx context.Context, count int, only, page string) error {
	var table bytes.Buffer
	fmt.Fprintln(&table, "| library | version | servers | its lock NAME is, for Holdfast "+
		"| increments of Holdfast | longest wait | of the library | longest wait | lost |")
	fmt.Fprintln(&table, "|---|---|---|---|---:|---:|---:|---:|---:|")
	for _, l := range Libraries {
		if !strings.Contains(l.Name, only) {
			continue
		}
		r, err := runOnce(ctx, l, count)
		if errors.Is(err, foreign.ErrMissing) {
			fmt.Fprintf(os.Stderr, "%s: %v\n", l.Name, err)
			fmt.Fprintf(&table, "| %s | %s | %d | `%s` | not run | | | | |\n", l.Name, l.moduleVersion(), l.Nodes, l.Prefix+"NAME")
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
		fmt.Fprintf(&table, "| %s | %s | %d | `%s` | %d | %v | %d | %v | %d |\n", l.Name, l.moduleVersion(), l.Nodes, l.Prefix+"NAME",
			r.Ours.Locks, r.Ours.Longest.Round(time.Millisecond), r.Theirs.Locks, r.Theirs.Longest.Round(time.Millisecond), r.Lost)
	}
	if page == "" {
		_, err := os.Stdout.Write(table.Bytes())
		return err
	}
	return tool.Page{Path: page, Begin: tableStart, End: tableEnd}.Fill(func(string) string { return table.String() })
}

func runOnce(ctx context.Context, l Library, count int) (Result, error) {
	addrs, stop, err := Servers(ctx, l.Nodes)
	if err != nil {
		return Result{}, err
	}
	defer stop()
	return Run(ctx, l, addrs, count)
}

// moduleVersion returns the version of the library's module, if it is a Go module.
func (l Library) moduleVersion() string {
	modules := map[string]string{"redsync": "github.com/go-redsync/redsync/v4", "redislock": "github.com/bsm/redislock"}
	return cmp.Or(tool.ModuleVersion(modules[l.Name]), l.Version, "?")
}
