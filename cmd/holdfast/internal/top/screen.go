package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/live"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// The smallest terminal that the view supports.
const (
	leastWidth  = 40
	leastHeight = 10
)

const headLines, footLines = 4, 1

// pageLines returns the number of lines between head and foot.
func (m *model) pageLines() int { return max(m.height-headLines-footLines, 1) }

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(m.screenText())
	v.AltScreen = true
	v.WindowTitle = "holdfast top"
	return v
}

// screenText returns the whole screen, line by line.
func (m *model) screenText() string {
	if m.width == 0 {
		return "" // the size is not known yet
	}
	if m.width < leastWidth || m.height < leastHeight {
		return truncate(fmt.Sprintf("%dx%d is too small; make it %dx%d", m.width, m.height, leastWidth, leastHeight), m.width)
	}
	var body []string
	switch m.mode {
	case helping:
		body = m.helpLines()
	case detailing:
		body = m.detailLines()
	case reasoning, naming:
		body = m.questionLines()
	default:
		body = m.listLines()
	}
	lines := append(m.overview(), body...)
	lines = append(lines, make([]string, max(m.height-footLines-len(lines), 0))...)
	lines = append(lines[:m.height-footLines], m.footer())
	for i := range lines {
		lines[i] = truncate(lines[i], m.width)
	}
	return strings.Join(lines, "\n")
}

// overview returns the lines above the list: headLines lines, the last of which is the header of a list.
func (m *model) overview() []string {
	p := m.picture
	text, level := p.Headline()
	first := bold("holdfast top")
	if p.Prefix != "" {
		first += " " + view.Printable(p.Prefix) + "*"
	}
	nodes := make([]string, len(p.Nodes))
	for i, e := range p.Nodes {
		nodes[i] = paint(live.NodeLevel(e.State), view.Printable(e.Node)+" "+strings.ToUpper(string(e.State)))
		if e.State == holdfast.NodeUp {
			nodes[i] = strings.TrimSpace(view.Printable(e.Node) + " up " + live.RoundTrip(e))
		}
	}
	counts := fmt.Sprintf("%s  %d held  %d waiting  %.1f hand-overs/s seen", live.Locks(len(p.Rows)), p.Held, p.Waiters, p.HandOvers)
	if p.Hidden > 0 {
		counts += fmt.Sprintf("  %d more not shown: give a prefix", p.Hidden)
	}
	return []string{
		first + "  " + paint(level, view.Printable(text)),
		strings.Join(nodes, "  "),
		counts + "  " + m.freshness(),
		reverse(pad(m.columns().header(m), m.width)),
	}
}

// freshness describes the age of the locks that are not on the screen.
func (m *model) freshness() string {
	if m.picture.Whole.IsZero() {
		return ""
	}
	return "all seen " + view.Short(m.picture.Taken.Sub(m.picture.Whole).Round(time.Second)) + " ago"
}

func (m *model) footer() string {
	switch {
	case m.mode == filtering:
		return "filter: " + view.Printable(m.typed) + "█  enter keeps it, esc shows all"
	case m.mode == reasoning || m.mode == naming:
		return "enter goes on, esc does nothing"
	case m.mode == helping:
		return "any key returns"
	case m.message != "":
		return paint(m.level, view.Printable(m.message))
	case m.mode == detailing:
		return "esc back  F force-release  ? help  q quit"
	}
	keys := "enter details  / filter  s sort: " + string(m.sort) + "  F force-release  ? help  q quit"
	if m.filter != "" {
		keys = fmt.Sprintf("%d match %q (esc: all)  ", len(m.rows), m.filter) + keys
	}
	return keys
}

// columns are the widths of a list's columns.
type columns struct{ name, holder, note, token int }

const fixedColumnsWidth = 9 + 8 + 8 + 5 + 4*1 // state, held for, left, waiting, and the gaps between them

// columns gives the name column the width of the longest name, up to 45 % of the line: the rest is for holder
// and note.
func (m *model) columns() columns {
	rest := m.width - fixedColumnsWidth - 2
	c := columns{name: 8}
	for _, r := range m.rows {
		c.name = max(c.name, min(len(r.Key), rest*45/100)) // length in bytes: an upper bound of the width
	}
	if m.width >= 110 {
		c.token = 17
	}
	if m.width >= 130 {
		c.note = (rest - c.name - c.token) * 2 / 5
	}
	c.holder = max(rest-c.name-c.token-c.note, 0)
	return c
}

