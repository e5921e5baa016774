// Package words counts habits of language that keep readers out, and lets none of them grow:
//
//   - clause: a comment that defines a name by a clause, such as "x is what …", "x is how long …", "x is that of …" or "x says …". A
//     function's comment begins with what it does: returns, reports whether, waits for. A field's is a noun.
//   - most: a name that ends in Most or Least. Go says max and min.
//   - test: a test whose name has more than eight words.
//   - subject: one of the latest commits whose subject has more than 72 columns.
//
// known.txt has what is left in each folder. Its numbers may only become smaller.
package words

import (
	"cmp"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

var update = flag.Bool("update", false, "write the present numbers into known.txt")

var (
	clause   = regexp.MustCompile(`//\s*\w+ (?:(?:is|are) (?:what|why|who|how|whether|where|when|until|that of|those)\b|says\b)`)
	most     = regexp.MustCompile(`\b[a-z]\w*(?:Most|Least)\b\s*(?:=|:=|[a-z*\[(])`)
	test     = regexp.MustCompile(`^func Test([A-Z]\w*)\(`)
	upper    = regexp.MustCompile(`[A-Z]+[a-z0-9]?`)
	literals = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`")
)

// place is one habit at one line.
type place struct{ habit, file, text string }

// folder returns the first two parts of the folder of a file: the unit of known.txt.
func (p place) folder() string {
	parts := strings.Split(filepath.ToSlash(filepath.Dir(p.file)), "/")
	return strings.Join(parts[:min(len(parts), 2)], "/")
}

// find returns the habits in the text of a Go file.
func find(file, text string) (all []place) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		names := strings.Contains(line, "Most") || strings.Contains(line, "Least")
		if !names && !strings.Contains(line, "//") && !strings.HasPrefix(line, "func Test") {
			continue
		}
		code, comment, commented := strings.Cut(literals.ReplaceAllString(line, `""`), "//")
		if commented && clause.MatchString("//"+comment) {
			all = append(all, place{"clause", file, line})
		}
		if names && most.MatchString(code) {
			all = append(all, place{"most", file, line})
		}
		if name := test.FindStringSubmatch(line); name != nil && wordCount(name[1]) > maxTestWords {
			all = append(all, place{"test", file, line})
		}
	}
	return all
}

// wordCount returns the number of words in a name. A run of three and more capitals is an abbreviation, and the first letter of the
// next word.
func wordCount(name string) (n int) {
	for _, run := range upper.FindAllString(name, -1) {
		capitals := len(strings.TrimRight(run, "abcdefghijklmnopqrstuvwxyz0123456789"))
		switch {
		case capitals == len(run): // at the end
			n++
		default:
			n += min(capitals, 2)
		}
	}
	return n
}

func TestFindSeesEachHabit(t *testing.T) {
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
		found := find("a.go", line)
		if got := append(found, place{})[0].habit; got != want || len(found) > 1 {
			t.Errorf("%q: found %q, want %q", line, found, want)
		}
	}
}

// count walks the repository, and returns the number of each habit in each folder, and the places.
func count(t *testing.T) (counts map[string]int, places map[string][]place) {
	counts, places = make(map[string]int), make(map[string][]place)
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
		for _, p := range find(name, string(text)) {
			key := p.folder() + " " + p.habit
			counts[key]++
			places[key] = append(places[key], p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return counts, places
}

func TestHabitsOfLanguageOnlyShrink(t *testing.T) {
	t.Parallel()
	counts, places := count(t)
	if *update {
		var lines []string
		for key, n := range counts {
			lines = append(lines, fmt.Sprintf("%s %d\n", key, n))
		}
		slices.Sort(lines)
		if err := os.WriteFile("known.txt", []byte(strings.Join(lines, "")), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile("known.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		var folder, habit string
		var n int
		if _, err := fmt.Sscan(line, &folder, &habit, &n); err != nil {
			t.Fatalf("known.txt: %q: %v", line, err)
		}
		known[folder+" "+habit] = n
	}
	keys := slices.Collect(maps.Keys(counts))
	for key := range known {
		if counts[key] == 0 {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		switch n := cmp.Compare(counts[key], known[key]); {
		case n > 0:
			t.Errorf("%s: %d, and known.txt has %d; write the new ones in plain English:", key, counts[key], known[key])
			for _, p := range places[key] {
				t.Errorf("\t%s: %s", p.file, strings.TrimSpace(p.text))
			}
		case n < 0:
			t.Errorf("%s: %d, and known.txt has %d: lower it (go test ./internal/rig/words -update)", key, counts[key], known[key])
		}
	}
}

func TestCommitSubjectsFit(t *testing.T) {
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
