package vet

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/cfg"
)

// Release reports a lease that is not released on some path.
var Release = &analysis.Analyzer{
	Name: "leaserelease",
	Doc: `report a lease that is not released on some path

The lock of such a lease is held until its client is closed, because the watchdog renews it, and others wait for it. A lease counts as
released where it is released or detached, returned, stored, or given to another function. A lease with NoRenew ends by itself,
and one whose client is closed in the same function ends with that.`,
	Requires:  []*analysis.Analyzer{inspect.Analyzer, ctrlflow.Analyzer},
	FactTypes: []analysis.Fact{new(gives)},
	Run:       checkRelease,
}

// gives is the fact that a function returns a lease that it has just acquired.
type gives struct{}

// AFact implements analysis.Fact.
func (*gives) AFact() {}

func (*gives) String() string { return "gives" }

func checkRelease(pass *analysis.Pass) (any, error) {
	findGivers(pass)
	in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	graphs := pass.ResultOf[ctrlflow.Analyzer].(*ctrlflow.CFGs)
	functions(pass, in, func(node ast.Node, body *ast.BlockStmt) {
		for _, a := range acquisitions(pass, body, acquiresOrGives) {
			a.check(pass, graphs, node)
		}
	})
	return nil, nil
}

// acquisition is a call that acquires a lease, and the statement that it is in.
type acquisition struct {
	call  *ast.CallExpr
	stmt  ast.Node
	lease *types.Var // nil: the lease is dropped
	err   *types.Var // nil: the error is dropped
}

// acquisitions returns the acquisitions in body whose lease is put into a variable or dropped, without those in nested functions.
func acquisitions(pass *analysis.Pass, body *ast.BlockStmt, acquires func(*analysis.Pass, *ast.CallExpr) bool) (all []*acquisition) {
	ast.PreorderStack(body, nil, func(n ast.Node, stack []ast.Node) bool {
		if _, ok := n.(*ast.FuncLit); ok {
			return false
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || !acquires(pass, call) {
			return true
		}
		a := &acquisition{call: call, stmt: stack[len(stack)-1]}
		var left []ast.Expr
		switch stmt := a.stmt.(type) {
		case *ast.ExprStmt:
			all = append(all, a)
		case *ast.AssignStmt:
			left = stmt.Lhs
		case *ast.ValueSpec:
			for _, name := range stmt.Names {
				left = append(left, name)
			}
		}
		if len(left) == 2 {
			a.lease, a.err = variable(pass.TypesInfo, left[0]), variable(pass.TypesInfo, left[1])
			if a.lease != nil || isBlank(left[0]) {
				all = append(all, a)
			}
		}
		return true
	})
	return all
}

// acquires reports whether a call is to a client's method that returns a lease.
func acquires(pass *analysis.Pass, call *ast.CallExpr) bool {
	f := called(pass.TypesInfo, call)
	return f != nil && returnsLease(f) && slices.Contains([]string{"Acquire", "TryAcquire", "Adopt", "AcquireAll", "TryAcquireAll"}, f.Name())
}

// acquiresOrGives reports whether a call returns a lease that the caller must release.
func acquiresOrGives(pass *analysis.Pass, call *ast.CallExpr) bool {
	f := called(pass.TypesInfo, call)
	return f != nil && (acquires(pass, call) || pass.ImportObjectFact(f.Origin(), new(gives))) && !endsByItself(pass.TypesInfo, call)
}

func returnsLease(f *types.Func) bool {
	results := f.Signature().Results()
	if results.Len() != 2 || !types.Identical(results.At(1).Type(), types.Universe.Lookup("error").Type()) {
		return false
	}
	return isLease(results.At(0).Type()) || isLeases(results.At(0).Type())
}

// endsByItself reports whether the options in a call have NoRenew.
func endsByItself(info *types.Info, call *ast.CallExpr) (found bool) {
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if pair, ok := n.(*ast.KeyValueExpr); ok {
				key, _ := pair.Key.(*ast.Ident)
				value := info.Types[pair.Value].Value
				found = found || key != nil && key.Name == "NoRenew" && value != nil && constant.BoolVal(value)
			}
			return !found
		})
	}
	return found
}

// findGivers exports a fact for each function that returns a lease which it has acquired, and does nothing else with it.
func findGivers(pass *analysis.Pass) {
	for again := true; again; {
		again = false
		for _, file := range pass.Files {
			for _, decl := range file.Decls {
				decl, ok := decl.(*ast.FuncDecl)
				if !ok || decl.Body == nil {
					continue
				}
				f, ok := pass.TypesInfo.Defs[decl.Name].(*types.Func)
				if ok && returnsLease(f) && !pass.ImportObjectFact(f, new(gives)) && givesLease(pass, decl.Body) {
					pass.ExportObjectFact(f, new(gives))
					again = true
				}
			}
		}
	}
}

