//go:build linux

package main

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
)

const (
	pixelsPerSecond = 60
	rowHeight       = 14
	windowGap       = 16
	mostWindows     = 60 // windows that are drawn; those with a violation always
)

// timeline draws the holders of each lock over time, and the faults.
type timeline struct {
	start int64
	keys  int
	drawn []drawing
}

type drawing struct {
	span   *span
	text   string
	height int
}

// add adds a window, unless there are many already and this one is uneventful.
func (t *timeline) add(s *span, locks map[string]*lockHistory, faults []pastFault, found []Finding) {
	if len(t.drawn) >= mostWindows && len(found) == 0 {
		return
	}
	var b strings.Builder
	x := func(at int64) float64 { return float64(at-s.start) / 1e9 * pixelsPerSecond }
	rows := len(faults) + t.keys
	slices.SortFunc(faults, func(a, b pastFault) int { return cmp.Compare(a.Start, b.Start) })
	for i, f := range faults {
		fmt.Fprintf(&b, `<rect class="f" x="%.1f" y="0" width="%.1f" height="%d"/><text x="%.1f" y="%d">%s %s</text>`+"\n",
			x(f.Start), max(x(f.End)-x(f.Start), 1), rows*rowHeight, x(f.Start)+2, (i+1)*rowHeight-3, escapeText(f.Do), escapeText(f.Victim))
	}
	bad := make(map[string]bool)
	for _, f := range found {
		bad[f.Key] = true
	}
	for n := range t.keys {
		key := s.key("h", n)
		y := (len(faults) + n) * rowHeight
		class := "k"
		if bad[key] {
			class = "bad"
		}
		fmt.Fprintf(&b, `<text class="%s" x="-4" y="%d">%s</text>`+"\n", class, y+rowHeight-3, key)
		l := locks[key]
		if l == nil {
			continue
		}
		for _, a := range l.grantedAttempts() {
			i, w := a.trustedInterval(), a.workedInterval()
			if w.end > i.end { // work without trust
				fmt.Fprintf(&b, `<rect class="u" x="%.2f" y="%d" width="%.2f" height="2"/>`, x(i.end), y+rowHeight-4, x(w.end)-x(i.end))
			}
			fmt.Fprintf(&b, `<rect x="%.2f" y="%d" width="%.2f" height="9" fill="%s"><title>%s token %d</title></rect>`+"\n",
				x(i.start), y+2, max(x(i.end)-x(i.start), .3), colourOf(a.client), escapeText(a.try), a.token)
		}
	}
	t.drawn = append(t.drawn, drawing{s, b.String(), rows * rowHeight})
}

// SVG returns the picture: one strip per window, from top to bottom.
func (t *timeline) SVG() string {
	slices.SortFunc(t.drawn, func(a, b drawing) int { return cmp.Compare(a.span.index, b.span.index) })
	var b strings.Builder
	y, width := 20, 0.0
	for _, d := range t.drawn {
		fmt.Fprintf(&b, `<g transform="translate(70 %d)"><text class="h" x="0" y="-3">window %d, %s, from %.1f s</text>`+"\n%s</g>\n",
			y, d.span.index, escapeText(d.span.Class), float64(d.span.start-t.start)/1e9, d.text)
		y += d.height + windowGap
		width = max(width, float64(d.span.end-d.span.start)/1e9*pixelsPerSecond)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" font-family="sans-serif" font-size="9">
<style>.f{fill:#c33;fill-opacity:.13} .u{fill:#c00} .k,.bad{text-anchor:end} .bad{fill:#c00;font-weight:bold} .h{font-size:11px;font-weight:bold}</style>
<rect width="100%%" height="100%%" fill="#fff"/>
%s</svg>
`, width+160, y, b.String())
}

func escapeText(s string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(s)) // a strings.Builder does not fail
	return b.String()
}

// colourOf returns a color for a client. Neighboring numbers have distant hues.
func colourOf(client string) string {
	number, again := 0, 0
	fmt.Sscanf(client, "holdfast%d.%d", &number, &again) // any other name gets the first colour
	return fmt.Sprintf("hsl(%d 60%% %d%%)", number*137%360, 40+again%3*10)
}
