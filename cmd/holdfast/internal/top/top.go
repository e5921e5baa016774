// Package top is the live view of a backend in a terminal.
package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/force"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/live"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// Options of Run.
type Options struct {
	In  io.Reader
	Out io.Writer // a terminal
	// Force force-releases the lock of the holder in st. The view has asked for the reason and for the name of
	// the lock.
	Force func(ctx context.Context, st holdfast.Status, reason string) (force.Record, error)
	Every time.Duration // interval of redrawing; default 1 s
	Sort  live.Sort
	Plain bool // no colours
}

// Run shows the picture of source until the user quits or ctx ends, and then restores the terminal. It returns
// the records of the force-released locks.
func Run(ctx context.Context, source *live.Source, opts Options) ([]force.Record, error) {
	m := &model{ctx: ctx, source: source, opts: opts, sort: opts.Sort}
	settings := []tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(opts.In), tea.WithOutput(opts.Out), tea.WithoutSignalHandler(), tea.WithFPS(20)}
	if opts.Plain {
		settings = append(settings, tea.WithColorProfile(colorprofile.ASCII))
	}
	_, err := tea.NewProgram(m, settings...).Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return m.records, err
}

// mode decides the meaning of keys.
type mode int

const (
	listing   mode = iota
	filtering      // the user types the filter
	detailing      // one lock fills the screen
	reasoning      // the user types the reason of a force-release
	naming         // the user types the name of that lock
	helping
)

// model is the state of the view. Bubbletea calls its methods one at a time.
type model struct {
	ctx    context.Context
	source *live.Source
	opts   Options

	width, height int
	mode          mode
	before        mode // mode to which a question or the help returns

	picture  *live.Picture
	rows     []*live.Row // the rows that pass the filter, in their order
	filter   string
	sort     live.Sort
	selected string // name of a lock
	cursor   int    // index of selected in rows
	top      int    // the first row on the screen

	detail *live.Detail // detail of selected
	asking bool         // a request for detail is in progress
	scroll int          // its first line on the screen
	lines  int          // its number of lines

	target  holdfast.Status // the lock to force-release
	typed   string
	reason  string
	message string
	level   live.Level // level of message
	records []force.Record
}

// Messages from the backend and from the clock.
type (
	tick    time.Time
	details struct {
		name string
		live.Detail
	}
	looked struct { // status read before a force-release
		st  holdfast.Status
		err error
	}
	forced struct {
		record force.Record
		err    error
	}
)

// Init implements tea.Model.
func (m *model) Init() tea.Cmd {
	m.refresh()
	return m.waitFor(100 * time.Millisecond) // the first read may be over soon
}

func (m *model) waitFor(d time.Duration) tea.Cmd {
	return tea.Tick(d, func(t time.Time) tea.Msg { return tick(t) })
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		m.refresh()
	case tick:
		m.refresh()
		next := m.waitFor(m.opts.Every)
		if m.picture.Whole.IsZero() && m.picture.Err == nil {
			next = m.waitFor(100 * time.Millisecond)
		}
		return m, tea.Batch(next, m.readDetail())
	case details:
		if m.asking = false; msg.name == m.selected {
			m.detail = &msg.Detail
		}
	case looked:
		m.askReason(msg.st, msg.err)
	case forced:
		m.forceDone(msg.record, msg.err)
		return m, m.readDetail()
	case tea.PasteMsg:
		m.editText(func(s string) string { return s + msg.Content })
	case tea.KeyPressMsg:
		return m, m.handleKey(msg)
	}
	return m, nil
}

// refresh takes the newest picture and keeps the cursor on its lock.
func (m *model) refresh() {
	m.picture = m.source.Picture()
	m.rows = m.picture.Select(m.filter, m.sort)
	if i := slices.IndexFunc(m.rows, func(r *live.Row) bool { return r.Key == m.selected }); i >= 0 {
		m.cursor = i
	}
	m.moveCursor(m.cursor)
}

// moveCursor moves the cursor to the i-th row, or the nearest row.
func (m *model) moveCursor(i int) {
	m.cursor = max(min(i, len(m.rows)-1), 0)
	if m.mode == listing || m.mode == filtering {
		m.selected = ""
		if len(m.rows) > 0 {
			m.selected = m.rows[m.cursor].Key
		}
	}
	page := m.pageLines()
	m.top = max(min(m.top, m.cursor, len(m.rows)-page), m.cursor-page+1, 0)
	var names []string
	for _, r := range m.rows[m.top:min(m.top+page, len(m.rows))] {
		names = append(names, r.Key)
	}
	m.source.Want(names...)
}

// readDetail requests the detail of the lock that fills the screen, unless a request is in flight.
func (m *model) readDetail() tea.Cmd {
	if m.asking || m.mode != detailing {
		return nil
	}
	m.asking = true
	name := m.selected
	return func() tea.Msg { return details{name, m.source.Detail(m.ctx, name)} }
}

// handleKey handles a key.
func (m *model) handleKey(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	}
	switch m.mode {
	case filtering, reasoning, naming:
		return m.typingKey(k)
	case helping:
		m.mode = m.before
		return nil
	}
	m.message = ""
	switch k.String() {
	case "q":
		return tea.Quit
	case "?", "h":
		m.before, m.mode = m.mode, helping
	case "F", "f":
		return m.beginForce()
	case "esc", "left", "backspace":
		if m.mode == detailing {
			m.mode, m.detail = listing, nil
		} else {
			m.filter = ""
		}
		m.refresh()
	default:
		if m.mode == detailing {
			m.scrollKey(k.String())
			return nil
		}
		return m.listKey(k.String())
	}
	return nil
}