func (c columns) line(name, state, holder, note, held, left, waiting, token string) string {
	parts := []string{pad(name, c.name), pad(state, 9), pad(holder, c.holder)}
	if c.note > 0 {
		parts = append(parts, pad(note, c.note-1))
	}
	parts = append(parts, padLeft(held, 8), padLeft(left, 8), padLeft(waiting, 5))
	if c.token > 0 {
		parts = append(parts, padLeft(token, c.token-1))
	}
	return strings.Join(parts, " ")
}

func (c columns) header(m *model) string {
	switch m.mode {
	case listing, filtering:
		return c.line("LOCK", "STATE", "HOLDER", "NOTE", "HELD FOR", "LEFT", "WAIT", "TOKEN")
	case helping:
		return "KEYS"
	}
	return "LOCK " + view.Printable(m.selected)
}

// holderText returns the holder without the parts that another column shows, or that a note replaces.
func (c columns) holderText(r *live.Row) string {
	st := r.Status
	switch {
	case c.note > 0:
		st.Holder.Note = ""
	case st.Holder.Note != "":
		st.Holder.Program = ""
	}
	return view.Holder(st)
}

func (m *model) listLines() []string {
	c, p := m.columns(), m.picture
	var lines []string
	for i, r := range m.rows[m.top:min(m.top+m.pageLines(), len(m.rows))] {
		word, level, _ := p.State(r)
		holder, held, left := "", "", ""
		note := view.Printable(r.Holder.Note)
		if r.Held {
			holder, left = view.Printable(c.holderText(r)), shortTime(p.Left(r))
			if d := p.HeldFor(r); d > 0 {
				held = shortTime(d)
			}
		} else {
			holder = view.Printable(r.Who())
		}
		waiting := ""
		if r.Waiters > 0 {
			waiting = strconv.Itoa(r.Waiters)
		}
		line := c.line(view.Printable(r.Key), word, holder, note, held, left, waiting, view.Token(r.Token))
		if m.top+i == m.cursor {
			line = reverse(pad(line, m.width))
		} else {
			line = paint(level, line)
		}
		lines = append(lines, line)
	}
	if len(m.rows) == 0 {
		switch {
		case m.filter != "":
			lines = append(lines, "no lock matches; esc shows all")
		case !p.Whole.IsZero():
			lines = append(lines, "no locks: nobody holds or wants one")
		}
	}
	return lines
}

func (m *model) detailLines() []string {
	if m.detail == nil {
		return []string{"asking …"}
	}
	p, r := m.picture, m.detail.Row
	word, level, why := p.State(r)
	lines := []string{fieldLine("state", paint(level, word))}
	if why != "" {
		lines = append(lines, fieldLine("", paint(level, why)))
	}
	if m.detail.Err != nil {
		lines = append(lines, fieldLine("error", paint(live.Bad, view.Printable(m.detail.Err.Error()))))
	}
	lines = append(lines, holderLines(p, r)...)
	lines = append(lines, fieldLine("waiting", strconv.Itoa(r.Waiters)))
	for i, w := range m.detail.Queue {
		text := view.Printable(w.Holder.String())
		if !w.Since.IsZero() {
			text += ", asked " + view.Age(w.Since) + " ago"
		}
		lines = append(lines, fieldLine("", fmt.Sprintf("%2d. %s", i+1, text)))
	}
	switch more := r.Waiters - len(m.detail.Queue); {
	case more > 0 && len(m.detail.Queue) > 0:
		lines = append(lines, fieldLine("", fmt.Sprintf("and %d more", more)))
	case more > 0:
		lines = append(lines, fieldLine("", "who they are is not known"))
	}
	lines = append(lines, "")
	lines = append(lines, m.voteLines(r)...)
	m.lines = len(lines)
	return lines[min(m.scroll, max(len(lines)-1, 0)):]
}

// holderLines describes the holder of the lock.
func holderLines(p *live.Picture, r *live.Row) []string {
	if r.Last != nil {
		return []string{fieldLine("holder", view.Printable(r.Who()))}
	}
	if !r.Held {
		return nil
	}
	lines := []string{fieldLine("holder", view.Printable(view.Holder(r.Status))), fieldLine("owner", view.Printable(r.Owner))}
	if r.Token != 0 {
		lines = append(lines, fieldLine("token", view.Token(r.Token)))
	}
	if !r.Since.IsZero() {
		lines = append(lines, fieldLine("asked", view.Age(r.Since)+" ago, by the holder's clock"))
	}
	if !r.Changed.IsZero() {
		lines = append(lines, fieldLine("held for", fmt.Sprintf("%s; %d hand-overs seen", shortTime(p.HeldFor(r)), r.HandOvers)))
	}
	if r.Remaining < 0 {
		return append(lines, fieldLine("lease", "no end"))
	}
	return append(lines, fieldLine("lease", shortTime(p.Left(r))+" left"))
}

