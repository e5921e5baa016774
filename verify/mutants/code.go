package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// code is the source of the repository: its declarations and scripts, and the folders of its tests.
type code struct {
	root  string
	parts []*part
	tests map[string][]string // folders by the name of a test
}

// part is a declaration of a Go file, or a whole script.
type part struct {
	file  string // path from the root
	name  string // of a method, without its type
	typ   string // type of a method
	text  string // text of the file
	begin int    // start of the part in text
	words []word
}

// word is a name, a number or a sign. White space and comments are no words.
type word struct {
	text       string
	begin, end int // in the text of the file
}

var (
	wordOf    = regexp.MustCompile(`\w+|[^\s\w]`)
	commentOf = map[string]*regexp.Regexp{
		".lua": regexp.MustCompile(`--.*`),
		".sql": regexp.MustCompile(`--.*`),
	}
	testOf = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// splitWords returns the words of text, which begins at an offset of its file.
func splitWords(text string, offset int) []word {
	var out []word
	for _, at := range wordOf.FindAllStringIndex(text, -1) {
		out = append(out, word{text: text[at[0]:at[1]], begin: offset + at[0], end: offset + at[1]})
	}
	return out
}

// blankOut replaces text[from:to] by spaces.
func blankOut(text []byte, from, to int) {
	copy(text[from:to], bytes.Repeat([]byte{' '}, to-from))
}

// readCode reads the repository.
func readCode(root string) (*code, error) {
	c := &code{root: root, tests: make(map[string][]string)}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		return c.readFile(filepath.ToSlash(rel))
	})
	return c, err
}

func (c *code) readFile(file string) error {
	ext := path.Ext(file)
	if ext != ".go" && commentOf[ext] == nil {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(c.root, file))
	if err != nil {
		return err
	}
	switch {
	case strings.HasSuffix(file, "_test.go"):
		for _, m := range testOf.FindAllSubmatch(text, -1) {
			if folder := path.Dir(file); !slices.Contains(c.tests[string(m[1])], folder) {
				c.tests[string(m[1])] = append(c.tests[string(m[1])], folder)
			}
		}
		return nil
	case ext == ".go":
		return c.readGo(file, text)
	}
	bare := slices.Clone(text)
	for _, at := range commentOf[ext].FindAllIndex(text, -1) {
		blankOut(bare, at[0], at[1])
	}
	c.parts = append(c.parts, &part{file: file, name: path.Base(file), text: string(text), words: splitWords(string(bare), 0)})
	return nil
}

func (c *code) readGo(file string, text []byte) error {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	bare := slices.Clone(text)
	for _, group := range tree.Comments {
		blankOut(bare, set.Position(group.Pos()).Offset, set.Position(group.End()).Offset)
	}
	add := func(node ast.Node, name, typ string) {
		begin, end := set.Position(node.Pos()).Offset, set.Position(node.End()).Offset
		c.parts = append(c.parts, &part{file: file, name: name, typ: typ, text: string(text), begin: begin, words: splitWords(string(bare[begin:end]), begin)})
	}
	for _, decl := range tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			add(d, d.Name.Name, receiverName(d))
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					add(s, s.Names[0].Name, "")
				case *ast.TypeSpec:
					add(s, s.Name.Name, "")
				}
			}
		}
	}
	return nil
}

// receiverName returns the type of the receiver of d.
func receiverName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

func (p *part) fullName() string {
	if p.typ == "" {
		return p.name
	}
	return p.typ + "." + p.name
}

// positionOf returns the file and the line of an offset.
func (p *part) positionOf(offset int) string {
	return fmt.Sprintf("%s:%d", p.file, 1+strings.Count(p.text[:offset], "\n"))
}

// lineAt returns the line at an offset, or the beginning of a long one.
func (p *part) lineAt(offset int) string {
	before := strings.LastIndexByte(p.text[:offset], '\n') + 1
	line, _, _ := strings.Cut(p.text[before:], "\n")
	line = strings.TrimSpace(line)
	return line[:min(len(line), 120)]
}

// place is a position in a part where words match, with the identifiers for its holes.
type place struct {
	at    int
	holes map[string]string
}

// isHole reports whether a word of a mutant is a placeholder, _1 to _9, which matches any one identifier.
// Placeholders replace local names, so that a mutant survives their renaming.
var isHole = regexp.MustCompile(`^_[0-9]$`).MatchString

// findWords returns the places in p where the words match.
func (p *part) findWords(words []word) (found []place) {
	for i := 0; i+len(words) <= len(p.words); i++ {
		if holes, ok := matchWords(words, p.words[i:i+len(words)]); ok {
			found = append(found, place{i, holes})
		}
	}
	return found
}

// matchWords compares words with a text. The same placeholder matches the same identifier everywhere.
func matchWords(words, text []word) (holes map[string]string, ok bool) {
	holes = make(map[string]string)
	for i, w := range words {
		want := w.text
		if isHole(want) {
			if holes[want] == "" && token.IsIdentifier(text[i].text) {
				holes[want] = text[i].text
			}
			want = holes[want]
		}
		if text[i].text != want {
			return nil, false
		}
	}
	return holes, true
}

// fillHoles replaces the placeholders in a text by their identifiers.
func fillHoles(text string, holes map[string]string) string {
	return wordOf.ReplaceAllStringFunc(text, func(w string) string { return cmp.Or(holes[w], w) })
}

func (c change) isIn(p *part) bool {
	folder := path.Dir(p.file)
	return folder == c.folder || c.below && (c.folder == "." || strings.HasPrefix(folder, c.folder+"/"))
}

