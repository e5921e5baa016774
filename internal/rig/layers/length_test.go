package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// longFunctions lists the functions that may be longer: two tables, and the descriptions of the events in a trace.
var longFunctions = map[string]bool{
	"verify/differential/vectors.go examples": true,
	"verify/spec/rows.go specRows":            true,
	"verify/model/trace.go describeMove":      true,
}

func TestFunctionsFitOnScreen(t *testing.T) {
	t.Parallel()
	const most = 60
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			seen++
			lines := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1
			if lines > most && !longFunctions[strings.TrimPrefix(path, root+"/")+" "+f.Name.Name] {
				t.Errorf("%s: %s has %d lines, and %d are the most: give a part of it a name", files.Position(f.Pos()), f.Name.Name, lines, most)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 1000 {
		t.Errorf("only %d functions were found", seen)
	}
}
