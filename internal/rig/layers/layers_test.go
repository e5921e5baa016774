// Package layers compares the imports of all packages with the picture of the layers in docs/design.md. The
// picture is the rule: a package imports only packages that an arrow of its layer reaches, each arrow is an
// import, and every arrow points down.
package layers

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root    = "../../.."
	drawing = root + "/docs/design.md"
	project = "github.com/holdfast-go/holdfast"

	// tests is the layer of code for tests only: it may import anything, and nothing may import it.
	tests = "tests"
)

// layer is a group of packages that may import the same.
type layer struct {
	name  string
	paths []string // folders below the root of the project, with their subfolders
}

// picture holds the layers and arrows of the page.
type picture struct {
	layers  []layer // from the top
	imports map[[2]string]bool
	calls   map[[2]string]bool // through an interface, without an import
}

// parsePicture parses the diagram in a page: lines `name["path, path: description"]`, `from --> to & to` and
// `from -.->|interface| to`.
func parsePicture(page string) (p picture, err error) {
	p.imports, p.calls = make(map[[2]string]bool), make(map[[2]string]bool)
	_, text, ok := strings.Cut(page, "```mermaid\n")
	text, _, closed := strings.Cut(text, "```")
	if !ok || !closed {
		return p, errors.New("the page has no block of mermaid")
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, label, ok := strings.Cut(line, `["`); ok {
			paths, _, _ := strings.Cut(label, ":")
			p.layers = append(p.layers, layer{name, strings.Split(paths, ", ")})
		} else if from, to, ok := strings.Cut(line, " --> "); ok {
			err = errors.Join(err, p.drawArrows(p.imports, from, strings.Split(to, " & ")))
		} else if from, to, ok := strings.Cut(line, " -.->|"); ok {
			_, to, _ = strings.Cut(to, "| ")
			err = errors.Join(err, p.drawArrows(p.calls, from, strings.Split(to, " & ")))
		}
	}
	return p, err
}

func (p *picture) drawArrows(arrows map[[2]string]bool, from string, to []string) error {
	for _, to := range to {
		if i, j := p.rank(from), p.rank(to); i < 0 || j <= i {
			return fmt.Errorf("the arrow from %s to %s does not point down", from, to)
		}
		arrows[[2]string{from, to}] = true
	}
	return nil
}

func (p *picture) rank(name string) int {
	return slices.IndexFunc(p.layers, func(l layer) bool { return l.name == name })
}

// layerOf returns the layer with the longest path that contains pkg; "" if there is none.
func (p *picture) layerOf(pkg string) (name string) {
	longest := -1
	for _, l := range p.layers {
		for _, folder := range l.paths {
			full := project + "/" + folder
			if folder == "holdfast" { // the package itself, without its subfolders
				full = project
				if pkg != full {
					continue
				}
			}
			if (pkg == full || strings.HasPrefix(pkg, full+"/")) && len(full) > longest {
				name, longest = l.name, len(full)
			}
		}
	}
	return name
}

// pkg is one package, for all systems together.
type pkg struct {
	path             string
	imports, inTests []string
	rooted           bool // it belongs to the root module
}

