// Package messages collects every text that Holdfast writes for people in one table: errors, log lines,
// events, findings of the doctor, help, descriptions of metrics. A reviewer reads all of them in messages.txt,
// and a diff shows the changed ones. The package also checks the rules for messages that a program can check.
//
//	go test ./internal/rig/messages -update    # after a change of a text
package messages

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

const (
	root  = "../../.."
	table = "messages.txt"
	pages = "https://github.com/holdfast-go/holdfast/blob/main/" // base of each link to a page
)

var update = flag.Bool("update", false, "write the present messages into "+table)

// unseenFolders are the folders whose texts no user sees: tests and their helpers, tools, examples, and code that
// users copy.
var unseenFolders = []string{
	".git", "docs", "findings", "tools", "verify", "testdata", "node_modules", "internal/rig", "locktest",
	"driver/drivertest", "driver/template", "otel/example", "prometheus/example",
}

var (
	words = regexp.MustCompile(`\pL\S*\s+\S*\pL`) // at least two words

	// writers are the functions whose first text is a message, even if it is one word.
	writers = regexp.MustCompile(`^(errors\.New|fmt\.Errorf|exitcode\.Usagef|invalidError|unsupportedError|` +
		`.*([Ll]og|[Ll]ogger)\.(Debug|Info|Warn|Error)|.*\.Log)$`)

	// readers are the functions whose texts are compared with another program's, or sent to one.
	readers = regexp.MustCompile(`^((strings|bytes|slices)\.\w+|regexp\.\w+|has|.*\.(HandleFunc|Exec|Query|QueryRow|Row|(Exec|Query|QueryRow)Context))$`)

	statement = regexp.MustCompile(`^\s*(--.*\n\s*)?(SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|ALTER|DROP|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|` +
		`SET|SHOW|WITH|PRAGMA|LISTEN|NOTIFY|DO|CALL|USE|GRANT|LOCK|VALUES|FROM|WHERE|RETURNING|ON CONFLICT|ON DUPLICATE|AND|OR|UNION|LIMIT|` +
		`ORDER BY|FOR UPDATE|return redis|local) `)
)

// message is one text, its file, and the function or field that gets it.
type message struct{ file, by, text string }

func (m message) String() string { return m.by + "\t" + strconv.Quote(m.text) }

// readMessages returns the messages in a Go file, in order.
func readMessages(file string, source []byte) (all []message, err error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var path []ast.Node
	ast.Inspect(parsed, func(n ast.Node) bool {
		if n == nil {
			path = path[:len(path)-1]
			return true
		}
		path = append(path, n)
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		text, ok := joinText(e)
		if !ok {
			return true
		}
		by, first, shown := findWriter(path)
		if shown && !statement.MatchString(text) && (words.MatchString(text) || first && writers.MatchString(by)) {
			all = append(all, message{file, by, text})
		}
		path = path[:len(path)-1]
		return false
	})
	return all, nil
}

// joinText returns the text of a string expression, with {x} for each part x that is not constant.
func joinText(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.ParenExpr:
		return joinText(e.X)
	case *ast.BinaryExpr:
		left, fixedLeft := joinText(e.X)
		right, fixedRight := joinText(e.Y)
		if e.Op != token.ADD || !fixedLeft && !fixedRight {
			return "", false
		}
		if !fixedLeft {
			left = "{" + types.ExprString(e.X) + "}"
		}
		if !fixedRight {
			right = "{" + types.ExprString(e.Y) + "}"
		}
		return left + right, true
	}
	return "", false
}

// findWriter returns the name of the function or field that gets the text at the end of path: "=" for a
// variable, or "func" for a function that returns the text. first reports whether the text is the first
// argument, and shown whether people see it.
func findWriter(path []ast.Node) (by string, first, shown bool) {
	child := path[len(path)-1]
	for _, n := range slices.Backward(path[:len(path)-1]) {
		switch n := n.(type) {
		case *ast.CallExpr:
			if name := types.ExprString(n.Fun); !strings.HasPrefix(name, "[]") && !strings.HasPrefix(name, "func(") && n.Fun != child {
				isText := func(arg ast.Expr) bool { _, ok := joinText(arg); return ok }
				i := slices.IndexFunc(n.Args, isText)
				return name, i >= 0 && n.Args[i] == child, !readers.MatchString(name)
			}
		case *ast.KeyValueExpr:
			if name, ok := n.Key.(*ast.Ident); ok && n.Value == child {
				return name.Name + ":", false, true
			}
		case *ast.Field: // the tag of a struct
			return "", false, false
		case *ast.ValueSpec:
			return "=", false, true
		case *ast.FuncDecl:
			return "func", false, true
		}
		child = n
	}
	return "", false, false
}

