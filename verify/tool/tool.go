// Package tool is shared by the programs of this module. It starts and ends them, and writes their tables into pages.
package tool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/holdfast-go/holdfast/driver"
)

// Run calls run, with a context that ends at an interrupt or SIGTERM, and exits as Exit does.
func Run(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	Exit(name, err)
}

// Exit ends the program, with exit code 1 behind a line on stderr if err is an error. flag.ErrHelp is none.
func Exit(name string, err error) {
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// MakeTables creates the tables of Holdfast in the database at url, whose scheme the program has registered by
// an import.
func MakeTables(ctx context.Context, url string) error {
	d, err := driver.Open(ctx, url, &driver.OpenOptions{NoCheck: true})
	if err != nil {
		return err
	}
	tables, ok := d.(interface{ Migrate(context.Context) error })
	if !ok {
		return errors.Join(errors.New("its locks need no tables"), d.Close())
	}
	return errors.Join(tables.Migrate(ctx), d.Close())
}

// ModuleVersion returns the version of a module that the program is built with, without its "v". It returns ""
// for another module.
func ModuleVersion(path string) string {
	info, _ := debug.ReadBuildInfo()
	if info != nil {
		for _, m := range info.Deps {
			if m.Path == path {
				return strings.TrimPrefix(m.Version, "v")
			}
		}
	}
	return ""
}

// Page is a page with a table between two lines.
type Page struct{ Path, Begin, End string }

// Fill replaces the table by what render makes of the old one.
func (p Page) Fill(render func(old string) string) error {
	head, old, tail, err := p.parts()
	if err != nil {
		return err
	}
	return os.WriteFile(p.Path, []byte(head+p.Begin+render(old)+p.End+tail), 0o644)
}

// Table returns the table.
func (p Page) Table() (string, error) {
	_, table, _, err := p.parts()
	return table, err
}

// parts returns the text before the lines, between them and behind them.
func (p Page) parts() (head, table, tail string, err error) {
	text, err := os.ReadFile(p.Path)
	if err != nil {
		return "", "", "", err
	}
	head, rest, ok1 := strings.Cut(string(text), p.Begin)
	table, tail, ok2 := strings.Cut(rest, p.End)
	if !ok1 || !ok2 {
		return "", "", "", fmt.Errorf("%s has no lines %q and %q", p.Path, strings.TrimSpace(p.Begin), strings.TrimSpace(p.End))
	}
	return head, table, tail, nil
}
