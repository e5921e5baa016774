package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// compareWithOlder builds the bench of an older checkout and runs it in turns with this one (old new new old), each
// as its own process, with Holdfast alone and reused names. Every version has these flags and JSON fields.
func (s *session) compareWithOlder(ctx context.Context) error {
	if s.old == "" {
		return nil
	}
	dir, err := os.MkdirTemp("", "bench-old-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	was := filepath.Join(dir, "bench")
	is, err := os.Executable()
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", was, "./bench")
	build.Dir, build.Stderr = filepath.Join(s.old, "verify"), s.progress
	if err := build.Run(); err != nil {
		return fmt.Errorf("building the bench of %s: %w", s.old, err)
	}
	rates := map[string]map[string][]float64{was: {}, is: {}}
	for i := range 4 * s.reps {
		fmt.Fprintf(s.progress, "beside %s, round %d …\n", s.old, i+1)
		programs := []string{was, is}
		if i%2 == 1 {
			slices.Reverse(programs)
		}
		for _, program := range programs {
			if err := s.rateOnce(ctx, program, filepath.Join(dir, "rows.json"), rates[program]); err != nil {
				return err
			}
		}
	}
	cells := [][]string{{"load", "locks/s before", "now", "now / before"}}
	for load, now := range rates[is] {
		ratio, _ := medianRatio(now, rates[was][load])
		cells = append(cells, []string{load, formatDigits(medianOf(rates[was][load])), formatDigits(medianOf(now)), formatDigits(ratio)})
	}
	slices.SortFunc(cells[1:], func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	fmt.Fprintf(s.out, "\nBeside %s, run by turns:\n\n%s", s.old, markdownTable(cells, 1))
	return nil
}

// rateOnce runs a program for one repetition and appends its rates to rates.
func (s *session) rateOnce(ctx context.Context, program, path string, rates map[string][]float64) error {
	cmd := exec.CommandContext(ctx, program,
		"-scenarios", "latency,throughput", "-peers", holdfastName, "-reps", "1", "-time", s.settings.time.String(), "-json", path)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, text)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var found struct {
		Rows []struct {
			Load  string  `json:"scenario"`
			Nodes int     `json:"nodes"`
			Rate  float64 `json:"locks_per_second"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return err
	}
	if len(found.Rows) == 0 {
		return errors.New(program + " has measured nothing")
	}
	for _, line := range found.Rows {
		load := fmt.Sprintf("%s, %d nodes", line.Load, line.Nodes)
		rates[load] = append(rates[load], line.Rate)
	}
	return nil
}
