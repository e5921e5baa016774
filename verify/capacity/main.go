// Command capacity measures what locks cost one node, and computes how many sets of how many
// nodes a load needs: go run ./capacity -md ../docs/capacity.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"
)

// settings is how much is measured.
type settings struct {
	time    time.Duration // of each measurement
	names   int           // new names for the memory of one
	held    int           // leases
	clients int           // with a connection each
	waiters int
}

func main() {
	var s settings
	flag.DurationVar(&s.time, "time", 5*time.Second, "how long each measurement of rates takes")
	flag.IntVar(&s.names, "names", 100_000, "new names for the memory of one")
	flag.IntVar(&s.held, "held", 20_000, "leases that are held and renewed")
	flag.IntVar(&s.clients, "clients", 2_000, "clients with a connection each")
	flag.IntVar(&s.waiters, "waiters", 1_000, "of these, clients that wait for one lock")
	page := flag.String("md", "", "the `page` between whose marks the result goes; none: it is printed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := write(ctx, s, *page, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "capacity:", err)
		os.Exit(1)
	}
}

func write(ctx context.Context, s settings, page string, out io.Writer) error {
	if s.waiters >= s.clients {
		return errors.New("-waiters must be fewer than -clients")
	}
	cost, err := measure(ctx, s)
	if err != nil {
		return err
	}
	var b strings.Builder
	cost.describe(&b, s)
	if err := plans(&b, cost); err != nil {
		return err
	}
	if page == "" {
		_, err := io.WriteString(out, b.String())
		return err
	}
	return insert(page, b.String())
}

// Marks between which the figures stand in the page.
const (
	markBegin = "<!-- begin: written by go run ./capacity -->\n"
	markEnd   = "<!-- end -->\n"
)

func insert(page, text string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(old), markBegin)
	_, after, closed := strings.Cut(rest, markEnd)
	if !ok || !closed {
		return fmt.Errorf("%s has no marks %q and %q", page, markBegin, markEnd)
	}
	return os.WriteFile(page, []byte(before+markBegin+"\n"+text+"\n"+markEnd+after), 0o644)
}
