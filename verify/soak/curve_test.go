//go:build linux

package main

import (
	"math"
	"math/rand/v2"
	"testing"
)

// drawCurve returns a curve of two hours, with a point per minute.
func drawCurve(value func(minute float64) float64) curve {
	var c curve
	for m := range 121 {
		c.addPoint(float64(m)/60, value(float64(m)))
	}
	return c
}

func TestOnlyLeakIsReported(t *testing.T) {
	t.Parallel()
	f := figure{name: "heap", share: .15, floor: 1}
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name  string
		grows bool
		value func(minute float64) float64
	}{
		{"constant", false, func(float64) float64 { return 100 }},
		{"nothing", false, func(float64) float64 { return 0 }},
		{"noise of a fifth", false, func(float64) float64 { return 90 + 20*random.Float64() }},
		{"noise of all", false, func(float64) float64 { return 200 * random.Float64() }},
		{"a warm-up", false, func(m float64) float64 { return 100 - 90*math.Exp(-m/5) }},
		{"a slow warm-up", false, func(m float64) float64 { return 100 - 50*math.Exp(-m/15) }},
		{"a step, and then flat", false, func(m float64) float64 { return 100 + 100*min(1, math.Floor(m/40)) }},
		{"a saw of ten minutes", false, func(m float64) float64 { return 100 + 10*math.Mod(m, 10) }},
		{"spikes", false, func(m float64) float64 { return 100 + 900*math.Floor(math.Mod(m, 7)/6) }},
		{"it falls", false, func(m float64) float64 { return 300 - m }},
		{"a tenth in two hours", false, func(m float64) float64 { return 100 + m/12 }},
		{"a leak", true, func(m float64) float64 { return 100 + m }},
		{"a leak of a quarter", true, func(m float64) float64 { return 100 + m/4.8 }},
		{"a leak from nothing", true, func(m float64) float64 { return m }},
		{"a leak in noise", true, func(m float64) float64 { return 90 + 20*random.Float64() + m }},
		{"a leak in a saw", true, func(m float64) float64 { return 100 + 5*math.Mod(m, 10) + m }},
		{"a leak by steps", true, func(m float64) float64 { return 100 + 20*math.Floor(m/20) }},
		{"a leak under spikes", true, func(m float64) float64 { return 100 + m + 900*math.Floor(math.Mod(m, 7)/6) }},
		{"a leak that is ever faster", true, func(m float64) float64 { return 100 + m*m/100 }},
	} {
		if got := drawCurve(c.value); got.exceedsGrowth(f) != c.grows {
			t.Errorf("%s: grows = %v, by %.3g an hour and %.3g at the end; want %v", c.name, !c.grows,
				got.partBetween(warmUp, 1).pace(), got.partBetween(.5, 1).pace(), c.grows)
		}
	}
}

func TestFewSamplesAreNotLeak(t *testing.T) {
	t.Parallel()
	if c := (curve{[]float64{0, 1, 2}, []float64{1, 100, 10000}}); c.exceedsGrowth(figure{}) {
		t.Error("three samples count as a leak")
	}
	if (curve{}).exceedsGrowth(figure{}) || (curve{}).drawLine(10) != "" {
		t.Error("no samples count as a leak")
	}
}
