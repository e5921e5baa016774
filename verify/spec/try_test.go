package main

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/verify/sim"
)

func TestTry(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("N"))
	groups := map[group][]recorded{}
	for seed := uint64(1); seed <= uint64(n); seed++ {
		r := record(seed, sim.Rules{})
		groups[r.set] = append(groups[r.set], r)
	}
	t.Chdir("..")
	checker, err := tlc(context.Background(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	for g, runs := range groups {
		steps := 0
		for _, r := range runs {
			steps += len(r.steps)
		}
		refused, took, err := follow(context.Background(), checker, settings{source: "../docs/spec"}, "/tmp/hf/t"+strconv.Itoa(g.nodes)+upper(g.adopts), runs)
		t.Log(g, len(runs), steps, took, len(refused), err)
		for _, r := range refused {
			t.Log(r)
		}
	}
}
