// Package layers holds the imports of all packages against the picture of the layers in
// docs/design.md. The picture is the rule: a package imports only what an arrow of its
// layer reaches, each arrow is an import, and every arrow points down.
package layers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	root    = "../.."
	drawing = root + "/docs/design.md"
	project = "github.com/holdfast-go/holdfast"

	// tests is the layer of what only tests: it imports what it likes, and nothing imports it.
	tests = "tests"
)

// layer is some packages that may import the same.
type layer struct {
	name  string
	paths []string // of folders below the project; what is below these belongs to the layer too
}

// picture is what is drawn.
type picture struct {
	layers  []layer // from the top
	imports map[[2]string]bool
	calls   map[[2]string]bool // through an interface, so without an import
}

// parse reads the diagram in a page: lines `name["path, path: what it is"]`, `from --> to & to` and `from -.->|interface| to`.
func parse(page string) (p picture, err error) {
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
			err = errors.Join(err, p.draw(p.imports, from, strings.Split(to, " & ")))
		} else if from, to, ok := strings.Cut(line, " -.->|"); ok {
			_, to, _ = strings.Cut(to, "| ")
			err = errors.Join(err, p.draw(p.calls, from, []string{to}))
		}
	}
	return p, err
}

func (p *picture) draw(arrows map[[2]string]bool, from string, to []string) error {
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

// of is the layer with the longest path that leads to pkg; "" if there is none.
func (p *picture) of(pkg string) (name string) {
	longest := -1
	for _, l := range p.layers {
		for _, path := range l.paths {
			full := project + "/" + path
			if path == "holdfast" { // the package itself, without those below it
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

// pkg is one package, as go list has it.
type pkg struct {
	ImportPath                         string
	Module                             struct{ Path string }
	Imports, TestImports, XTestImports []string
}

// faults compares the picture with the packages.
func faults(p picture, all []pkg) (found []string) {
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	seen := make(map[[2]string]bool)
	for _, k := range all {
		from := p.of(k.ImportPath)
		if from == "" {
			say("package %s belongs to no layer: name its folder in one", k.ImportPath)
			continue
		}
		for _, path := range k.Imports {
			to := p.of(path)
			arrow := [2]string{from, to}
			switch {
			case to == "" || to == from || from == tests:
			case p.imports[arrow]:
				seen[arrow] = true
			default:
				say("package %s imports %s: no arrow leads from layer %s to layer %s", k.ImportPath, path, from, to)
			}
		}
		if k.Module.Path != project {
			continue
		}
		for _, path := range slices.Concat(k.Imports, k.TestImports, k.XTestImports) {
			if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") && !strings.HasPrefix(path, project) {
				say("package %s of the root module imports %s: the root module requires nothing", k.ImportPath, path)
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

func drawn(t *testing.T) picture {
	t.Helper()
	page, err := os.ReadFile(drawing)
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse(string(page))
	if err != nil {
		t.Fatalf("%s: %v", drawing, err)
	}
	return p
}

// list asks the go command, in the folder of the root module.
func list(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(os.Environ(), env...), t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return string(out)
}

func packages(t *testing.T) (all []pkg) {
	t.Helper()
	for _, system := range []string{"linux", "windows"} {
		text := list(t, []string{"GOOS=" + system}, "-e", "-json=ImportPath,Module,Imports,TestImports,XTestImports", project+"/...")
		for in := json.NewDecoder(strings.NewReader(text)); ; {
			var k pkg
			if err := in.Decode(&k); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			all = append(all, k)
		}
	}
	return all
}

func TestImportsFollowThePicture(t *testing.T) {
	t.Parallel()
	for _, fault := range faults(drawn(t), packages(t)) {
		t.Errorf("%s\n(the picture is in docs/design.md)", fault)
	}
}

func TestAnImportAgainstThePictureIsFound(t *testing.T) {
	t.Parallel()
	p, all := drawn(t), packages(t)
	before := faults(p, all)
	more := func(k ...pkg) []string {
		return slices.DeleteFunc(faults(p, slices.Concat(all, k)), func(f string) bool { return slices.Contains(before, f) })
	}
	for _, c := range []struct{ from, to, want string }{
		{"driver", "", "no arrow leads from layer driver to layer client"},
		{"", "redlock", "no arrow leads from layer client to layer drivers"},
		{"", "internal/rig/redisproc", "no arrow leads from layer client to layer rig"},
		{"internal/quorum", "driver", "no arrow leads from layer quorum to layer driver"},
		{"internal/quorum/engine", "redlock", "no arrow leads from layer engine to layer drivers"},
		{"fence", "redlock", "no arrow leads from layer fence to layer drivers"},
		{"cmd/holdfast", "internal/rig/child", "no arrow leads from layer command to layer rig"},
		{"memory", "verify/sim", "no arrow leads from layer drivers to layer tests"},
		{"other", "", "belongs to no layer"},
	} {
		bad := pkg{ImportPath: strings.TrimSuffix(project+"/"+c.from, "/"), Imports: []string{strings.TrimSuffix(project+"/"+c.to, "/")}}
		if got := more(bad); len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s imports %s: found %q, want %q", c.from, c.to, got, c.want)
		}
	}
	third := pkg{ImportPath: project, XTestImports: []string{"golang.org/x/sync/errgroup"}}
	third.Module.Path = project
	if got := more(third); len(got) != 1 || !strings.Contains(got[0], "the root module requires nothing") {
		t.Errorf("a third-party import: found %q", got)
	}
	p.imports[[2]string{"client", "quorum"}] = true
	if got := more(); len(got) != 1 || !strings.Contains(got[0], "stands for no import") {
		t.Errorf("an arrow too many: found %q", got)
	}
}

func TestAnArrowThatPointsUpIsRefused(t *testing.T) {
	t.Parallel()
	const page = "```mermaid\nflowchart TD\n    a[\"x: above\"]\n    b[\"y: below\"]\n    b --> a\n```\n"
	if _, err := parse(page); err == nil || !strings.Contains(err.Error(), "from b to a does not point down") {
		t.Errorf("parse() = %v", err)
	}
}

func TestTheRootModuleRequiresNothing(t *testing.T) {
	t.Parallel()
	if got := list(t, []string{"GOWORK=off"}, "-m", "all"); got != project+"\n" {
		t.Errorf("go list -m all: %q, want the root module alone", got)
	}
}
