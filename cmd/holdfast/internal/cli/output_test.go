package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// Neither a very long name nor one with wide letters shifts the other rows.
func TestColumnsAlignWithHeaders(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &app{io: IO{Out: &out}}
	long := strings.Repeat("x", 300)
	if err := a.writeTable([][]string{{"NAME", "STATE"}, {"夜間レポート", "held"}, {"e\u0301te\u0301", "held"}, {long, "held"}, {"a", "held"}}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		at := strings.Index(line, "held")
		if strings.HasPrefix(line, "NAME") {
			at = strings.Index(line, "STATE")
		}
		want := ansi.StringWidth("夜間レポート") + 2
		if strings.HasPrefix(line, long) {
			want = len(long) + 2
		}
		if got := ansi.StringWidth(line[:at]); got != want {
			t.Errorf("the state is in column %d, want %d:\n%s", got, want, out.String())
		}
	}
}

// An owner with a note is long, because the note is part of the owner's id.
func TestLongOwnersAlignWithHeader(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &app{io: IO{Out: &out}}
	owner := strings.Repeat("x", 90)
	if err := a.writeTable([][]string{{"NODE", "OWNER", "TOKEN"}, {"a", owner, "4711"}, {"b", "", ""}, {"c", owner, "4711"}}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if got, want := strings.Index(lines[0], "TOKEN"), strings.Index(lines[1], "4711"); got != want {
		t.Errorf("the header is in column %d, the tokens in %d:\n%s", got, want, out.String())
	}
}
