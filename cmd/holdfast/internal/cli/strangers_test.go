package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/lines"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// TestTextOfStrangersStaysText holds for each output and what other clients choose, such as names and notes: it is one
// value there, and steers nothing.
func TestTextOfStrangersStaysText(t *testing.T) {
	t.Parallel()
	jsonOf := func(text string) string {
		var got struct{ Name string }
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			return err.Error()
		}
		return got.Name
	}
	for output, row := range map[string]struct {
		write func(text string) string
		read  func(written string) string // what a program reads there; nil: it is for people
	}{
		"table": {func(text string) string {
			var out bytes.Buffer
			a := &app{io: IO{Out: &out}}
			a.writeTable([][]string{{"NAME"}, {text}})
			return strings.TrimPrefix(out.String(), "NAME\n")
		}, nil},
		"JSON": {func(text string) string {
			var out bytes.Buffer
			a := &app{io: IO{Out: &out}}
			a.writeJSON(map[string]string{"name": text})
			return strings.ReplaceAll(out.String(), "\n", "")
		}, jsonOf},
		"status": {func(text string) string { return string(line(run.Status{Name: text})) }, jsonOf},
		"log for people": {func(text string) string {
			var out bytes.Buffer
			lines.New(&out, "text", slog.LevelInfo).Info("busy: "+text, "name", text, "cause", errors.New(text))
			return out.String()
		}, nil},
		"log as JSON": {func(text string) string {
			var out bytes.Buffer
			lines.New(&out, "json", slog.LevelInfo).Info("busy: "+text, "name", text)
			return out.String()
		}, jsonOf},
		"holder": {func(text string) string {
			var out bytes.Buffer
			held := &holdfast.HeldError{Holder: holdfast.Holder{Host: text, Program: text, Note: text}, Remaining: time.Second}
			lines.New(&out, "text", slog.LevelInfo).Info(heldBy(text, held))
			return out.String()
		}, nil},
		"label of a metric": {func(text string) string {
			e := exposition{job: label(text)}
			e.gauge("m", "help", "", 1)
			_, sample, _ := strings.Cut(string(e.text), " gauge\n")
			return sample
		}, func(written string) string {
			quoted := strings.TrimSuffix(strings.TrimPrefix(written, `m{name="`), "\"} 1\n")
			return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(quoted)
		}},
	} {
		for _, text := range []string{"a b", "$HOME", "d;e", `"quoted" \n`, "two\nlines", "a\tb", "\u202eright to left", "-x"} {
			written := row.write(text)
			if body := strings.TrimSuffix(written, "\n"); strings.Contains(body, "\n") {
				t.Errorf("%s: %q takes more than one line: %q", output, text, written)
			}
			if row.read == nil && strings.ContainsFunc(strings.TrimSuffix(written, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s: %q reaches the terminal as %q", output, text, written)
			}
			if row.read != nil && row.read(written) != text {
				t.Errorf("%s: %q is read as %q", output, text, row.read(written))
			}
			if view.Completable(text) {
				t.Errorf("completion puts %q into a command line", text)
			}
		}
	}
}