func TestReadFindsEachKindOfText(t *testing.T) {
	t.Parallel()
	const source = `package p
type t struct { a int ` + "`json:\"a b\"`" + ` }
var Err = errors.New("held")
var query = "SELECT a FROM b"
func f() error {
	if strings.Contains(x, "as the server writes it") { log.Warn("gone", "node", n) }
	_ = t{Help: "how long " + "it took"}
	return fmt.Errorf("%w: " + name(3) + " is unknown; give another", Err)
}
func g() string { return "two words" }`
	got, err := readMessages("p.go", []byte(source))
	want := []message{
		{"p.go", "errors.New", "held"},
		{"p.go", "log.Warn", "gone"},
		{"p.go", "Help:", "how long it took"},
		{"p.go", "fmt.Errorf", "%w: {name(3)} is unknown; give another"},
		{"p.go", "func", "two words"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("read %q, %v; want %q", got, err, want)
	}
}

// readAll returns the messages of all files whose texts users see, and the number of files.
func readAll(t *testing.T) (all []message, files int) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		name = filepath.ToSlash(name)
		switch {
		case d.IsDir() && (slices.Contains(unseenFolders, name) || slices.Contains(unseenFolders, d.Name())):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, readErr := os.ReadFile(path)
		found, parseErr := readMessages(name, source)
		all, files = append(all, found...), files+1
		return errors.Join(err, readErr, parseErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, files
}

func TestTableHasEveryMessage(t *testing.T) {
	t.Parallel()
	all, files := readAll(t)
	if len(all) < 500 || files < 100 {
		t.Fatalf("found %d messages in %d files", len(all), files)
	}
	var now bytes.Buffer
	for i, m := range all {
		if i == 0 || m.file != all[i-1].file {
			fmt.Fprintf(&now, "%s%s\n", cmp.Or(strings.Repeat("\n", min(i, 1)), ""), m.file)
		}
		fmt.Fprintf(&now, "\t%v\n", m)
	}
	if *update {
		if err := os.WriteFile(table, now.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	then, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	added, removed := compareLines(then, now.Bytes())
	for _, line := range removed {
		t.Errorf("%s lists these messages, which the code does not have:%s", table, line)
	}
	for _, line := range added {
		t.Errorf("the code has these messages, which %s does not list:%s", table, line)
	}
	if !bytes.Equal(then, now.Bytes()) {
		t.Errorf("read each new message: what happened, to what, what to do. Then: go test ./internal/rig/messages -update")
	}
}

// compareLines returns the lines that only the second text has, and the lines that only the first text has.
func compareLines(then, now []byte) (added, removed []string) {
	count := make(map[string]int)
	for line := range strings.Lines(string(then)) {
		count[line]--
	}
	for line := range strings.Lines(string(now)) {
		if count[line]++; count[line] > 0 {
			added = append(added, strings.TrimRight(line, "\n"))
		}
	}
	for line := range strings.Lines(string(then)) {
		if count[line] < 0 {
			count[line]++
			removed = append(removed, strings.TrimRight(line, "\n"))
		}
	}
	return added, removed
}

// names are the names of programs and options with which an error may begin, although they have capitals.
var names = regexp.MustCompile(`^(ZooKeeper|Redis|Valkey|PostgreSQL|MySQL|MariaDB|SQLite|Sentinel|Galera|PgBouncer|Holdfast|` +
	`Options|Note|Wait|Margin|Fenced|Adoptable|Holder|[A-Z][a-z]+[A-Z]\w*)\b`)

var (
	dialect = regexp.MustCompile(`\b([Ss]ays|anew|mends?|[Hh]ears|amiss)\b|\bstands( [^b]|[^ \w]|$)`)
	isNo    = regexp.MustCompile(`(\S+) (?:is|are) no (\w+)`)
	unit    = regexp.MustCompile(`%d ?(ns|µs|ms|s|h|sec|seconds?|minutes?|hours?)\b`)
	page    = regexp.MustCompile(`docs/[\w-]+\.md(#[\w-]+)?`)
	link    = regexp.MustCompile(`https?://[^\s)"']+`)
)

// checkMessage returns the rules that a message breaks.
func checkMessage(m message) (broken []string) {
	text := strings.TrimSpace(m.text)
	first, _ := utf8.DecodeRuneInString(text)
	isError := writers.MatchString(m.by)
	switch {
	case isError && unicode.IsUpper(first) && !names.MatchString(text) && len(text) > 1 && !isAbbreviation(text):
		broken = append(broken, "an error and a line of the log begin with a small letter")
	case isError && strings.HasSuffix(text, ".") || m.by == "Short:" && strings.HasSuffix(text, "."):
		broken = append(broken, "it ends without a dot")
	case isError && strings.Contains(text, "\n"):
		broken = append(broken, "an error and a line of the log are one line")
	}
	if word := dialect.FindString(text); word != "" {
		broken = append(broken, fmt.Sprintf("%q is no word for a message: state the thing itself", word))
	}
	for _, m := range isNo.FindAllStringSubmatch(text, -1) {
		if m[1] != "there" && m[1] != "There" && m[2] != "longer" && m[2] != "token" { // the scripts have "its number is no token"
			broken = append(broken, fmt.Sprintf("%q: write is not a, or there is no", m[0]))
		}
	}
	if unit.MatchString(text) {
		broken = append(broken, "print a time.Duration with its unit (%v), not a number")
	}
	for _, url := range link.FindAllString(text, -1) {
		if path, ok := strings.CutPrefix(url, pages); ok && !isPage(path) {
			broken = append(broken, "there is no page "+path)
		}
	}
	for _, path := range page.FindAllString(text, -1) {
		if !isPage(path) {
			broken = append(broken, "there is no page "+path)
		} else if !strings.Contains(text, pages+path) {
			broken = append(broken, "a reader without the repository needs the link: "+pages+path)
		}
	}
	return broken
}

// isAbbreviation reports whether the text begins with a word in capitals, such as TLS or MISCONF.
func isAbbreviation(text string) bool {
	word := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) })
	return len(word) > 0 && len(word[0]) > 1 && strings.ToUpper(word[0]) == word[0]
}

// isPage reports whether the repository has the page, and the page has the section after the #.
func isPage(path string) bool {
	path, section, _ := strings.Cut(strings.TrimRight(path, ".,;"), "#")
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil || section == "" {
		return err == nil
	}
	for line := range strings.Lines(string(text)) {
		if heading := strings.TrimLeft(line, "#"); len(heading) < len(line) && headingAnchor(heading) == section {
			return true
		}
	}
	return false
}

// headingAnchor returns the anchor that GitHub gives a heading.
func headingAnchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
}

func TestCheckDetectsEachBrokenRule(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"the lock is held; try again":           0,
		"Wait %v: may not be negative":          0,
		"TLS is needed":                         0,
		"The lock is held":                      1,
		"the lock is held.":                     1,
		"the lock\nis held":                     1,
		"the server says no":                    1,
		"%s is no file":                         1,
		"there is no file %s":                   0,
		"the file is no longer there":           0,
		"no answer in %d ms":                    1,
		"no answer in %v":                       0,
		"see docs/operations.md":                1,
		"see " + pages + "docs/operations.md":   0,
		"see " + pages + "docs/" + "nowhere.md": 2,
		"see " + pages + "docs/" + "operations.md#there-is-no-such-section-in-there": 2,
	} {
		if broken := checkMessage(message{"p.go", "errors.New", text}); len(broken) != want {
			t.Errorf("%q breaks %q; want %d rules", text, broken, want)
		}
	}
}

func TestMessagesFollowRules(t *testing.T) {
	t.Parallel()
	all, _ := readAll(t)
	for _, m := range all {
		for _, rule := range checkMessage(m) {
			t.Errorf("%s: %v: %s", m.file, m, rule)
		}
	}
}
