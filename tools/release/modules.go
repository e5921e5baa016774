package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

const project = "github.com/holdfast-go/holdfast"

// privateFolders are the folders of modules that nobody imports or installs: they get no tag.
var privateFolders = []string{"tools", "verify", "fence/sqlfence/sqltest"}

// unit is one module of the workspace.
type unit struct {
	dir  string // from the root of the repository, with slashes; "." for the root
	path string
	file *modfile.File
}

func (m *unit) isPrivate() bool { return slices.Contains(privateFolders, m.dir) }

// requiredSiblings returns the modules of the project that m requires.
func (m *unit) requiredSiblings() (paths []string) {
	for _, r := range m.file.Require {
		if isOurs(r.Mod.Path) {
			paths = append(paths, r.Mod.Path)
		}
	}
	return paths
}

// tagFor returns the git tag of a version of m.
func (m *unit) tagFor(version string) string { return path.Join(m.dir, version) }

// isOurs reports whether the module at path belongs to the project.
func isOurs(path string) bool { return path == project || strings.HasPrefix(path, project+"/") }

// readWorkspace reads go.work and its modules, in an order in which each module follows the modules that it
// requires.
func readWorkspace(root string) (*modfile.WorkFile, []*unit, error) {
	text, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		return nil, nil, err
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, nil, err
	}
	var all []*unit
	for _, use := range work.Use {
		dir := path.Clean(use.Path)
		name := filepath.Join(root, dir, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, &unit{dir: dir, path: file.Module.Mod.Path, file: file})
	}
	all, err = orderModules(all)
	return work, all, err
}

// orderModules moves each module behind the modules that it requires, and otherwise keeps the order.
func orderModules(all []*unit) (sorted []*unit, err error) {
	placed := make(map[string]bool)
	for len(sorted) < len(all) {
		before := len(sorted)
		for _, m := range all {
			ready := !slices.ContainsFunc(m.requiredSiblings(), func(p string) bool { return !placed[p] })
			if ready && !placed[m.path] {
				sorted, placed[m.path] = append(sorted, m), true
			}
		}
		if len(sorted) == before {
			return nil, errors.New("modules of go.work require each other in a circle, or one that go.work does not name")
		}
	}
	return sorted, nil
}

// publicModules returns the modules that get a tag.
func publicModules(all []*unit) []*unit {
	return slices.DeleteFunc(slices.Clone(all), (*unit).isPrivate)
}

// moduleFaults returns the reasons why users cannot install a module, or why developers cannot work on it
// before its siblings are published.
func moduleFaults(work *modfile.WorkFile, all []*unit) (found []string) {
	versions := make(map[string]bool)
	for _, m := range all {
		for _, r := range m.file.Replace {
			if !m.isPrivate() || isOurs(r.Old.Path) {
				found = append(found, fmt.Sprintf("%s/go.mod replaces %s: go install refuses a module with replace lines; go.work has a place for them", m.dir, r.Old.Path))
			}
		}
		for _, r := range m.file.Require {
			if !isOurs(r.Mod.Path) {
				continue
			}
			versions[r.Mod.Version] = true
			known := slices.ContainsFunc(work.Replace, func(w *modfile.Replace) bool { return w.Old == r.Mod && strings.HasPrefix(w.New.Path, "./") })
			if !known {
				found = append(found, fmt.Sprintf("%s/go.mod requires %v: go.work has no replace line for it, so the go command looks for it in the network", m.dir, r.Mod))
			}
		}
	}
	if len(versions) > 1 {
		found = append(found, fmt.Sprintf("the modules require each other at %d versions; all have the same one", len(versions)))
	}
	return found
}