func (c change) namesPart(p *part) bool {
	return c.isIn(p) && (c.name == p.name || c.name == p.fullName())
}

func (c change) placeName() string {
	if c.below {
		return c.folder + "/...: " + c.name
	}
	return c.folder + ": " + c.name
}

// edit replaces a text in a file.
type edit struct {
	file       string
	text       string // text of the file
	begin, end int
	to         string
}

// locateChange finds the only place of ch. Its error names the nearest places.
func (c *code) locateChange(ch change) (edit, error) {
	words := splitWords(ch.from, 0)
	var found []edit
	var places []string
	named := 0
	for _, p := range c.parts {
		if !ch.namesPart(p) {
			continue
		}
		named++
		for _, f := range p.findWords(words) {
			begin, end := p.words[f.at].begin, p.words[f.at+len(words)-1].end
			found = append(found, edit{file: p.file, text: p.text, begin: begin, end: end, to: fillHoles(strings.TrimSuffix(ch.to, "\n"), f.holes)})
			places = append(places, p.positionOf(begin))
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return edit{}, fmt.Errorf("%s has the text %d times: %s", ch.placeName(), len(found), strings.Join(places, ", "))
	case named > 0:
		return edit{}, fmt.Errorf("%s has no such text; the nearest:%s", ch.placeName(), c.nearestPlaces(ch, words))
	}
	return edit{}, fmt.Errorf("there is no %s; the nearest text:%s", ch.placeName(), c.nearestPlaces(ch, words))
}

// nearestPlaces names the places that share the most words with a text, those with the name or folder of ch
// first.
func (c *code) nearestPlaces(ch change, words []word) string {
	type candidate struct {
		score float64
		line  string
	}
	var all []candidate
	for _, p := range c.parts {
		share, at := p.mostSimilar(words)
		if share < 0.5 {
			continue
		}
		pl := candidate{score: share}
		if p.name == ch.name || p.fullName() == ch.name {
			pl.score += 0.3
		}
		if ch.isIn(p) {
			pl.score += 0.2
		}
		pl.line = fmt.Sprintf("\n\t\t%s (%s): %s", p.positionOf(p.words[at].begin), p.fullName(), p.lineAt(p.words[at].begin))
		all = append(all, pl)
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(b.score, a.score) })
	var out strings.Builder
	for _, pl := range all[:min(3, len(all))] {
		out.WriteString(pl.line)
	}
	if len(all) == 0 {
		return " none"
	}
	return out.String()
}

// mostSimilar returns the position in p of the most similar sequence of words, and the share of common words.
func (p *part) mostSimilar(words []word) (share float64, at int) {
	missing := make(map[string]int) // by word: occurrences in words that are missing
	for _, w := range words {
		missing[w.text]++
	}
	common, best := 0, 0
	for i, w := range p.words {
		if n, ok := missing[w.text]; ok {
			if n > 0 {
				common++
			}
			missing[w.text]--
		}
		if i >= len(words) {
			old := p.words[i-len(words)].text
			if n, ok := missing[old]; ok {
				if n >= 0 {
					common--
				}
				missing[old]++
			}
		}
		if common > best {
			best, at = common, max(i-len(words)+1, 0)
		}
	}
	return float64(best) / float64(len(words)), at
}

// files returns the files that m changes, without and with the bug.
func (c *code) files(m mutant) (was, bad map[string]string, err error) {
	edits := make(map[string][]edit)
	was, bad = make(map[string]string), make(map[string]string)
	var errs []string
	for _, ch := range m.changes {
		e, err := c.locateChange(ch)
		if err != nil {
			errs = append(errs, fmt.Sprintf("%s:%d: %s: %v\n\t- %s", m.file, ch.line, m.name, err, strings.Join(strings.Fields(ch.from), " ")))
			continue
		}
		edits[e.file] = append(edits[e.file], e)
		was[e.file] = e.text
	}
	if len(errs) > 0 {
		return nil, nil, fmt.Errorf("%s", strings.Join(errs, "\n"))
	}
	for file, list := range edits {
		slices.SortFunc(list, func(a, b edit) int { return cmp.Compare(b.begin, a.begin) }) // the last one first
		text := was[file]
		for i, e := range list {
			if i > 0 && e.end > list[i-1].begin {
				return nil, nil, fmt.Errorf("%s:%d: %s: two changes overlap", m.file, m.line, m.name)
			}
			text = text[:e.begin] + e.to + text[e.end:]
		}
		if path.Ext(file) == ".go" {
			if _, err := parser.ParseFile(token.NewFileSet(), file, text, 0); err != nil {
				return nil, nil, fmt.Errorf("%s:%d: %s is no Go with the bug: %w", m.file, m.line, m.name, err)
			}
		}
		bad[file] = text
	}
	return was, bad, nil
}

// home returns the folder of the package that has the tests of s.
func (c *code) home(s suite) (string, error) {
	folder := s.folder
	for _, test := range s.tests {
		found := c.tests[topTest(test)]
		switch {
		case s.folder != "" && !slices.Contains(found, s.folder):
			return "", fmt.Errorf("%s has no test %s", s.folder, topTest(test))
		case s.folder != "":
		case len(found) == 0:
			return "", fmt.Errorf("there is no test %s", topTest(test))
		case len(found) > 1:
			return "", fmt.Errorf("%s is a test of several packages: %s", topTest(test), strings.Join(found, ", "))
		case folder != "" && found[0] != folder:
			return "", fmt.Errorf("%s is a test of %s, the one before it of %s", topTest(test), found[0], folder)
		default:
			folder = found[0]
		}
	}
	return folder, nil
}
