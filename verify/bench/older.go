package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sameNames are the scenarios in which names come back, by which an older checkout is
// compared.
const sameNames = "latency,throughput"

// aged is the rate of one scenario with an older checkout, and with this one.
type aged struct {
	Scenario string  `json:"scenario"`
	Nodes    int     `json:"nodes"`
	Old      float64 `json:"old_locks_per_second"`
	New      float64 `json:"new_locks_per_second"`
	Ratio    float64 `json:"new_by_old"` // the median over the rounds
}

// older builds the bench of the checkout at s.old and runs it by turns with this one, each
// in a process of its own: old new new old.
func older(ctx context.Context, s settings, progress io.Writer) ([]aged, error) {
	dir, err := os.MkdirTemp("", "bench-old-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	was, is := filepath.Join(dir, "bench"), ""
	if is, err = os.Executable(); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", was, "./bench")
	build.Dir, build.Stderr = filepath.Join(s.old, "verify"), progress
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("building the bench of %s: %w", s.old, err)
	}
	rates := make(map[string]map[aged][]float64) // by program
	for i := range 4 * s.reps {
		fmt.Fprintf(progress, "beside %s, round %d …\n", s.old, i+1)
		programs := []string{was, is}
		if i%2 == 1 {
			slices.Reverse(programs)
		}
		for _, program := range programs {
			if err := rateOnce(ctx, s, program, filepath.Join(dir, "rows.json"), rates); err != nil {
				return nil, err
			}
		}
	}
	var out []aged
	for key, list := range rates[is] {
		before := rates[was][key]
		ratio, _ := medianRatio(list, before)
		key.Old, key.New, key.Ratio = median(before), median(list), ratio
		out = append(out, key)
	}
	slices.SortFunc(out, func(a, b aged) int {
		return cmp.Or(cmp.Compare(a.Scenario, b.Scenario), cmp.Compare(a.Nodes, b.Nodes))
	})
	return out, nil
}

// rateOnce runs one program for one repetition, and adds its rates to those so far.
func rateOnce(ctx context.Context, s settings, program, rows string, rates map[string]map[aged][]float64) error {
	var nodes []string
	for _, n := range s.nodes {
		nodes = append(nodes, strconv.Itoa(n))
	}
	cmd := exec.CommandContext(ctx, program, "-scenarios", sameNames, "-peers", holdfastName, "-nodes", strings.Join(nodes, ","), "-reps", "1",
		"-time", s.time.String(), "-json", rows)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, text)
	}
	text, err := os.ReadFile(rows)
	if err != nil {
		return err
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		return err
	}
	if len(r.Rows) == 0 {
		return errors.New(program + " has measured nothing")
	}
	if rates[program] == nil {
		rates[program] = make(map[aged][]float64)
	}
	for _, line := range r.Rows {
		key := aged{Scenario: line.Scenario, Nodes: line.Nodes}
		rates[program][key] = append(rates[program][key], line.Rate)
	}
	return nil
}

func olderTable(list []aged) string {
	cells := [][]string{{"scenario", "nodes", "locks/s before", "now", "now / before"}}
	for _, a := range list {
		cells = append(cells, []string{
			a.Scenario, strconv.Itoa(a.Nodes), fmt.Sprintf("%.0f", a.Old), fmt.Sprintf("%.0f", a.New), digits(a.Ratio),
		})
	}
	return "Names that come back, beside an older checkout, run by turns:\n\n" + markdown(cells, 2)
}
