package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
)

// compiler type-checks changed packages against the compiled others.
type compiler struct {
	root     string
	set      *token.FileSet
	trees    map[string]*ast.File // unchanged files, by path
	exports  map[string]string    // export data of packages, by path
	sources  map[string][]string  // files of packages, by folder from the root
	names    map[string]string    // paths of packages, by folder
	compiled types.Importer
}

// checkCompiled names the mutants that do not compile, whose tests would not run and so prove nothing. changed
// has the files of each mutant with the bug. checkCompiled compiles the unchanged packages first.
func checkCompiled(ctx context.Context, root string, mutants []mutant, changed []map[string]string) error {
	folders := make(map[string]bool)
	for _, files := range changed {
		maps.Insert(folders, maps.All(goFolders(files)))
	}
	c, err := newCompiler(ctx, root, slices.Sorted(maps.Keys(folders)))
	if err != nil {
		return err
	}
	var errs []error
	for i, m := range mutants {
		for folder := range goFolders(changed[i]) {
			if err := c.checkPackage(folder, changed[i]); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d: %s does not compile: %w", m.file, m.line, m.name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// goFolders returns the folders of Go files.
func goFolders(files map[string]string) map[string]bool {
	folders := make(map[string]bool)
	for file := range files {
		if path.Ext(file) == ".go" {
			folders[path.Dir(file)] = true
		}
	}
	return folders
}

// newCompiler compiles the packages in folders and their imports by the go command.
func newCompiler(ctx context.Context, root string, folders []string) (*compiler, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	c := &compiler{
		root: root, set: token.NewFileSet(), trees: make(map[string]*ast.File),
		exports: make(map[string]string), sources: make(map[string][]string), names: make(map[string]string),
	}
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}
	if self, ok := debug.ReadBuildInfo(); ok && slices.Contains(self.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race") // as in CI, where compiled packages exist
	}
	for _, f := range folders {
		args = append(args, "./"+f)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, lastLines(stderr.String()))
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			c.compiled = importer.ForCompiler(c.set, "gc", func(name string) (io.ReadCloser, error) { return os.Open(c.exports[name]) })
			return c, c.parseAll(folders)
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		c.exports[p.ImportPath] = p.Export
		if folder, err := filepath.Rel(root, p.Dir); err == nil {
			folder = filepath.ToSlash(folder)
			c.sources[folder], c.names[folder] = p.GoFiles, p.ImportPath
		}
	}
}

// parseAll parses the packages in folders.
func (c *compiler) parseAll(folders []string) error {
	for _, folder := range folders {
		for _, name := range c.sources[folder] {
			file := path.Join(folder, name)
			tree, err := parser.ParseFile(c.set, filepath.Join(c.root, file), nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			c.trees[file] = tree
		}
	}
	return nil
}

// checkPackage type-checks the package in a folder. instead replaces the texts of some files, by their paths from
// the root.
func (c *compiler) checkPackage(folder string, instead map[string]string) error {
	var files []*ast.File
	for _, name := range c.sources[folder] {
		file := path.Join(folder, name)
		tree := c.trees[file]
		if text, ok := instead[file]; ok {
			var err error
			if tree, err = parser.ParseFile(c.set, file, text, parser.SkipObjectResolution); err != nil {
				return err
			}
		}
		files = append(files, tree)
	}
	var first error
	conf := types.Config{Importer: c.compiled, Error: func(err error) { first = cmp.Or(first, err) }}
	_, err := conf.Check(c.names[folder], c.set, files, nil)
	return cmp.Or(first, err)
}