// findFaults compares the picture with the packages.
func findFaults(p picture, all []pkg) (found []string) {
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	seen := make(map[[2]string]bool)
	for _, k := range all {
		from := p.layerOf(k.path)
		if from == "" {
			say("package %s belongs to no layer: name its folder in one", k.path)
			continue
		}
		for _, imported := range k.imports {
			to := p.layerOf(imported)
			arrow := [2]string{from, to}
			switch {
			case to == "" || to == from || from == tests:
			case p.imports[arrow]:
				seen[arrow] = true
			default:
				say("package %s imports %s: no arrow leads from layer %s to layer %s", k.path, imported, from, to)
			}
		}
		if !k.rooted {
			continue
		}
		for _, imported := range slices.Concat(k.imports, k.inTests) {
			if first, _, _ := strings.Cut(imported, "/"); strings.Contains(first, ".") && !strings.HasPrefix(imported, project) {
				say("package %s of the root module imports %s: the root module requires nothing", k.path, imported)
			}
		}
	}
	for arrow := range p.imports {
		if !seen[arrow] {
			say("the arrow from %s to %s stands for no import: take it away", arrow[0], arrow[1])
		}
	}
	for arrow := range p.calls {
		if seen[arrow] {
			say("the arrow from %s to %s is dotted, but there is such an import", arrow[0], arrow[1])
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func readPicture(t *testing.T) picture {
	t.Helper()
	page, err := os.ReadFile(drawing)
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePicture(string(page))
	if err != nil {
		t.Fatalf("%s: %v", drawing, err)
	}
	return p
}

// readPackages reads the imports of all modules. It does not run the go command, so that the test cache knows
// the files that it reads.
func readPackages(t *testing.T) (all []pkg) {
	t.Helper()
	err := filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); dir != root && (strings.HasPrefix(name, ".") || name == "testdata") {
			return fs.SkipDir
		}
		k, err := readImports(dir)
		if err == nil && len(k.imports)+len(k.inTests) > 0 {
			all = append(all, k)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// readImports reads the imports of the package in dir.
func readImports(dir string) (k pkg, err error) {
	rel, err := filepath.Rel(root, dir)
	if err != nil {
		return k, err
	}
	k.path, k.rooted = path.Join(project, filepath.ToSlash(rel)), true
	for d := dir; d != root && k.rooted; d = filepath.Dir(d) {
		_, err := os.Stat(filepath.Join(d, "go.mod"))
		k.rooted = err != nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return k, err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return k, err
			}
			if strings.HasSuffix(name, "_test.go") {
				k.inTests = append(k.inTests, imported)
			} else {
				k.imports = append(k.imports, imported)
			}
		}
	}
	return k, err
}

func TestImportsFollowArrows(t *testing.T) {
	t.Parallel()
	for _, fault := range findFaults(readPicture(t), readPackages(t)) {
		t.Errorf("%s\n(the picture is in docs/design.md)", fault)
	}
}

func TestImportAgainstArrowsIsFound(t *testing.T) {
	t.Parallel()
	p, all := readPicture(t), readPackages(t)
	before := findFaults(p, all)
	more := func(k ...pkg) []string {
		return slices.DeleteFunc(findFaults(p, slices.Concat(all, k)), func(f string) bool { return slices.Contains(before, f) })
	}
	for _, c := range []struct{ from, to, want string }{
		{"driver", "", "no arrow leads from layer driver to layer client"},
		{"", "redis", "no arrow leads from layer client to layer drivers"},
		{"", "internal/rig/redisproc", "no arrow leads from layer client to layer rig"},
		{"internal/quorum", "driver", "no arrow leads from layer quorum to layer driver"},
		{"internal/quorum/engine", "redis", "no arrow leads from layer engine to layer drivers"},
		{"fence", "redis", "no arrow leads from layer fence to layer drivers"},
		{"cmd/holdfast", "internal/rig/child", "no arrow leads from layer command to layer rig"},
		{"memory", "verify/sim", "no arrow leads from layer drivers to layer tests"},
		{"other", "", "belongs to no layer"},
	} {
		bad := pkg{path: path.Join(project, c.from), imports: []string{path.Join(project, c.to)}}
		if got := more(bad); len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s imports %s: found %q, want %q", c.from, c.to, got, c.want)
		}
	}
	third := pkg{path: project, rooted: true, inTests: []string{"golang.org/x/sync/errgroup"}}
	if got := more(third); len(got) != 1 || !strings.Contains(got[0], "the root module requires nothing") {
		t.Errorf("a third-party import: found %q", got)
	}
	p.imports[[2]string{"client", "quorum"}] = true
	if got := more(); len(got) != 1 || !strings.Contains(got[0], "stands for no import") {
		t.Errorf("a superfluous arrow: found %q", got)
	}
}

func TestUpwardArrowIsRejected(t *testing.T) {
	t.Parallel()
	const page = "```mermaid\nflowchart TD\n    a[\"x: above\"]\n    b[\"y: below\"]\n    b --> a\n```\n"
	if _, err := parsePicture(page); err == nil || !strings.Contains(err.Error(), "from b to a does not point down") {
		t.Errorf("parse() = %v", err)
	}
}

func TestRootModuleHasNoDependencies(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 0 && words[0] != "module" && words[0] != "go" {
			t.Errorf("go.mod = %q; want only the module and the Go version", line)
		}
	}
}

func TestOnlyRigSetsPace(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		text, err := os.ReadFile(name)
		if !strings.Contains(string(text), "pace.Set"+"Factor(") {
			return err
		}
		switch filepath.ToSlash(filepath.Dir(name)) {
		case root + "/internal/rig/tempo":
			found++
		case root + "/internal/pace": // its test
		default:
			t.Errorf("%s sets the factor of internal/pace: programs would use untested timeouts", name)
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%d files of internal/rig/tempo set the factor: %v", found, err)
	}
}
