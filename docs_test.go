package holdfast_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readRepository returns the text of each file of the repository whose name ends with one of the suffixes.
func readRepository(t *testing.T, suffixes ...string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		for _, suffix := range suffixes {
			if strings.HasSuffix(path, suffix) {
				text, err := os.ReadFile(path)
				files[path] = string(text)
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// trimLines removes the white space around each line of text.
func trimLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

func TestGoInPagesCompiles(t *testing.T) {
	t.Parallel()
	var program strings.Builder
	for _, text := range readRepository(t, ".go") {
		program.WriteString(trimLines(text) + "\n")
	}
	for page, text := range readRepository(t, ".md") {
		for _, block := range regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(program.String(), trimLines(block[1])) {
				t.Errorf("%s: no Go file has this code:\n%s", page, block[1])
			}
		}
	}
}

func TestLinksInPagesHaveTargets(t *testing.T) {
	t.Parallel()
	pages := readRepository(t, ".md")
	code := regexp.MustCompile("(?ms)^```.*?^```")
	for page, text := range pages {
		text = code.ReplaceAllString(text, "")
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			path, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, link[1])
			} else if anchor != "" && !headingAnchors(pages[target])[anchor] {
				t.Errorf("%s links to %s, but %s has no such heading", page, link[1], target)
			}
		}
	}
}

// TestPagesNamedInCodeExist searches comments and messages for names of pages: "docs/operations.md",
// "docs/operations.md, Rights", "docs/alerts.md#lockleaks".
func TestPagesNamedInCodeExist(t *testing.T) {
	t.Parallel()
	pages := readRepository(t, ".md")
	mention := regexp.MustCompile(`\b(docs/[\w-]+\.md)(?:#([\w-]+)|, ([A-Z][\w, ]*))?`)
	for file, text := range readRepository(t, ".go", ".yml", ".lua", ".json") {
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			page, ok := pages[m[1]]
			switch {
			case !ok:
				t.Errorf("%s names %s, which does not exist", file, m[1])
			case m[2] != "" && !headingAnchors(page)[m[2]]:
				t.Errorf("%s names %s#%s, which is no heading there", file, m[1], m[2])
			case m[3] != "" && !beginsWithHeading(m[3], page):
				t.Errorf("%s names %s, %s: there is no such heading", file, m[1], m[3])
			}
		}
	}
}

// beginsWithHeading reports whether text begins with a heading of page.
func beginsWithHeading(text, page string) bool {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		if strings.HasPrefix(text, heading[1]) {
			return true
		}
	}
	return false
}

// headingAnchors returns the anchors of the headings of a page.
func headingAnchors(text string) map[string]bool {
	names := make(map[string]bool)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names[strings.ReplaceAll(name, " ", "-")] = true
	}
	return names
}

// Each figure in the README's table must appear on a page that its row links to.
func TestReadmeFiguresMatchLinkedPages(t *testing.T) {
	t.Parallel()
	pages := readRepository(t, ".md")
	_, table, ok := strings.Cut(pages["README.md"], "\n## Beside other locks\n\n")
	if !ok {
		t.Fatal("README.md has no section \"Beside other locks\"")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	link := regexp.MustCompile(`\]\((docs/[\w-]+\.md)[^)]*\)`)
	figure := regexp.MustCompile(`\d[\d,.]*\d`) // two digits or more: every page contains single digits
	compared := 0
	for _, row := range strings.Split(table, "\n")[2:] {
		linked := make(map[string]bool) // figures of the pages that the row links to
		for _, m := range link.FindAllStringSubmatch(row, -1) {
			for _, f := range figure.FindAllString(pages[m[1]], -1) {
				linked[f] = true
			}
		}
		_, cells, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, f := range figure.FindAllString(link.ReplaceAllString(cells, "]"), -1) {
			compared++
			if !linked[f] {
				t.Errorf("README.md has the figure %s, which is on no page that its row links to:\n%s", f, row)
			}
		}
	}
	if compared < 15 {
		t.Errorf("compared only %d figures", compared)
	}
}

// testNames returns the names of all tests and fuzz targets.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	for _, text := range readRepository(t, "_test.go", "locktest.go") {
		for _, test := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(text, -1) {
			names[test[1]] = true
		}
	}
	return names
}

// Package testing runs nothing, and reports no error, if a pattern matches no test.
func TestTestsChosenByScriptsExist(t *testing.T) {
	t.Parallel()
	names := slices.Collect(maps.Keys(testNames(t)))
	chosen := 0
	for script, text := range readRepository(t, "Makefile", "tools/nightly", "tools/loaded") {
		for _, pattern := range regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(text, -1) {
			chosen++
			if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, pattern) }) {
				t.Errorf("%s chooses %s, which matches no test", script, pattern)
			}
		}
	}
	if chosen < 5 {
		t.Errorf("found only %d test names", chosen)
	}
}

func TestTestsNamedInPagesExist(t *testing.T) {
	t.Parallel()
	exists := testNames(t)
	for page, text := range readRepository(t, ".md") {
		for _, test := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)[`/]").FindAllStringSubmatch(text, -1) {
			if !exists[test[1]] && test[1] != "TestRenew2" { // CONTRIBUTING's example of a bad name
				t.Errorf("%s names %s, which does not exist", page, test[1])
			}
		}
	}
}

func TestFilesNamedInPagesExist(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile("`((?:[\\w*-]+/)*[\\w*-]+\\.(?:go|lua|md|c)|(?:internal|verify|cmd|docs|driver|fence|redis|tools)/[\\w/*-]+)`")
	for page, text := range readRepository(t, ".md") {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			if !pathExists(t, m[1]) {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
}

// pathExists reports whether a file or folder has this path, relative to the root of the repository or to any
// of its folders.
func pathExists(t *testing.T, path string) bool {
	t.Helper()
	found, err := filepath.Glob(path)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(".", func(p string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(p, "/"+path) {
			found = append(found, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return len(found) > 0
}
