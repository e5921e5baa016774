package vet

import (
	"go/ast"
	"go/constant"
	"go/types"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// Token reports writes under a lease that no token guards.
var Token = &analysis.Analyzer{
	Name: "leasetoken",
	Doc: `report a function that writes to a database under a lease and does not use the token

A holder that was stopped for longer than its lease goes on and writes, after the next holder has. Only a storage that compares
tokens refuses that: see packages fence/sqlfence and fence/pgxfence, and postgres.FenceTx. The check knows database/sql, pgx, sqlx,
gorm and MongoDB. A lock that only saves work needs no token: call the parameter _, or silence the finding.`,
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      checkToken,
}

func checkToken(pass *analysis.Pass) (any, error) {
	in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	eachFunction(pass, in, func(node ast.Node, body *ast.BlockStmt) {
		for p := range signatureOf(pass.TypesInfo, node).Params().Variables() {
			if isLease(p.Type()) && p.Name() != "_" && p.Name() != "" {
				checkWrites(pass, body, body, p)
			}
		}
		for _, a := range findAcquisitions(pass, body, acquiresLease) {
			if a.lease != nil {
				checkWrites(pass, body, a.stmt, a.lease)
			}
		}
	})
	return nil, nil
}

func signatureOf(info *types.Info, node ast.Node) *types.Signature {
	if decl, ok := node.(*ast.FuncDecl); ok {
		return info.Defs[decl.Name].(*types.Func).Signature()
	}
	return info.TypeOf(node.(*ast.FuncLit)).(*types.Signature)
}

// checkWrites reports the first write in body after the start of from, unless the lease v or its token is
// used.
func checkWrites(pass *analysis.Pass, body, from ast.Node, v *types.Var) {
	guarded := false
	released := body.End() // position of a release in the middle of the function
	eachUse(pass.TypesInfo, body, v, func(u use, _ ast.Node) bool {
		guarded = guarded || u == spoken || u == lent || u == handed
		return !guarded
	})
	if guarded {
		return
	}
	ast.PreorderStack(body, nil, func(n ast.Node, stack []ast.Node) bool {
		if _, ok := n.(*ast.DeferStmt); ok {
			return false
		}
		if call, ok := n.(*ast.CallExpr); ok && call.Pos() > from.Pos() && call.Pos() < released {
			switch {
			case endsLease(pass.TypesInfo, call.Fun, v):
				released = call.Pos()
			case writesDatabase(pass.TypesInfo, call):
				reportFinding(pass, call, "this writes under the lease %s, and its token is passed to nothing: a holder that comes too late writes too", v.Name())
				released = body.Pos()
			}
		}
		return true
	})
}

// methods lists the methods of a package that write, and the methods that run the SQL in their arguments.
type methods struct{ write, statement []string }

var storages = map[string]methods{
	"database/sql":            {statement: []string{"Exec", "ExecContext", "QueryRow", "QueryRowContext", "Query", "QueryContext"}},
	"github.com/jackc/pgx":    {statement: []string{"Exec", "QueryRow", "Query"}, write: []string{"CopyFrom"}},
	"github.com/jmoiron/sqlx": {statement: []string{"NamedExec", "NamedExecContext", "MustExec", "MustExecContext"}},
	"gorm.io/gorm": {
		statement: []string{"Exec"},
		write:     []string{"Create", "CreateInBatches", "Save", "Update", "Updates", "UpdateColumn", "UpdateColumns", "Delete"},
	},
	"go.mongodb.org/mongo-driver": {write: []string{
		"InsertOne", "InsertMany", "UpdateOne", "UpdateMany", "UpdateByID", "ReplaceOne", "DeleteOne", "DeleteMany",
		"FindOneAndUpdate", "FindOneAndReplace", "FindOneAndDelete", "BulkWrite",
	}},
}

// writesDatabase reports whether a call writes to a database.
func writesDatabase(info *types.Info, call *ast.CallExpr) bool {
	f := calledFunc(info, call)
	if f == nil || f.Signature().Recv() == nil {
		return false
	}
	for path, m := range storages {
		if pathOf(f) == path || strings.HasPrefix(pathOf(f), path+"/") {
			return slices.Contains(m.write, f.Name()) || slices.Contains(m.statement, f.Name()) && changesRows(info, call)
		}
	}
	return false
}

// changes matches SQL that changes rows.
var changes = regexp.MustCompile(`(?is)^\s*(INSERT|UPDATE|DELETE|MERGE|REPLACE|TRUNCATE|WITH\b.*\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO))\b`)

// changesRows reports whether a call has an SQL argument that changes rows. Only constants count.
func changesRows(info *types.Info, call *ast.CallExpr) bool {
	for _, arg := range call.Args {
		if value := info.Types[arg].Value; value != nil && value.Kind() == constant.String {
			return changes.MatchString(constant.StringVal(value))
		}
	}
	return false
}
