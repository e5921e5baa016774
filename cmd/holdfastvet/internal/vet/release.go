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

// gives is the fact that a function returns a lease which it has just acquired.
type gives struct{}

// AFact implements analysis.Fact.
func (*gives) AFact() {}

func (*gives) String() string { return "gives" }

func checkRelease(pass *analysis.Pass) (any, error) {
	exportGivesFacts(pass)
	in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	graphs := pass.ResultOf[ctrlflow.Analyzer].(*ctrlflow.CFGs)
	eachFunction(pass, in, func(node ast.Node, body *ast.BlockStmt) {
		for _, a := range findAcquisitions(pass, body, returnsLeaseToCaller) {
			a.checkPaths(pass, graphs, node)
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

// findAcquisitions returns the acquisitions in body whose lease is assigned to a variable or dropped. It skips
// nested functions.
func findAcquisitions(pass *analysis.Pass, body *ast.BlockStmt, acquires func(*analysis.Pass, *ast.CallExpr) bool) (all []*acquisition) {
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
			a.lease, a.err = variableOf(pass.TypesInfo, left[0]), variableOf(pass.TypesInfo, left[1])
			if a.lease != nil || isBlank(left[0]) {
				all = append(all, a)
			}
		}
		return true
	})
	return all
}

// acquiresLease reports whether a call is to a client's method that returns a lease.
func acquiresLease(pass *analysis.Pass, call *ast.CallExpr) bool {
	f := calledFunc(pass.TypesInfo, call)
	return f != nil && returnsLease(f) && slices.Contains([]string{"Acquire", "TryAcquire", "Adopt", "AcquireAll", "TryAcquireAll"}, f.Name())
}

// returnsLeaseToCaller reports whether a call returns a lease that the caller must release.
func returnsLeaseToCaller(pass *analysis.Pass, call *ast.CallExpr) bool {
	f := calledFunc(pass.TypesInfo, call)
	return f != nil && (acquiresLease(pass, call) || pass.ImportObjectFact(f.Origin(), new(gives))) && !hasNoRenew(pass.TypesInfo, call)
}

func returnsLease(f *types.Func) bool {
	results := f.Signature().Results()
	if results.Len() != 2 || !types.Identical(results.At(1).Type(), types.Universe.Lookup("error").Type()) {
		return false
	}
	return isLease(results.At(0).Type()) || isLeases(results.At(0).Type())
}

// hasNoRenew reports whether the options in a call have NoRenew.
func hasNoRenew(info *types.Info, call *ast.CallExpr) (found bool) {
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

// exportGivesFacts exports a fact for each function that returns a lease which it has acquired, and does nothing
// else with it.
func exportGivesFacts(pass *analysis.Pass) {
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
	for _, a := range findAcquisitions(pass, body, returnsLeaseToCaller) {
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
			found = found || ok && returnsLeaseToCaller(pass, call) || fresh[variableOf(pass.TypesInfo, n.Results[0])]
		}
		return true
	})
	return found
}

// onlyReturned reports whether a lease goes only to the caller.
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
	eachUse(info, body, v, func(u use, at ast.Node) bool {
		only = u != handed || returned[at]
		return only
	})
	return only
}

// checkPaths reports a, an acquisition in the function node, if its lease is lost on some path.
func (a *acquisition) checkPaths(pass *analysis.Pass, graphs *ctrlflow.CFGs, node ast.Node) {
	name := calledFunc(pass.TypesInfo, a.call).Name()
	switch {
	case closesClient(pass, a.call):
	case a.lease == nil:
		reportFinding(pass, a.call, "the lease of %s is dropped: nobody can release it, nor learn that it is lost", name)
	case !isWithin(a.lease.Pos(), bodyOf(node)) || isEndedBefore(pass.TypesInfo, bodyOf(node), a):
	default:
		w := &walk{pass: pass, acquisition: a, tests: boolExpressions(pass.TypesInfo, bodyOf(node)), seen: make(map[place]bool)}
		switch end := w.run(graphOf(graphs, node)).(type) {
		case nil:
		case *ast.ReturnStmt:
			reportFinding(pass, a.call, `the lease of %s is not released on the path that returns at line %d: put "defer %s.Release(ctx)" after the check of the error`,
				name, pass.Fset.Position(end.Pos()).Line, a.lease.Name())
		default:
			reportFinding(pass, a.call, "the lease of %s is not released on the path that puts another one in its place at line %d",
				name, pass.Fset.Position(end.Pos()).Line)
		}
	}
}

