package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/lines"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
)

// hostileTexts are texts that another client may choose and that would act as a command in some output.
var hostileTexts = []string{
	"a b", "$HOME", "d;e", "`id`", `"quoted" \n`, "'; DROP TABLE lock; --", "two\nlines", "a\tb", "\u202eright to left", "-x", "--help", "=ls",
	"@home", "a,b", "~", "*", "<img src=x onerror=alert(1)>", "C1 \u009b2J", "C0 \x1b[2J\x1b]0;title\x07", "\u2028",
	"\U000e0001tag",
}

// output is a place where text of another client appears.
type output struct {
	name  string
	write func(text string) string
	read  func(written string) string // parses the output as a program does; nil: people read it
	raw   bool                        // never shown unescaped on a terminal
}

// hostileStatus returns a lock in which another client has set every field that clients can set.
func hostileStatus(text string) holdfast.Status {
	holder := holdfast.Holder{Host: text, Program: text, Note: "leader " + text}
	return holdfast.Status{
		Key: text, Held: true, Owner: text, Holder: holder, Token: 7, Waiters: 1, Remaining: time.Second,
		Nodes: []driver.NodeView{{Node: text, Owner: text, Err: errors.New(text)}, {Node: text, Owner: text}, {Node: text, Owner: text}},
	}
}

// printedText returns what a command prints, without its own line ends.
func printedText(as string, print func(a *app) error) string {
	var out bytes.Buffer
	if err := print(&app{io: IO{Out: &out}, output: as}); err != nil {
		return err.Error()
	}
	return out.String()
}

// joinLines removes the line ends of a JSON encoder between the values.
func joinLines(text string) string { return strings.ReplaceAll(text, "\n", "") }

// nameInJSON returns the field Name of a JSON document, or the text of the error if there is none.
func nameInJSON(document string) string {
	var got struct{ Name string }
	if err := json.Unmarshal([]byte(document), &got); err != nil {
		return err.Error()
	}
	return got.Name
}

// textInLockJSON returns the text in a JSON document of a lock, if all texts that clients choose are the same.
func textInLockJSON(document string) string {
	var got view.Lock
	if err := json.Unmarshal([]byte(document), &got); err != nil {
		return err.Error()
	}
	for _, other := range []string{got.Owner, got.Holder.Host, got.Leader.Value, got.Nodes[0].Node, got.Nodes[0].Error, got.Queue[0].Owner} {
		if other != got.Name {
			return other
		}
	}
	return got.Name
}

var outputs = []output{
	{name: "table", write: func(text string) string {
		return printedText("", func(a *app) error { return a.writeTable([][]string{{text}, {text}}) })
	}},
	{name: "ls", write: func(text string) string {
		return printedText("", func(a *app) error {
			print, end := a.listPrinter()
			return errors.Join(print(hostileStatus(text)), end())
		})
	}},
	{name: "ls as JSON", write: func(text string) string {
		return joinLines(printedText("json", func(a *app) error {
			print, end := a.listPrinter()
			return errors.Join(print(hostileStatus(text)), end())
		}))
	}, read: func(written string) string {
		var all []struct{ Name string }
		if err := json.Unmarshal([]byte(written), &all); err != nil || len(all) != 1 {
			return fmt.Sprint(err, all)
		}
		return all[0].Name
	}},
	{name: "show", write: func(text string) string {
		return printedText("", func(a *app) error {
			return a.writeStatus(hostileStatus(text), []driver.Waiter{{Owner: text, Holder: hostileStatus(text).Holder}}, nil)
		})
	}},
	{name: "show as JSON", write: func(text string) string {
		return joinLines(printedText("json", func(a *app) error { return a.writeStatus(hostileStatus(text), []driver.Waiter{{Owner: text}}, nil) }))
	}, read: textInLockJSON},
	{name: "watch", write: func(text string) string {
		return string(jsonLine(lockChange{Lock: &view.Lock{Name: text}, Error: text}))
	}, read: func(w string) string {
		var got lockChange
		if err := json.Unmarshal([]byte(w), &got); err != nil || got.Error != got.Lock.Name {
			return fmt.Sprint(err)
		}
		return got.Error
	}},
	{name: "doctor", write: func(text string) string {
		found := []holdfast.Finding{{Verdict: driver.VerdictFault, Check: "c", Node: text, Text: text, Fix: text}}
		return printedText("", func(a *app) error {
			return a.writeTable(findingRows(found, func(driver.Finding) bool { return true }))
		})
	}},
	{name: "check", write: func(text string) string {
		return printedText("", func(a *app) error {
			return errors.Join(a.writeCheck(ticket{Name: text}, hostileStatus(text), true, ""), a.writeCheck(ticket{Name: text}, hostileStatus(text), false, text))
		})
	}},
	{name: "lease file", write: func(text string) string { return joinLines(string(ticket{Name: text}.text())) }, read: nameInJSON},
	{name: "status", write: func(text string) string { return string(jsonLine(run.Status{Name: text})) }, read: nameInJSON},
	{name: "log for people", write: func(text string) string {
		var out bytes.Buffer
		lines.New(&out, "text", slog.LevelInfo).Info("busy: "+text, "name", text, "cause", errors.New(text))
		return out.String()
	}},
	{name: "log as JSON", write: func(text string) string {
		var out bytes.Buffer
		lines.New(&out, "json", slog.LevelInfo).Info("busy: "+text, "name", text)
		return out.String()
	}, read: nameInJSON},
	{name: "who holds the lock", write: func(text string) string {
		return (&holdfast.HeldError{Holder: hostileStatus(text).Holder}).Error() + "\n" + (&holdfast.HeldError{Owner: text}).Error()
	}},
	{name: "label of a metric", raw: true, write: func(text string) string {
		e := exposition{job: escapeLabel(text)}
		e.addGauge("m", "help", "", 1)
		_, sample, _ := strings.Cut(string(e.text), " gauge\n")
		return sample
	}, read: func(written string) string {
		quoted := strings.TrimSuffix(strings.TrimPrefix(written, `m{name="`), "\"} 1\n")
		return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(quoted)
	}},
}