func givesLease(pass *analysis.Pass, body *ast.BlockStmt) (found bool) {
	fresh := make(map[*types.Var]bool)
	for _, a := range acquisitions(pass, body, acquiresOrGives) {
		if a.lease != nil {
			fresh[a.lease] = onlyReturned(pass.TypesInfo, body, a.lease)
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			if len(n.Results) == 0 {
				return true
			}
			call, ok := ast.Unparen(n.Results[0]).(*ast.CallExpr)
			found = found || ok && acquiresOrGives(pass, call) || fresh[variable(pass.TypesInfo, n.Results[0])]
		}
		return true
	})
	return found
}

// onlyReturned reports whether a lease goes nowhere but to the caller.
func onlyReturned(info *types.Info, body *ast.BlockStmt, v *types.Var) bool {
	returned := make(map[ast.Node]bool)
	ast.Inspect(body, func(n ast.Node) bool {
		if ret, ok := n.(*ast.ReturnStmt); ok {
			for _, result := range ret.Results {
				returned[result] = true
			}
		}
		return true
	})
	only := true
	uses(info, body, v, func(u use, at ast.Node) bool {
		only = u != handed || returned[at]
		return only
	})
	return only
}

// check reports a, which is in the function node, if its lease is lost on some path.
func (a *acquisition) check(pass *analysis.Pass, graphs *ctrlflow.CFGs, node ast.Node) {
	name := called(pass.TypesInfo, a.call).Name()
	switch {
	case closes(pass, a.call):
	case a.lease == nil:
		report(pass, a.call, "the lease of %s is dropped: nobody can release it, nor learn that it is lost", name)
	case !within(a.lease.Pos(), bodyOf(node)) || endedBefore(pass.TypesInfo, bodyOf(node), a):
	default:
		w := &walk{pass: pass, acquisition: a, tests: testsIn(pass.TypesInfo, bodyOf(node)), seen: make(map[place]bool)}
		switch end := w.run(graphOf(graphs, node)).(type) {
		case nil:
		case *ast.ReturnStmt:
			report(pass, a.call, `the lease of %s is not released on the path that returns at line %d: put "defer %s.Release(ctx)" after the check of the error`,
				name, pass.Fset.Position(end.Pos()).Line, a.lease.Name())
		default:
			report(pass, a.call, "the lease of %s is not released on the path that puts another one in its place at line %d", name, pass.Fset.Position(end.Pos()).Line)
		}
	}
}

func graphOf(graphs *ctrlflow.CFGs, node ast.Node) *cfg.CFG {
	if decl, ok := node.(*ast.FuncDecl); ok {
		return graphs.FuncDecl(decl)
	}
	return graphs.FuncLit(node.(*ast.FuncLit))
}

// closes reports whether the declaration around call also closes or shuts down the client that is called.
func closes(pass *analysis.Pass, call *ast.CallExpr) (found bool) {
	method, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return false
	}
	client := variable(pass.TypesInfo, method.X)
	for _, decl := range fileOf(pass, call).Decls {
		if client == nil || !within(call.Pos(), decl) {
			continue
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Close" || sel.Sel.Name == "Shutdown") {
				found = found || variable(pass.TypesInfo, sel.X) == client
			}
			return !found
		})
	}
	return found
}

// endedBefore reports whether a function literal before a ends its lease, such as the literal of a deferred call.
func endedBefore(info *types.Info, body *ast.BlockStmt, a *acquisition) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if lit, ok := n.(*ast.FuncLit); ok && lit.Pos() < a.stmt.Pos() {
			found = found || ends(info, lit, a.lease)
		}
		return !found
	})
	return found
}

// ends reports whether a lease is released or handed on in node.
func ends(info *types.Info, node ast.Node, v *types.Var) (found bool) {
	uses(info, node, v, func(u use, _ ast.Node) bool {
		found = u == ended || u == handed
		return !found
	})
	return found
}

// testsIn returns the expression from which each variable of type bool is computed.
func testsIn(info *types.Info, body *ast.BlockStmt) map[*types.Var]ast.Expr {
	tests := make(map[*types.Var]ast.Expr)
	ast.Inspect(body, func(n ast.Node) bool {
		if assign, ok := n.(*ast.AssignStmt); ok && len(assign.Rhs) == 1 {
			last := variable(info, assign.Lhs[len(assign.Lhs)-1])
			if last != nil && types.Identical(last.Type().Underlying(), types.Typ[types.Bool]) {
				tests[last] = assign.Rhs[0]
			}
		}
		return true
	})
	return tests
}

// walk looks for a path on which the lease of an acquisition is lost.
type walk struct {
	*acquisition
	pass  *analysis.Pass
	tests map[*types.Var]ast.Expr
	seen  map[place]bool
}

// place is a point on a path, and the facts known there.
type place struct {
	block *cfg.Block
	known bool // err is still the result of the acquisition
}

// run returns the statement that loses the lease, or nil.
func (w *walk) run(graph *cfg.CFG) ast.Node {
	for _, block := range graph.Blocks {
		for i, node := range block.Nodes {
			if node == w.stmt {
				return w.follow(block, block.Nodes[i+1:], w.err != nil)
			}
		}
	}
	return nil
}