func graphOf(graphs *ctrlflow.CFGs, node ast.Node) *cfg.CFG {
	if decl, ok := node.(*ast.FuncDecl); ok {
		return graphs.FuncDecl(decl)
	}
	return graphs.FuncLit(node.(*ast.FuncLit))
}

// closesClient reports whether the function around call also closes or shuts down the client that it uses.
func closesClient(pass *analysis.Pass, call *ast.CallExpr) (found bool) {
	method, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return false
	}
	client := variableOf(pass.TypesInfo, method.X)
	for _, decl := range fileOf(pass, call).Decls {
		if client == nil || !isWithin(call.Pos(), decl) {
			continue
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Close" || sel.Sel.Name == "Shutdown") {
				found = found || variableOf(pass.TypesInfo, sel.X) == client
			}
			return !found
		})
	}
	return found
}

// isEndedBefore reports whether a function literal before a ends its lease, such as a deferred one.
func isEndedBefore(info *types.Info, body *ast.BlockStmt, a *acquisition) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if lit, ok := n.(*ast.FuncLit); ok && lit.Pos() < a.stmt.Pos() {
			found = found || endsLease(info, lit, a.lease)
		}
		return !found
	})
	return found
}

// endsLease reports whether node releases a lease or hands it on.
func endsLease(info *types.Info, node ast.Node, v *types.Var) (found bool) {
	eachUse(info, node, v, func(u use, _ ast.Node) bool {
		found = u == ended || u == handed
		return !found
	})
	return found
}

// boolExpressions returns the expression that computes each bool variable.
func boolExpressions(info *types.Info, body *ast.BlockStmt) map[*types.Var]ast.Expr {
	tests := make(map[*types.Var]ast.Expr)
	ast.Inspect(body, func(n ast.Node) bool {
		if assign, ok := n.(*ast.AssignStmt); ok && len(assign.Rhs) == 1 {
			last := variableOf(info, assign.Lhs[len(assign.Lhs)-1])
			if last != nil && types.Identical(last.Type().Underlying(), types.Typ[types.Bool]) {
				tests[last] = assign.Rhs[0]
			}
		}
		return true
	})
	return tests
}

// walk searches for a path on which the lease of an acquisition is lost.
type walk struct {
	*acquisition
	pass  *analysis.Pass
	tests map[*types.Var]ast.Expr
	seen  map[place]bool
}

// place is a point on a path, and the facts known at that point.
type place struct {
	block *cfg.Block
	known bool // err is still the result of the acquisition
}

// run returns the statement that loses the lease, or nil.
func (w *walk) run(graph *cfg.CFG) ast.Node {
	for _, block := range graph.Blocks {
		for i, node := range block.Nodes {
			if node == w.stmt {
				return w.followBlock(block, block.Nodes[i+1:], w.err != nil)
			}
		}
	}
	return nil
}

// followBlock continues with nodes, the rest of a block.
func (w *walk) followBlock(block *cfg.Block, nodes []ast.Node, known bool) ast.Node {
	info := w.pass.TypesInfo
	for _, node := range nodes {
		switch {
		case endsLease(info, node, w.lease) || known && w.hidesError(node):
			return nil
		case node == w.stmt || assignsVar(info, node, w.lease):
			return node
		case w.err != nil && assignsVar(info, node, w.err):
			known = false
		}
		if ret, ok := node.(*ast.ReturnStmt); ok {
			return ret
		}
	}
	for i, next := range block.Succs {
		if cond := branchCondition(block); cond != nil && w.excludesLease(cond, i == 0, known) || w.seen[place{next, known}] {
			continue
		}
		w.seen[place{next, known}] = true
		if end := w.followBlock(next, next.Nodes, known); end != nil {
			return end
		}
	}
	return nil
}