// In each output, a text that other clients choose, such as a name or a note, stays one value and has no
// effect.
func TestOutputEscapesUntrustedText(t *testing.T) {
	t.Parallel()
	for _, o := range outputs {
		plain := strings.Count(o.write("plain"), "\n")
		for _, text := range hostileTexts {
			written := o.write(text)
			if strings.Count(written, "\n") != plain {
				t.Errorf("%s: %q takes more lines than a harmless text: %q", o.name, text, written)
			}
			if !o.raw && strings.ContainsFunc(strings.ReplaceAll(written, "\n", ""), func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s: %q is printed to the terminal as %q", o.name, text, written)
			}
			if o.read != nil && o.read(written) != text {
				t.Errorf("%s: %q is parsed as %q", o.name, text, o.read(written))
			}
		}
	}
}

// Each installed shell reads the names that completion offers as one word, and unsafe names are not offered.
// PowerShell is not packaged for Debian; the comment of Completable has its rules.
func TestCompletedNamesAreOneWord(t *testing.T) {
	t.Parallel()
	for _, text := range hostileTexts {
		if view.Completable(text) {
			t.Errorf("completion inserts %q into a command line", text)
		}
	}
	names := []string{"orders/42", "größe", "a.b:c@d+e=g-h_i", "/x", "./x", "_x", "0x1f", "1e3", "x=~y", "a=b"}
	for shell, flags := range map[string][]string{"bash": {"--norc"}, "zsh": {"-f"}, "fish": {"--no-config"}} {
		path, err := exec.LookPath(shell)
		if err != nil {
			if os.Getenv("HOLDFAST_SERVERS_REQUIRED") != "" {
				t.Errorf("%v: tools/deps installs it", err)
			}
			continue
		}
		for _, name := range names {
			if !view.Completable(name) {
				continue
			}
			out, err := exec.CommandContext(t.Context(), path, append(flags, "-c", `printf '%s\n' `+name)...).CombinedOutput()
			if err != nil || string(out) != name+"\n" {
				t.Errorf("%s reads %s as %q: %v", shell, name, out, err)
			}
		}
	}
}

// A name can change neither the statements nor the file of a database.
func TestHostileLockNameIsStoredLiterally(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	drv, err := sqlite.Open(t.Context(), "sqlite://"+filepath.Join(dir, "locks.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfast.New(drv, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	held := make(map[string]bool)
	for _, name := range append([]string{"../../etc/passwd", "/etc/passwd", "locks.db"}, hostileTexts...) {
		_, err := client.TryAcquire(t.Context(), name, &holdfast.AcquireOptions{Note: strings.TrimSpace(name)})
		if unprintable := strings.ContainsFunc(name, unicode.IsControl); (err != nil) != unprintable {
			t.Errorf("TryAcquire(%q) = %v", name, err)
		}
		held[name] = err == nil
	}
	for st, err := range client.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if !held[st.Key] || st.Holder.Note != strings.TrimSpace(st.Key) {
			t.Errorf("a lock %q with the note %q is listed", st.Key, st.Holder.Note)
		}
		delete(held, st.Key)
	}
	for name, missing := range held {
		if missing {
			t.Errorf("the list lacks %q", name)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), "locks.db") {
			t.Errorf("a file %q was created", f.Name())
		}
	}
}
