// Command sharing has workers of Holdfast and of another library compete for one bare key
// on one server, and prints what each side gets: go run ./sharing -time 12s.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

var loads = []struct {
	name string
	Load
}{
	{"1 ms of work, no rest", Load{Workers: 4, Work: time.Millisecond}},
	{"5 ms of work, 2 ms of rest", Load{Workers: 4, Work: 5 * time.Millisecond, Rest: 2 * time.Millisecond}},
	{"200 ms of work, 150 ms of rest", Load{Workers: 1, Work: 200 * time.Millisecond, Rest: 150 * time.Millisecond}},
}

func main() {
	each := flag.Duration("time", 12*time.Second, "how long each `run` takes")
	migrate := flag.Int("migrate", 0, "replace four workers of another library by ours, and back; each has so many `turns` in each stage")
	from := flag.String("from", "redsync", "the `library`: redsync, redisson or shedlock")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	show := func() error { return table(ctx, *each) }
	if *migrate > 0 {
		show = func() error { return migration(ctx, *from, *migrate) }
	}
	if err := show(); err != nil {
		fmt.Fprintln(os.Stderr, "sharing:", err)
		os.Exit(1)
	}
}

// table runs everything and prints a row for each run.
func table(ctx context.Context, each time.Duration) error {
	fmt.Println("| load | Holdfast | locks | longest wait | other library | locks | longest wait |")
	fmt.Println("|---|---|---:|---:|---|---:|---:|")
	for _, l := range loads {
		l.Time = each
		kinds := []Side{OneClient, ManyClients}[:min(l.Workers, 2)]
		for _, ours := range kinds {
			for _, other := range []Side{Redsync, Redislock, SetNX} {
				if err := row(ctx, l.name, l.Load, ours, other); err != nil {
					return err
				}
			}
			if err := row(ctx, l.name, l.Load, ours); err != nil {
				return err
			}
		}
	}
	return nil
}

func row(ctx context.Context, name string, l Load, sides ...Side) error {
	server, err := redisproc.Start(ctx, nil)
	if err != nil {
		return err
	}
	defer server.Stop()
	got, err := Compete(ctx, []string{server.Addr()}, "shared", l, sides...)
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "| %d and %d workers, %s |", l.Workers, l.Workers*(len(sides)-1), name)
	for i, s := range got {
		fmt.Fprintf(&text, " %s | %d | %v |", sides[i].Name, s.Locks, s.Longest.Round(time.Millisecond))
	}
	fmt.Println(text.String())
	return ctx.Err()
}

// migration prints a row for each stage of a rolling replacement.
func migration(ctx context.Context, from string, turns int) error {
	way, ok := ways[from]
	if !ok {
		return fmt.Errorf("-from %s: redsync, redisson and shedlock are known", from)
	}
	fmt.Printf("| workers of %s | of Holdfast | locks | longest wait |\n", from)
	fmt.Println("|---:|---:|---:|---:|")
	server, err := redisproc.Start(ctx, nil)
	if err != nil {
		return err
	}
	defer server.Stop()
	stages, err := Migrate(ctx, []string{server.Addr()}, way.key, loads[1].Load, turns, way.from, way.to)
	for _, s := range stages {
		fmt.Printf("| %d | %d | %d | %v |\n", s.Theirs, s.Ours, s.Locks, s.Longest.Round(time.Millisecond))
	}
	return err
}
