package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// panels are the loads in the plot, with their titles.
var panels = []struct{ load, title string }{
	{"relay", "8 clients share one lock for 1 ms of work each"},
	{"mix", "8 clients with 8 goroutines each want one lock"},
}

// Dimensions of the plot, in its own units.
const (
	plotWidth  = 860
	plotLeft   = 210 // start of the axis
	plotRight  = 830
	lineHeight = 22
	panelHead  = 42
)

// axis maps waits in ms to pixels, by their logarithm.
type axis struct{ low, high float64 } // powers of ten

func (a axis) pixelAt(ms float64) float64 {
	share := (math.Log10(min(max(ms, a.low), a.high)) - math.Log10(a.low)) / (math.Log10(a.high) - math.Log10(a.low))
	return plotLeft + share*(plotRight-plotLeft)
}

// plotWaits draws the waits of each peer: median, 99th percentile and longest.
func plotWaits(r *report) string {
	var body strings.Builder
	y := 34
	scale := axis{0.01, 10_000}
	for _, p := range panels {
		for _, nodes := range []int{1, 5} {
			rows := slices.DeleteFunc(slices.Clone(r.Rows), func(r row) bool { return r.Load != p.load || r.Nodes != nodes })
			if len(rows) == 0 {
				continue
			}
			y = drawPanel(&body, y, scale, fmt.Sprintf("%s, on %s", p.title, nodeCount(nodes)), rows)
		}
	}
	fmt.Fprintf(&body, `<text x="%d" y="%d" class="note">%s</text>`+"\n", 16, y+20, html.EscapeString(r.Machine))
	height := y + 34
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Waits for a lock by library">
<style>
text { font: 13px sans-serif; fill: #24292f }
.title { font-weight: bold } .note { font-size: 11px; fill: #57606a }
.grid { stroke: #d8dee4 } .other { stroke: #8c959f; fill: #8c959f } .ours { stroke: #0a7d4f; fill: #0a7d4f }
</style>
<rect width="100%%" height="100%%" rx="6" fill="#ffffff"/>
<text x="16" y="22" class="note">wait for a lock, logarithmic: ● median   ▮ 99th percentile   ○ longest</text>
%s</svg>
`, plotWidth, height, body.String())
}

func nodeCount(nodes int) string {
	if nodes == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", nodes)
}

// drawPanel draws one load from y on and returns its lower end.
func drawPanel(b *strings.Builder, y int, scale axis, title string, rows []row) int {
	top := y + panelHead
	bottom := top + lineHeight*len(rows)
	fmt.Fprintf(b, `<text x="16" y="%d" class="title">%s</text>`+"\n", y+20, html.EscapeString(title))
	for v := scale.low; v <= scale.high; v *= 10 {
		x := scale.pixelAt(v)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" class="grid"/>`, x, top-6, x, bottom-6)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle" class="note">%s</text>`+"\n", x, bottom+8, tickLabel(v))
	}
	for i, r := range rows {
		mid := top + lineHeight*i + 4
		class := "other"
		if r.Peer == holdfastName {
			class = "ours"
		}
		median, p99, longest := scale.pixelAt(r.Figures["wait p50 ms"]), scale.pixelAt(r.Figures["p99 ms"]), scale.pixelAt(r.Figures["max ms"])
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, plotLeft-14, mid+4, html.EscapeString(r.Peer))
		fmt.Fprintf(b, `<g class="%s"><line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke-width="2"/>`, class, median, mid, longest, mid)
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%d" r="4"/><rect x="%.1f" y="%d" width="4" height="12"/>`, median, mid, p99-2, mid-6)
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%d" r="4" stroke-width="2" style="fill:#ffffff"/></g>`+"\n", longest, mid)
	}
	return bottom + 12
}

// tickLabel formats a power of ten in ms.
func tickLabel(ms float64) string {
	switch {
	case ms < 0.999:
		return fmt.Sprintf("%.0f µs", ms*1000)
	case ms < 999:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.0f s", ms/1000)
}