// listKey handles a key that moves in the list or orders it.
func (m *model) listKey(k string) tea.Cmd {
	switch k {
	case "up", "k":
		m.moveCursor(m.cursor - 1)
	case "down", "j":
		m.moveCursor(m.cursor + 1)
	case "pgup", "ctrl+b":
		m.moveCursor(m.cursor - m.pageLines())
	case "pgdown", "space", "ctrl+f":
		m.moveCursor(m.cursor + m.pageLines())
	case "home", "g":
		m.moveCursor(0)
	case "end", "G":
		m.moveCursor(len(m.rows) - 1)
	case "/":
		m.mode, m.typed = filtering, m.filter
	case "s":
		m.nextOrder(1)
	case "S":
		m.nextOrder(-1)
	case "enter", "right":
		if m.selected == "" {
			return nil
		}
		m.mode, m.detail, m.scroll = detailing, nil, 0
		return m.readDetail()
	}
	return nil
}

// nextOrder selects the next order, or the previous one.
func (m *model) nextOrder(step int) {
	i := slices.Index(live.Sorts, m.sort) + step
	m.sort = live.Sorts[(i+len(live.Sorts))%len(live.Sorts)]
	m.refresh()
}

func (m *model) scrollKey(k string) {
	page := m.pageLines()
	step := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "pgdown": page, "space": page, "home": -m.lines, "end": m.lines}[k]
	m.scroll = max(min(m.scroll+step, m.lines-m.pageLines()), 0)
}

// typingKey handles a key while the user types text.
func (m *model) typingKey(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "esc":
		if m.mode == filtering {
			m.filter = ""
		}
		m.mode = m.modeBefore()
		m.refresh()
	case "enter":
		return m.submitAnswer()
	case "backspace":
		m.editText(func(s string) string {
			runes := []rune(s)
			return string(runes[:max(len(runes)-1, 0)])
		})
	case "ctrl+u":
		m.editText(func(string) string { return "" })
	default:
		m.editText(func(s string) string { return s + k.Text })
	}
	return nil
}

// maxInput bounds the typed text: the name of a lock is shorter.
const maxInput = 1024

func (m *model) editText(change func(string) string) {
	if m.mode != filtering && m.mode != reasoning && m.mode != naming {
		return
	}
	if text := change(m.typed); len(text) <= maxInput {
		m.typed = strings.TrimRight(text, "\r\n")
	}
	if m.mode == filtering {
		m.filter = m.typed
		m.refresh()
	}
}

// modeBefore returns the mode to which a question returns.
func (m *model) modeBefore() mode {
	if m.mode == filtering {
		return listing
	}
	return m.before
}

// submitAnswer handles the typed text as an answer.
func (m *model) submitAnswer() tea.Cmd {
	switch m.mode {
	case filtering:
		m.mode = listing
	case reasoning:
		if m.reason = strings.TrimSpace(m.typed); m.reason != "" {
			m.mode, m.typed = naming, ""
		}
	case naming:
		name := m.typed
		m.mode = m.before
		if name != view.Printable(m.target.Key) {
			m.setMessage(live.Warn, "that is not the name of the lock; nothing was done")
			return nil
		}
		m.setMessage(live.Fine, "taking %s away …", m.target.Key)
		st, reason := m.target, m.reason
		return func() tea.Msg {
			record, err := m.opts.Force(m.ctx, st, reason)
			return forced{record, err}
		}
	}
	return nil
}

// beginForce begins a force-release of the selected lock by reading its holder.
func (m *model) beginForce() tea.Cmd {
	if m.selected == "" {
		return nil
	}
	name := m.selected
	m.setMessage(live.Fine, "asking who holds %s …", name)
	return func() tea.Msg {
		d := m.source.Detail(m.ctx, name)
		return looked{d.Row.Status, d.Err}
	}
}

// askReason asks for the reason, if the lock is held.
func (m *model) askReason(st holdfast.Status, err error) {
	m.message = ""
	switch {
	case m.mode != listing && m.mode != detailing: // the user has moved on
	case err != nil:
		m.setMessage(live.Bad, "%v", err)
	case !st.Held:
		m.setMessage(live.Warn, "nobody holds %s", st.Key)
	default:
		m.before, m.mode, m.target, m.typed = m.mode, reasoning, st, ""
	}
}

func (m *model) forceDone(record force.Record, err error) {
	if err != nil {
		m.setMessage(live.Bad, "%v", err)
		return
	}
	m.records = append(m.records, record)
	if record.Warning != "" {
		m.setMessage(live.Bad, "%s", record.Warning)
		return
	}
	m.setMessage(live.Warn, "%s was taken from %v, token %d", record.Lock.Name, view.Holder(m.target), record.Lock.Token)
}

func (m *model) setMessage(level live.Level, format string, args ...any) {
	m.message, m.level = fmt.Sprintf(format, args...), level
}

// Terminal returns an error if this terminal cannot show the view.
func Terminal() error {
	if term := os.Getenv("TERM"); term == "" || term == "dumb" {
		return fmt.Errorf("the terminal cannot move its cursor (TERM=%q); use ls, or set TERM to what it is, such as xterm-256color", term)
	}
	return nil
}
