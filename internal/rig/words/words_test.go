// Package words rejects habits of language that keep readers out:
//
//   - clause: a comment that defines a name by a clause, such as "x is what …", "x is how long …", "x is that of …" or "x says …". A
//     function's comment begins with what it does: returns, reports whether, waits for. A field's is a noun.
//   - most: a name that ends in Most or Least. Go uses max and min.
//   - test: a test whose name has more than eight words.
//   - subject: one of the latest commits whose subject has more than 72 columns.
package words

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	root = "../../.."

	maxTestWords = 8
	maxSubject   = 72 // columns
	commits      = 30 // the latest, whose subjects are checked
)

var (
	clause   = regexp.MustCompile(`//\s*\w+ (?:(?:is|are) (?:what|why|who|how|whether|where|when|until|that of|those)\b|says\b)`)
	most     = regexp.MustCompile(`\b[a-z]\w*(?:Most|Least)\b\s*(?:=|:=|[a-z*\[(])`)
	test     = regexp.MustCompile(`^func Test([A-Z]\w*)\(`)
	upper    = regexp.MustCompile(`[A-Z]+[a-z0-9]?`)
	literals = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`")
)

// habitFound is one habit in one line.
type habitFound struct{ habit, file, text string }

// findHabits returns the habits in the text of a Go file.
func findHabits(file, text string) (all []habitFound) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		names := strings.Contains(line, "Most") || strings.Contains(line, "Least")
		if !names && !strings.Contains(line, "//") && !strings.HasPrefix(line, "func Test") {
			continue
		}
		code, comment, commented := strings.Cut(literals.ReplaceAllString(line, `""`), "//")
		if commented && clause.MatchString("//"+comment) {
			all = append(all, habitFound{"clause", file, line})
		}
		if names && most.MatchString(code) {
			all = append(all, habitFound{"most", file, line})
		}
		if name := test.FindStringSubmatch(line); name != nil && wordCount(name[1]) > maxTestWords {
			all = append(all, habitFound{"test", file, line})
		}
	}
	return all
}

// wordCount returns the number of words in a name. A run of three or more capitals is an abbreviation followed
// by the first letter of the next word.
func wordCount(name string) (n int) {
	for _, run := range upper.FindAllString(name, -1) {
		capitals := len(strings.TrimRight(run, "abcdefghijklmnopqrstuvwxyz0123456789"))
		switch {
		case capitals == len(run): // at the end of the name
			n++
		default:
			n += min(capitals, 2)
		}
	}
	return n
}

func TestFinderDetectsEachHabit(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"// confirm is how long a replica may take.":                                      "clause",
		"	limit time.Duration // limit says when it ends":                                 "clause",
		"// confirm bounds the wait for a replica.":                                       "",
		`	t.Error("// it is what it is")`:                                                 "",
		"const batchMost = 512":                                                           "most",
		"	leastTTL = time.Second":                                                         "",
		"	x := almost(y)":                                                                 "",
		"func TestASettingThatThereIsNotEndsAWait(t *testing.T) {":                        "test",
		"func TestUnknownSettingEndsWait(t *testing.T) {":                                 "",
		"func TestExtendSetsTTLOfLaterRenewals(t *testing.T) {":                           "",
		"func helper() { return } // those that wait are in the order in which they came": "",
	} {
		found := findHabits("a.go", line)
		if got := append(found, habitFound{})[0].habit; got != want || len(found) > 1 {
			t.Errorf("%q: found %q, want %q", line, found, want)
		}
	}
}

func TestLanguageIsPlain(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && path != root):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		for _, p := range findHabits(name, string(text)) {
			t.Errorf("%s: %s: write it in plain English: %s", p.file, p.habit, strings.TrimSpace(p.text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCommitSubjectLength(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "log", "--no-merges", "-n", fmt.Sprint(commits), "--format=%s").Output()
	if err != nil {
		t.Skip("no history here:", err)
	}
	for subject := range strings.Lines(string(out)) {
		if subject = strings.TrimRight(subject, "\n"); utf8.RuneCountInString(subject) > maxSubject {
			t.Errorf("%q has %d columns; a subject has at most %d", subject, utf8.RuneCountInString(subject), maxSubject)
		}
	}
}