// voteLines returns the matrix of votes: the answer of each node.
func (m *model) voteLines(r *live.Row) []string {
	if len(r.Nodes) == 0 {
		return nil
	}
	heads := []string{pad("NODE", 24), pad("VOTE", 9), pad("OWNER", 26), pad("TOKEN", 17), padLeft("LEFT", 8), padLeft("WAIT", 5)}
	lines := []string{bold(strings.Join(heads, " "))}
	for _, n := range r.Nodes {
		vote, level := "holder", live.Fine
		switch {
		case n.Err != nil:
			lines = append(lines, paint(live.Bad, pad(view.Printable(n.Node), 24)+" SILENT    "+view.Printable(n.Err.Error())))
			continue
		case n.Owner == "" && r.Held:
			vote, level = "nobody", live.Warn
		case n.Owner == "":
			vote = "nobody"
		case n.Owner != r.Owner:
			vote, level = "another", live.Warn
		}
		left := ""
		if n.Owner != "" {
			left = shortTime(n.Remaining)
		}
		lines = append(lines, paint(level, strings.Join([]string{
			pad(view.Printable(n.Node), 24), pad(vote, 9), pad(view.Printable(n.Owner), 26),
			pad(view.Token(holdfast.Token(n.Token)), 17), padLeft(left, 8), padLeft(strconv.Itoa(n.Waiters), 5),
		}, " ")))
	}
	return lines
}

func (m *model) questionLines() []string {
	lines := []string{fieldLine("name", view.Printable(m.target.Key))}
	r := &live.Row{Status: m.target, Seen: m.picture.Taken}
	lines = append(lines, holderLines(m.picture, r)...)
	lines = append(lines, fieldLine("waiting", strconv.Itoa(m.target.Waiters)), "",
		"The holder is notified at once, with the reason, if it can be reached, and else",
		"at its next renewal. Until then it may go on: stop it first where you can.", "")
	if m.mode == reasoning {
		return append(lines, "Why is it taken away? This goes into the record, and to the holder.", "> "+view.Printable(m.typed)+"█")
	}
	return append(lines, "reason: "+view.Printable(m.reason), "", "To take the lock away from this holder, type its name:", "> "+view.Printable(m.typed)+"█")
}

func (m *model) helpLines() []string {
	return []string{
		"up down pgup pgdn home end   move (also j k g G)",
		"enter                        details of a lock: holder, who waits, votes",
		"/                            filter by name, holder, note, owner or state",
		"s  S                         next order, order before; now: " + string(m.sort),
		"F                            take the lock from its holder (asks first)",
		"esc                          back; in the list: no filter",
		"q                            quit",
		"",
		"at risk  a bare majority of the nodes has it",
		"split    no majority of the nodes names the same owner",
		"no end   its key has no TTL",
		"passing  free, on its way to the first who waits",
		"unknown  too few nodes answer",
		"",
		"HELD FOR counts from when this view saw the lock change hands, else from",
		"when the holder asked for it. Hand-overs between two looks are not seen.",
	}
}

func fieldLine(name, text string) string { return pad(name, 10) + text }

// shortTime formats a time in at most 7 columns.
func shortTime(d time.Duration) string {
	switch {
	case d < 0:
		return "no end"
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// truncate shortens s to the width of a line.
func truncate(s string, width int) string { return ansi.Truncate(s, width, "…") }

func pad(s string, width int) string {
	s = truncate(s, width)
	return s + strings.Repeat(" ", max(width-ansi.StringWidth(s), 0))
}

func padLeft(s string, width int) string {
	s = truncate(s, width)
	return strings.Repeat(" ", max(width-ansi.StringWidth(s), 0)) + s
}

// Colors only repeat the meaning of the words.
func paint(level live.Level, s string) string {
	switch level {
	case live.Bad:
		return "\x1b[1;31m" + s + "\x1b[m"
	case live.Warn:
		return "\x1b[33m" + s + "\x1b[m"
	}
	return s
}

func bold(s string) string    { return "\x1b[1m" + s + "\x1b[m" }
func reverse(s string) string { return "\x1b[7m" + s + "\x1b[m" }
