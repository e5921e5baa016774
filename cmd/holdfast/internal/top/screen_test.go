package top

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/force"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/live"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/memory"
)

// hostileName is a name with control sequences for a terminal, with wide letters, and long.
const hostileName = "a\x1b[2J\x1b]0;title\x07\r\n大きな名前-größe-" + "0123456789012345678901234567890123456789012345678901234567890123456789"

// client returns a client of an in-memory driver. It holds the locks names until the test ends.
func client(t *testing.T, names ...string) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(memory.New(3), &holdfast.Options{Holder: holdfast.Holder{Host: "web-1", PID: 7, Program: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for _, name := range names {
		if _, err := c.Acquire(t.Context(), name, &holdfast.AcquireOptions{Note: "a note"}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// disguisingClient returns hostile text, as another program may have stored it, for the lock "hostile".
type disguisingClient struct{ *holdfast.Client }

func (d disguisingClient) List(ctx context.Context, prefix string) iter.Seq2[holdfast.Status, error] {
	return func(yield func(holdfast.Status, error) bool) {
		for st, err := range d.Client.List(ctx, prefix) {
			if !yield(disguise(st), err) {
				return
			}
		}
	}
}

func (d disguisingClient) Inspect(ctx context.Context, key string) (holdfast.Status, error) {
	if key == hostileName {
		key = "hostile"
	}
	st, err := d.Client.Inspect(ctx, key)
	return disguise(st), err
}

func disguise(st holdfast.Status) holdfast.Status {
	if st.Key == "hostile" {
		st.Key, st.Owner, st.Holder = hostileName, hostileName, holdfast.Holder{Host: hostileName, Program: hostileName, Note: hostileName}
		for i := range st.Nodes {
			st.Nodes[i].Node, st.Nodes[i].Owner = hostileName, hostileName
		}
	}
	return st
}

// started returns a model that has read all locks.
func started(t *testing.T, c live.Backend) *model {
	t.Helper()
	source := live.New(c, nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { source.Run(ctx); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	m := &model{ctx: ctx, source: source, opts: Options{Every: time.Second}, sort: live.ByState}
	m.Init()
	fixture.New(t).Eventually("it has seen all locks", func() bool { m.refresh(); return !m.picture.Whole.IsZero() })
	return m
}

func (m *model) press(keys ...string) (cmd tea.Cmd) {
	for _, k := range keys {
		msg := tea.KeyPressMsg{Code: []rune(k)[0], Text: k}
		switch k {
		case "enter":
			msg = tea.KeyPressMsg{Code: tea.KeyEnter}
		case "esc":
			msg = tea.KeyPressMsg{Code: tea.KeyEscape}
		}
		_, cmd = m.Update(msg)
	}
	return cmd
}

func TestScreensFitTerminalAndEscapeText(t *testing.T) {
	t.Parallel()
	m := started(t, disguisingClient{client(t, "hostile", "b", "c")})
	screens := map[string]func(){
		"list":   func() { m.mode = listing },
		"filter": func() { m.press("/", "b", "\x1b") },
		"help":   func() { m.press("esc", "?") },
		"detail": func() {
			m.press("q", "g")
			m.Update(m.press("enter")())
		},
		"reason": func() { m.Update(m.press("F")()) },
		"name":   func() { m.press("w", "h", "y", "enter", "x") },
	}
	for _, name := range []string{"list", "filter", "help", "detail", "reason", "name"} {
		screens[name]()
		for _, width := range []int{1, 39, 40, 79, 80, 110, 130, 300} {
			for _, height := range []int{1, 9, 10, 24, 60} {
				m.Update(tea.WindowSizeMsg{Width: width, Height: height})
				lines := strings.Split(m.screenText(), "\n")
				if len(lines) > height {
					t.Fatalf("%s: %d lines at %dx%d", name, len(lines), width, height)
				}
				for _, line := range lines {
					if ansi.StringWidth(line) > width || strings.ContainsAny(ansi.Strip(line), "\x1b\x07\r") {
						t.Fatalf("%s at %dx%d: %q", name, width, height, line)
					}
				}
			}
		}
	}
}

func TestCursorStaysOnLock(t *testing.T) {
	t.Parallel()
	c := client(t, "b", "d")
	m := started(t, c)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	m.press("j")
	if m.selected != "d" {
		t.Fatalf("on %q", m.selected)
	}
	for _, name := range []string{"a", "c"} {
		if _, err := c.Acquire(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
	}
	fixture.New(t).Eventually("all locks are rows", func() bool { m.refresh(); return len(m.rows) == 4 })
	if m.selected != "d" || m.cursor != 3 {
		t.Errorf("on %q at %d", m.selected, m.cursor)
	}
}

// The test gives one wrong answer at a time.
func TestForceNeedsReasonAndName(t *testing.T) {
	t.Parallel()
	m := started(t, client(t, "job"))
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	var reasons []string
	m.opts.Force = func(_ context.Context, st holdfast.Status, reason string) (force.Record, error) {
		reasons = append(reasons, st.Key+": "+reason)
		return force.Record{}, errors.New("no")
	}
	for _, answers := range [][]string{
		{"enter"},
		{" ", "enter", "enter"},
		{"x", "enter", "esc"},
		{"x", "enter", "enter"},
		{"x", "enter", "j", "o", "enter"},
		{"x", "esc"},
	} {
		m.Update(m.press("F")())
		if m.mode != reasoning {
			t.Fatalf("mode %v", m.mode)
		}
		if cmd := m.press(answers...); cmd != nil {
			t.Errorf("%q released the lock", answers)
		}
		m.press("esc")
	}
	m.Update(m.press("F")())
	if cmd := m.press("w", "h", "y", "enter", "j", "o", "b", "enter"); cmd == nil {
		t.Error("the correct answers did not release the lock")
	} else {
		m.Update(cmd())
	}
	if got := fmt.Sprint(reasons); got != "[job: why]" {
		t.Errorf("taken: %s", got)
	}
	if m.message != "no" || m.level != live.Bad {
		t.Errorf("message %q", m.message)
	}
}

func TestShortNamesLeaveRoomForNotes(t *testing.T) {
	t.Parallel()
	c := client(t)
	const note = "INC-512: until the month end is booked"
	if _, err := c.Acquire(t.Context(), "job", &holdfast.AcquireOptions{Note: note}); err != nil {
		t.Fatal(err)
	}
	m := started(t, c)
	m.Update(tea.WindowSizeMsg{Width: 160, Height: 24})
	if text := ansi.Strip(strings.Join(m.listLines(), "\n")); !strings.Contains(text, note) {
		t.Errorf("the note %q is truncated:\n%s", note, text)
	}
}