// follow goes on with nodes, the rest of a block.
func (w *walk) follow(block *cfg.Block, nodes []ast.Node, known bool) ast.Node {
	info := w.pass.TypesInfo
	for _, node := range nodes {
		switch {
		case ends(info, node, w.lease) || known && w.veils(node):
			return nil
		case node == w.stmt || assigns(info, node, w.lease):
			return node
		case w.err != nil && assigns(info, node, w.err):
			known = false
		}
		if ret, ok := node.(*ast.ReturnStmt); ok {
			return ret
		}
	}
	for i, next := range block.Succs {
		if cond := condition(block); cond != nil && w.excludes(cond, i == 0, known) || w.seen[place{next, known}] {
			continue
		}
		w.seen[place{next, known}] = true
		if end := w.follow(next, next.Nodes, known); end != nil {
			return end
		}
	}
	return nil
}

// veils reports whether node decides by the error in a way that the walk does not follow: in a switch over the error, or by another
// variable.
func (w *walk) veils(node ast.Node) bool {
	info := w.pass.TypesInfo
	switch node := node.(type) {
	case *ast.Ident:
		return variable(info, node) == w.err
	case *ast.ExprStmt:
		return isTypeSwitch(node.X) && w.mentions(node.X)
	case *ast.ValueSpec:
		return w.mentions(node)
	case *ast.AssignStmt:
		if isTypeSwitch(node.Rhs[0]) {
			return w.mentions(node)
		}
		isError := func(left ast.Expr) bool {
			v := variable(info, left)
			return v != nil && types.Identical(v.Type(), w.err.Type())
		}
		return slices.ContainsFunc(node.Lhs, isError) && slices.ContainsFunc(node.Rhs, func(right ast.Expr) bool { return w.mentions(right) })
	}
	return false
}

// isTypeSwitch reports whether expr is the x.(type) of a type switch.
func isTypeSwitch(expr ast.Expr) bool {
	assert, ok := expr.(*ast.TypeAssertExpr)
	return ok && assert.Type == nil
}

func (w *walk) mentions(node ast.Node) (found bool) {
	ast.Inspect(node, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && variable(w.pass.TypesInfo, id) == w.err
		return !found
	})
	return found
}

// condition decides which of two blocks follows on block; nil where there is none.
func condition(block *cfg.Block) ast.Expr {
	if len(block.Succs) != 2 || len(block.Nodes) == 0 || block.Kind == cfg.KindRangeLoop {
		return nil
	}
	cond, _ := block.Nodes[len(block.Nodes)-1].(ast.Expr)
	return cond
}

func assigns(info *types.Info, node ast.Node, v *types.Var) bool {
	assign, ok := node.(*ast.AssignStmt)
	if !ok {
		return false
	}
	for _, left := range assign.Lhs {
		if variable(info, left) == v {
			return true
		}
	}
	return false
}

// excludes reports whether there is no lease if cond has the value truth. known: err is the result of the acquisition.
func (w *walk) excludes(cond ast.Expr, truth, known bool) bool {
	switch cond := ast.Unparen(cond).(type) {
	case *ast.UnaryExpr:
		return cond.Op == token.NOT && w.excludes(cond.X, !truth, known)
	case *ast.BinaryExpr:
		return w.excludesBoth(cond, truth, known)
	case *ast.CallExpr:
		return known && w.asksForError(cond, truth)
	case *ast.TypeAssertExpr:
		return known && truth && variable(w.pass.TypesInfo, cond.X) == w.err
	case *ast.Ident:
		test := w.tests[variable(w.pass.TypesInfo, cond)]
		delete(w.tests, variable(w.pass.TypesInfo, cond)) // against a variable that is computed from itself
		defer func() { w.tests[variable(w.pass.TypesInfo, cond)] = test }()
		return test != nil && w.excludes(test, truth, known)
	}
	return false
}

func (w *walk) excludesBoth(cond *ast.BinaryExpr, truth, known bool) bool {
	left := variable(w.pass.TypesInfo, cond.X)
	switch cond.Op {
	case token.LAND, token.LOR:
		x, y := w.excludes(cond.X, truth, known), w.excludes(cond.Y, truth, known)
		if truth == (cond.Op == token.LAND) {
			return x || y
		}
		return x && y
	case token.EQL, token.NEQ:
		same := truth == (cond.Op == token.EQL)
		isNil := w.pass.TypesInfo.Types[cond.Y].IsNil()
		switch {
		case left == nil:
		case left == w.lease && isNil:
			return same
		case left == w.err && known:
			return same != isNil // it is an error, or another than nil
		}
	}
	return false
}

// asksForError reports whether the result truth of a call with the acquisition's error means that there is an error. Each result of
// an unknown function may mean it.
func (w *walk) asksForError(call *ast.CallExpr, truth bool) bool {
	for _, arg := range call.Args {
		if variable(w.pass.TypesInfo, arg) == w.err {
			return truth || pathOf(called(w.pass.TypesInfo, call)) != "errors"
		}
	}
	return false
}
