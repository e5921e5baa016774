package vet

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// Context reports work under a lease that does not end with the lease.
var Context = &analysis.Analyzer{
	Name: "leasecontext",
	Doc: `report a caller's context that is used in the function that Do calls

Do gives the function a context that ends when the lease is lost. Work with the caller's context goes on then, while another
process has the lock. Loggers, deferred calls, go statements and context.WithoutCancel may have the caller's.`,
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      checkContext,
}

func checkContext(pass *analysis.Pass) (any, error) {
	in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	eachFunction(pass, in, func(node ast.Node, body *ast.BlockStmt) {
		lit, ok := node.(*ast.FuncLit)
		if !ok || !underLease(pass.TypesInfo, lit) {
			return
		}
		ast.PreorderStack(body, nil, func(n ast.Node, stack []ast.Node) bool {
			switch n := n.(type) {
			case *ast.DeferStmt, *ast.GoStmt:
				return false
			case *ast.FuncLit:
				return !underLease(pass.TypesInfo, n) // checked separately
			case *ast.CallExpr:
				for _, arg := range n.Args {
					if name := callerContext(pass.TypesInfo, lit, arg); name != "" && obeysContext(pass.TypesInfo, n) {
						reportFinding(pass, arg, "%s does not end when the lease is lost: use the context that the function gets with the lease", name)
					}
				}
			}
			return true
		})
	})
	return nil, nil
}

// underLease reports whether lit has the signature of a function for Do: a context and a lease.
func underLease(info *types.Info, lit *ast.FuncLit) bool {
	sig, ok := info.TypeOf(lit).(*types.Signature)
	return ok && sig.Params().Len() == 2 && isNamed(sig.Params().At(0).Type(), "context", "Context") && isLease(sig.Params().At(1).Type())
}

// callerContext names the context in arg if it is a variable from outside lit that lit does not set.
func callerContext(info *types.Info, lit *ast.FuncLit, arg ast.Expr) string {
	if v := variableOf(info, arg); v != nil {
		if isNamed(v.Type(), "context", "Context") && isOuterVariable(v, lit) && !isAssignedIn(info, lit, v) {
			return v.Name()
		}
		return ""
	}
	call, ok := ast.Unparen(arg).(*ast.CallExpr)
	if !ok || calledFunc(info, call) == nil || calledFunc(info, call).FullName() != "(*net/http.Request).Context" {
		return ""
	}
	if request := variableOf(info, call.Fun.(*ast.SelectorExpr).X); request != nil && isOuterVariable(request, lit) {
		return request.Name() + ".Context()"
	}
	return ""
}

// isOuterVariable reports whether v is a variable of a function around lit.
func isOuterVariable(v *types.Var, lit *ast.FuncLit) bool {
	return !v.IsField() && v.Pkg() != nil && v.Parent() != v.Pkg().Scope() && !isWithin(v.Pos(), lit)
}

func isAssignedIn(info *types.Info, lit *ast.FuncLit, v *types.Var) (found bool) {
	ast.Inspect(lit.Body, func(n ast.Node) bool {
		found = found || n != nil && assignsVar(info, n, v)
		return !found
	})
	return found
}

// observers are packages whose functions only read values from a context, and do not end with it.
var observers = []string{"log", "log/slog", "github.com/rs/zerolog", "go.opentelemetry.io/otel", "go.uber.org/zap", "github.com/sirupsen/logrus"}

// obeysContext reports whether a call may run until its context ends.
func obeysContext(info *types.Info, call *ast.CallExpr) bool {
	f := calledFunc(info, call)
	path := pathOf(f)
	if path == "context" {
		return f.Name() != "WithoutCancel" && f.Name() != "AfterFunc" && f.Name() != "Cause"
	}
	return !slices.ContainsFunc(observers, func(o string) bool { return path == o || strings.HasPrefix(path, o+"/") })
}
