//go:build linux

package main

import (
	"math"
	"slices"
	"strings"
)

// figure is a quantity that a run samples.
type figure struct {
	name  string
	bytes bool
	// A figure grows if, at its pace over the length of the run, it would gain more than share of itself and
	// more than floor.
	share, floor float64
}

const mb = 1 << 20

// figures are in the order of the report. The client in the report is the one that runs from start to end.
var figures = []figure{
	{"client heap", true, .15, 1 * mb},
	{"client rss", true, .2, 8 * mb},
	{"client goroutines", false, .15, 5},
	{"client files", false, .15, 5},
	{"server memory", true, .25, 16 * mb},
	{"redis memory", true, .2, 2 * mb},
	{"keys", false, .25, 50},
	{"rows", false, .25, 200},
	{"dead rows", false, .5, 5000},
	{"size", true, .3, 6 * mb},
	{"wal", true, .3, 6 * mb},
	{"leases", false, .25, 50},
	{"znodes", false, .25, 200},
	{"sessions", false, .25, 5},
	{"connections", false, .25, 8},
	{"guard rss", true, .2, 4 * mb},
	{"guard files", false, .15, 3},
	{"console rss", true, .25, 8 * mb},
	{"console files", false, .25, 5},
}

// curve holds the values of one figure over time, in hours since the start of the run.
type curve struct{ at, values []float64 }

func (c *curve) addPoint(at, value float64) {
	c.at, c.values = append(c.at, at), append(c.values, value)
}

// partBetween returns the points between two shares of the curve.
func (c curve) partBetween(from, to float64) curve {
	n := float64(len(c.at))
	i, j := int(from*n), int(math.Ceil(to*n))
	return curve{c.at[i:j], c.values[i:j]}
}

// pace returns the Theil-Sen slope per hour: the median of the slopes between any two points. Up to a third of
// the points may be outliers.
func (c curve) pace() float64 {
	var all []float64
	for i := range c.at {
		for j := range i {
			if c.at[i] > c.at[j] {
				all = append(all, (c.values[i]-c.values[j])/(c.at[i]-c.at[j]))
			}
		}
	}
	return medianOf(all)
}

// warmUp is the share of a run after which caches and pools are full.
const warmUp = .2

// exceedsGrowth reports whether the figure, at its pace after the warm-up, gains more than allowed over the
// run. The pace of the last half must also exceed that: a figure that rises once and then stays is no leak.
func (c curve) exceedsGrowth(f figure) bool {
	if len(c.at) < 10 {
		return false
	}
	after, late := c.partBetween(warmUp, 1), c.partBetween(.5, 1)
	length := c.at[len(c.at)-1] - c.at[0]
	least := f.share*medianOf(c.partBetween(warmUp, 2*warmUp).values) + f.floor
	return after.pace()*length > least && late.pace()*length > least
}

func medianOf(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// drawLine draws the curve from 0 to its maximum, with width characters.
func (c curve) drawLine(width int) string {
	if len(c.values) == 0 {
		return ""
	}
	most := max(slices.Max(c.values), 1e-9)
	var b strings.Builder
	width = min(width, len(c.values))
	for i := range width {
		v := medianOf(c.partBetween(float64(i)/float64(width), float64(i+1)/float64(width)).values)
		b.WriteRune([]rune("▁▂▃▄▅▆▇█")[min(7, int(max(v, 0)/most*8))])
	}
	return b.String()
}