// hidesError reports whether node tests the error in a way that the walk does not follow: in a switch over the
// error, or through another variable.
func (w *walk) hidesError(node ast.Node) bool {
	info := w.pass.TypesInfo
	switch node := node.(type) {
	case *ast.Ident:
		return variableOf(info, node) == w.err
	case *ast.ExprStmt:
		return isTypeSwitch(node.X) && w.mentionsError(node.X)
	case *ast.ValueSpec:
		return w.mentionsError(node)
	case *ast.AssignStmt:
		if isTypeSwitch(node.Rhs[0]) {
			return w.mentionsError(node)
		}
		isError := func(left ast.Expr) bool {
			v := variableOf(info, left)
			return v != nil && types.Identical(v.Type(), w.err.Type())
		}
		return slices.ContainsFunc(node.Lhs, isError) && slices.ContainsFunc(node.Rhs, func(right ast.Expr) bool { return w.mentionsError(right) })
	}
	return false
}

// isTypeSwitch reports whether expr is the x.(type) of a type switch.
func isTypeSwitch(expr ast.Expr) bool {
	assert, ok := expr.(*ast.TypeAssertExpr)
	return ok && assert.Type == nil
}

func (w *walk) mentionsError(node ast.Node) (found bool) {
	ast.Inspect(node, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && variableOf(w.pass.TypesInfo, id) == w.err
		return !found
	})
	return found
}

// branchCondition decides which of two blocks follows on block; nil where there is none.
func branchCondition(block *cfg.Block) ast.Expr {
	if len(block.Succs) != 2 || len(block.Nodes) == 0 || block.Kind == cfg.KindRangeLoop {
		return nil
	}
	cond, _ := block.Nodes[len(block.Nodes)-1].(ast.Expr)
	return cond
}

func assignsVar(info *types.Info, node ast.Node, v *types.Var) bool {
	assign, ok := node.(*ast.AssignStmt)
	if !ok {
		return false
	}
	for _, left := range assign.Lhs {
		if variableOf(info, left) == v {
			return true
		}
	}
	return false
}

// excludesLease reports whether there is no lease if cond has the value truth. With known, err is the result
// of the acquisition.
func (w *walk) excludesLease(cond ast.Expr, truth, known bool) bool {
	switch cond := ast.Unparen(cond).(type) {
	case *ast.UnaryExpr:
		return cond.Op == token.NOT && w.excludesLease(cond.X, !truth, known)
	case *ast.BinaryExpr:
		return w.excludesBoth(cond, truth, known)
	case *ast.CallExpr:
		return known && w.testsError(cond, truth)
	case *ast.TypeAssertExpr:
		return known && truth && variableOf(w.pass.TypesInfo, cond.X) == w.err
	case *ast.Ident:
		test := w.tests[variableOf(w.pass.TypesInfo, cond)]
		delete(w.tests, variableOf(w.pass.TypesInfo, cond)) // avoid a loop if a variable is computed from itself
		defer func() { w.tests[variableOf(w.pass.TypesInfo, cond)] = test }()
		return test != nil && w.excludesLease(test, truth, known)
	}
	return false
}

func (w *walk) excludesBoth(cond *ast.BinaryExpr, truth, known bool) bool {
	left := variableOf(w.pass.TypesInfo, cond.X)
	switch cond.Op {
	case token.LAND, token.LOR:
		x, y := w.excludesLease(cond.X, truth, known), w.excludesLease(cond.Y, truth, known)
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
			return same != isNil // err is not nil
		}
	}
	return false
}

// testsError reports whether the result truth of a call with the acquisition's error means that there is an
// error. Each result of an unknown function may mean that.
func (w *walk) testsError(call *ast.CallExpr, truth bool) bool {
	for _, arg := range call.Args {
		if variableOf(w.pass.TypesInfo, arg) == w.err {
			return truth || pathOf(calledFunc(w.pass.TypesInfo, call)) != "errors"
		}
	}
	return false
}
