// Package vet finds mistakes with leases in the source of a program.
//
// Each check prefers to miss a mistake over a false report. Tests, and packages that help them by importing
// package testing, are not checked: they often leave a lease unreleased on purpose. A comment
// //holdfastvet:ignore with a reason, on the line of a finding or the line before, silences it.
package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// Analyzers are all checks.
var Analyzers = []*analysis.Analyzer{Release, Context, Token}

const (
	project = "github.com/holdfast-go/holdfast"
	ignore  = "//holdfastvet:ignore"
)

// isNamed reports whether t is the type of that name in the package at path.
func isNamed(t types.Type, path, name string) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == path && named.Obj().Name() == name
}

// isLease reports whether t is *holdfast.Lease.
func isLease(t types.Type) bool {
	p, ok := types.Unalias(t).(*types.Pointer)
	return ok && isNamed(p.Elem(), project, "Lease")
}

// isLeases reports whether t is *holdfast.Leases.
func isLeases(t types.Type) bool {
	p, ok := types.Unalias(t).(*types.Pointer)
	return ok && isNamed(p.Elem(), project, "Leases")
}

// eachFunction calls f with each function of the package, except for tests.
func eachFunction(pass *analysis.Pass, in *inspector.Inspector, f func(node ast.Node, body *ast.BlockStmt)) {
	if helpsTests(pass) {
		return
	}
	in.Preorder([]ast.Node{(*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)}, func(node ast.Node) {
		if body := bodyOf(node); body != nil && !isTest(pass, node) {
			f(node, body)
		}
	})
}

func isTest(pass *analysis.Pass, node ast.Node) bool {
	return strings.HasSuffix(pass.Fset.Position(node.Pos()).Filename, "_test.go")
}

// helpsTests reports whether the package itself imports package testing.
func helpsTests(pass *analysis.Pass) bool {
	return slices.ContainsFunc(pass.Files, func(file *ast.File) bool {
		return !isTest(pass, file.Name) && slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` })
	})
}

func fileOf(pass *analysis.Pass, node ast.Node) *ast.File {
	i := slices.IndexFunc(pass.Files, func(f *ast.File) bool { return f.FileStart <= node.Pos() && node.Pos() < f.FileEnd })
	return pass.Files[i]
}

func bodyOf(node ast.Node) *ast.BlockStmt {
	switch node := node.(type) {
	case *ast.FuncDecl:
		return node.Body
	case *ast.FuncLit:
		return node.Body
	}
	return nil
}

// reportFinding reports a finding, unless a comment silences it.
func reportFinding(pass *analysis.Pass, at ast.Node, format string, args ...any) {
	line := func(at ast.Node) int { return pass.Fset.Position(at.Pos()).Line }
	for _, group := range fileOf(pass, at).Comments {
		for _, c := range group.List {
			if n := line(at) - line(c); (n == 0 || n == 1) && strings.HasPrefix(c.Text, ignore) {
				return
			}
		}
	}
	pass.ReportRangef(at, format, args...)
}

// calledFunc returns the function or method that a call names, or nil.
func calledFunc(info *types.Info, call *ast.CallExpr) *types.Func {
	f, _ := typeutil.Callee(info, call).(*types.Func)
	return f
}

// pathOf returns the path of the package of f.
func pathOf(f *types.Func) string {
	if f == nil || f.Pkg() == nil {
		return ""
	}
	return f.Pkg().Path()
}

// variableOf returns the variable that expr names, or nil.
func variableOf(info *types.Info, expr ast.Expr) *types.Var {
	id, ok := ast.Unparen(expr).(*ast.Ident)
	if !ok || isBlank(id) {
		return nil
	}
	v, _ := info.ObjectOf(id).(*types.Var)
	return v
}

// isWithin reports whether pos is in node.
func isWithin(pos token.Pos, node ast.Node) bool { return node.Pos() <= pos && pos < node.End() }

// use is a kind of use of a lease.
type use int

const (
	looked use = iota // by a method that does not end it, or in a comparison with nil
	set               // assigned
	ended             // released or detached
	spoken            // its token or owner is read
	lent              // passed to a function that returns it
	handed            // passed anywhere else: to a function, a field, a caller
)

// eachUse calls f with each use of the lease v below node, until f returns false.
func eachUse(info *types.Info, node ast.Node, v *types.Var, f func(use, ast.Node) bool) {
	going := true
	ast.PreorderStack(node, nil, func(n ast.Node, stack []ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && going && info.ObjectOf(id) == v {
			going = f(useOf(info, id, stack), id)
		}
		return going
	})
}

// useOf returns the kind of use of a lease by id; stack has the nodes above it.
func useOf(info *types.Info, id *ast.Ident, stack []ast.Node) use {
	if len(stack) == 0 {
		return handed
	}
	switch parent := stack[len(stack)-1].(type) {
	case *ast.SelectorExpr:
		switch parent.Sel.Name {
		case "Token", "Owner", "Lease":
			return spoken
		case "Key", "Context", "Deadline", "Check", "Extend":
			return looked
		}
		return ended
	case *ast.BinaryExpr:
		return looked
	case *ast.ValueSpec:
		return set
	case *ast.AssignStmt:
		for _, left := range parent.Lhs {
			if left == id {
				return set
			}
		}
		if len(parent.Lhs) == 1 && isBlank(parent.Lhs[0]) {
			return looked
		}
	case *ast.CallExpr:
		if path := pathOf(calledFunc(info, parent)); path == project+"/postgres" || strings.HasPrefix(path, project+"/fence") {
			return lent
		}
	}
	return handed
}

func isBlank(expr ast.Expr) bool {
	id, ok := expr.(*ast.Ident)
	return ok && id.Name == "_"
}
