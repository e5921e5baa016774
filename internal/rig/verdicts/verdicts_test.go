// Package verdicts finds tests on real servers whose verdict depends on the speed of the machine:
//
//   - short-ttl: a TTL under 5 s. The lease may expire before the test looks. A test that waits for the end of
//     the lease has a comment on the same line, or on the line before: "// short: " and the reason.
//   - bare-send: a goroutine that sends the bare result of Acquire or Grant. These end the goroutine if they
//     fail, and then the reader of the channel waits forever. Use fixture.RunAsync.
//   - clock: a test that fails if something took too long by the clock of this machine. Judge by order, by
//     tokens and by the server's own clock. A test that compares clocks, or waits for minutes, has a comment:
//     "// clock: " and the reason.
//
// In a synctest bubble all of these are allowed. known.txt lists the files that still have some of them. It
// may only become shorter.
package verdicts

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const root = "../../.."

// folders lists the folders with tests on real servers.
var folders = []string{"redis", "etcd", "zookeeper", "postgres", "sqllock", "sharding", "fence", "cmd/holdfast", "internal/rig/fixture"}

// minReliedTTL is the shortest TTL on which a test may rely.
const minReliedTTL = 5 * time.Second

// fault is one violation of a rule.
type fault struct {
	rule, file string
	line       int
	text       string
}

// source is one file, with the facts about its package that the rules need.
type source struct {
	name      string
	files     *token.FileSet
	file      *ast.File
	lines     []string
	durations map[string]time.Duration // constants of the package and of the checked function
	bubbles   map[string]bool          // functions of the package that run a function in a bubble
}

// parseSources parses the test files of a folder, or all files of internal/rig/fixture. texts maps names below
// root to their contents.
func parseSources(texts map[string]string) (all []*source, err error) {
	durations, bubbles := make(map[string]time.Duration), make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		s := &source{name: name, files: token.NewFileSet(), lines: strings.Split(texts[name], "\n"), durations: durations, bubbles: bubbles}
		if s.file, err = parser.ParseFile(s.files, name, texts[name], parser.ParseComments); err != nil {
			return nil, err
		}
		for _, decl := range s.file.Decls {
			if _, ok := decl.(*ast.GenDecl); ok {
				s.addConstants(decl, durations)
			}
			if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil && takesFunc(f) && containsNode(f.Body, isCallOf("synctest", "Test")) {
				bubbles[f.Name.Name] = true
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// addConstants adds the durations among the constants that n declares, and among the variables with such a
// value.
func (s *source) addConstants(n ast.Node, to map[string]time.Duration) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, value := range n.Values {
				if d, ok := s.durationOf(value); ok {
					to[n.Names[i].Name] = d
				}
			}
		case *ast.AssignStmt:
			for i, value := range n.Rhs {
				if name, ok := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident); ok && n.Tok == token.DEFINE {
					if d, ok := s.durationOf(value); ok {
						to[name.Name] = d
					}
				}
			}
		}
		return true
	})
}

// takesFunc reports whether a parameter of f is a function, which f may run in a bubble.
func takesFunc(f *ast.FuncDecl) bool {
	return slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool { _, ok := p.Type.(*ast.FuncType); return ok })
}

func containsNode(n ast.Node, is func(ast.Node) bool) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		found = found || n != nil && is(n)
		return !found
	})
	return found
}

func isCallOf(pkg, name string) func(ast.Node) bool {
	return func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return false
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != name {
			return false
		}
		x, ok := sel.X.(*ast.Ident)
		return ok && x.Name == pkg
	}
}

// calledName returns the name of the called function or method.
func calledName(call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		return fun.Sel.Name
	}
	return ""
}

// durationOf returns the value of an expression of numbers, units and constants.
func (s *source) durationOf(x ast.Expr) (time.Duration, bool) {
	v, unit := s.valueOf(x)
	d, exact := constant.Int64Val(constant.ToInt(v))
	return time.Duration(d), unit && exact
}

// valueOf returns the value of an expression, and whether it is a duration.
func (s *source) valueOf(x ast.Expr) (v constant.Value, isDuration bool) {
	units := map[string]time.Duration{
		"Nanosecond": 1, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
	}
	switch x := x.(type) {
	case *ast.ParenExpr:
		return s.valueOf(x.X)
	case *ast.BasicLit:
		if x.Kind == token.INT || x.Kind == token.FLOAT {
			return constant.MakeFromLiteral(x.Value, x.Kind, 0), false
		}
	case *ast.Ident:
		if d, ok := s.durations[x.Name]; ok {
			return constant.MakeInt64(int64(d)), true
		}
	case *ast.SelectorExpr:
		if d, ok := units[x.Sel.Name]; ok {
			return constant.MakeInt64(int64(d)), true
		}
	case *ast.BinaryExpr:
		a, first := s.valueOf(x.X)
		b, second := s.valueOf(x.Y)
		if a.Kind() == constant.Unknown || b.Kind() == constant.Unknown || !slices.Contains([]token.Token{token.ADD, token.SUB, token.MUL}, x.Op) {
			break
		}
		return constant.BinaryOp(a, x.Op, b), first || second
	}
	return constant.MakeUnknown(), false
}

// check returns the violations in a file.
func (s *source) check() (found []fault) {
	add := func(rule string, at ast.Node, format string, args ...any) {
		found = append(found, fault{rule, s.name, s.files.Position(at.Pos()).Line, fmt.Sprintf(format, args...)})
	}
	for _, decl := range s.file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		timed := s.timedVariables(f.Body)
		ofPackage := s.durations
		s.durations = maps.Clone(ofPackage)
		s.addConstants(f.Body, s.durations)
		s.inspectOutsideBubbles(f.Body, func(n ast.Node) {
			switch n := n.(type) {
			case *ast.CompositeLit:
				s.findShortOption(n, add)
			case *ast.CallExpr:
				if slices.Contains([]string{"Acquire", "AcquireGrant", "hold"}, calledName(n)) && len(n.Args) == 3 {
					s.findShortTTL(n.Args[2], add)
				}
				if calledName(n) == "Go" && len(n.Args) == 1 {
					s.findBareSend(n.Args[0], add)
				}
			case *ast.GoStmt:
				s.findBareSend(n.Call.Fun, add)
			case *ast.IfStmt:
				if isUpperBound(n, timed) && containsNode(n.Body, isFailure) && !s.isExcused(n, "clock") {
					add("clock", n, "the test fails if it took too long by the clock of this machine: compare order, tokens or times of the server, "+
						"or give the reason behind \"// clock: \"")
				}
			}
		})
		s.durations = ofPackage
	}
	return found
}

// inspectOutsideBubbles calls fn with each node that is not in a bubble.
func (s *source) inspectOutsideBubbles(n ast.Node, fn func(ast.Node)) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if isCallOf("synctest", "Test")(call) || s.bubbles[calledName(call)] {
				return false
			}
		}
		if n != nil {
			fn(n)
		}
		return true
	})
}

// findShortOption finds a short TTL among the fields of an options literal.
func (s *source) findShortOption(lit *ast.CompositeLit, add func(string, ast.Node, string, ...any)) {
	of := ""
	switch x := lit.Type.(type) {
	case *ast.Ident:
		of = x.Name
	case *ast.SelectorExpr:
		of = x.Sel.Name
	}
	if lit.Type != nil && !slices.Contains([]string{"AcquireOptions", "Request"}, of) {
		return
	}
	for _, field := range lit.Elts {
		if pair, ok := field.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "TTL" {
				s.findShortTTL(pair.Value, add)
			}
		}
	}
}

// findShortTTL finds a short TTL without a reason.
func (s *source) findShortTTL(x ast.Expr, add func(string, ast.Node, string, ...any)) {
	d, ok := s.durationOf(x)
	if !ok || d >= minReliedTTL || s.isExcused(x, "short") {
		return
	}
	add("short-ttl", x, "a TTL of %v: give %v or more, or the reason to wait for its end behind \"// short: \"", d, minReliedTTL)
}

// isExcused reports whether a comment on the line of n, or on the line before, gives the reason that a rule
// asks for.
func (s *source) isExcused(n ast.Node, rule string) bool {
	reason := regexp.MustCompile("// " + rule + `: \S+ \S+`)
	line := s.files.Position(n.Pos()).Line
	return reason.MatchString(s.lines[line-1]) || line > 1 && reason.MatchString(s.lines[line-2])
}

// findBareSend finds a send of the result of a call that may end the goroutine.
func (s *source) findBareSend(fn ast.Expr, add func(string, ast.Node, string, ...any)) {
	lit, ok := fn.(*ast.FuncLit)
	if !ok {
		return
	}
	ast.Inspect(lit.Body, func(n ast.Node) bool {
		if send, ok := n.(*ast.SendStmt); ok {
			if call, ok := send.Value.(*ast.CallExpr); ok && slices.Contains([]string{"Acquire", "acquire", "AcquireGrant", "grant"}, calledName(call)) {
				add("bare-send", n, "%s may end the goroutine, and nothing is sent: use fixture.RunAsync and fixture.AwaitResult", calledName(call))
			}
		}
		return true
	})
}

// isElapsed reports whether n is an elapsed time by the clock of this machine.
func isElapsed(n ast.Node) bool {
	if isCallOf("time", "Since")(n) {
		return true
	}
	call, ok := n.(*ast.CallExpr)
	if !ok || calledName(call) != "Sub" {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && isCallOf("time", "Now")(sel.X)
}

// timedVariables returns the variables of a function that hold an elapsed time.
func (s *source) timedVariables(body ast.Node) map[string]bool {
	names := make(map[string]bool)
	ast.Inspect(body, func(n ast.Node) bool {
		if assign, ok := n.(*ast.AssignStmt); ok && len(assign.Lhs) == len(assign.Rhs) {
			for i, value := range assign.Rhs {
				if name, ok := assign.Lhs[i].(*ast.Ident); ok && isElapsed(value) {
					names[name.Name] = true
				}
			}
		}
		return true
	})
	return names
}

// isUpperBound reports whether a condition tests that a time is too long. A time that is too short does not
// depend on the machine.
func isUpperBound(n *ast.IfStmt, timed map[string]bool) bool {
	isTime := func(n ast.Node) bool {
		name, ok := n.(*ast.Ident)
		return ok && timed[name.Name] || isElapsed(n)
	}
	return containsNode(n.Cond, func(n ast.Node) bool {
		compare, ok := n.(*ast.BinaryExpr)
		if !ok {
			return false
		}
		switch compare.Op {
		case token.GTR, token.GEQ:
			return containsNode(compare.X, isTime)
		case token.LSS, token.LEQ:
			return containsNode(compare.Y, isTime)
		}
		return false
	})
}

// isFailure reports whether n is a call that fails the test.
func isFailure(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	return ok && slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow"}, calledName(call))
}

// findFaults returns the violations in all tests on real servers.
func findFaults(t *testing.T) (found []fault) {
	t.Helper()
	packages := make(map[string]map[string]string)
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && path == filepath.Join(root, "cmd/holdfast/internal") {
				return fs.SkipDir // no test there has a server
			}
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.Contains(filepath.ToSlash(path), "internal/rig/fixture/") {
				return err
			}
			if d.Name() == "example_test.go" {
				return nil // they run on the driver in memory
			}
			text, err := os.ReadFile(path)
			dir := filepath.Dir(path)
			if packages[dir] == nil {
				packages[dir] = make(map[string]string)
			}
			name, _ := filepath.Rel(root, path)
			packages[dir][filepath.ToSlash(name)] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, texts := range packages {
		all, err := parseSources(texts)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			found = append(found, s.check()...)
		}
	}
	return found
}

func TestVerdictsDoNotDependOnMachine(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("known.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		known[strings.TrimSpace(line)] = false
	}
	for _, f := range findFaults(t) {
		entry := f.rule + " " + f.file
		if _, ok := known[entry]; !ok {
			t.Errorf("%s:%d: %s (%s)", f.file, f.line, f.text, f.rule)
			continue
		}
		known[entry] = true
	}
	for entry, still := range known {
		if !still {
			t.Errorf("known.txt lists %q, which no longer occurs: delete the line", entry)
		}
	}
}

func TestEachRuleFindsItsViolation(t *testing.T) {
	t.Parallel()
	const head = "package x\n\nconst brief = 2 * time.Second\n\nfunc in(t *testing.T, f func(*testing.T)) { synctest.Test(t, f) }\n\nfunc TestX(t *testing.T) {\n"
	for text, want := range map[string]string{
		`c.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: 4900 * time.Millisecond})`:                "short-ttl",
		`c.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: 5 * time.Second})`:                        "",
		`ttl := 3 * time.Second; c.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: ttl})`:            "short-ttl",
		`p := &run.Plan{TTL: time.Second}`:                                                           "",
		`r.Acquire(c, "k", brief)`:                                                                   "short-ttl",
		`r.Acquire(c, "k", 3*brief)`:                                                                 "",
		`r.AcquireGrant(d, "k", brief-1) // short: `:                                                 "short-ttl",
		"// short: the test waits for its end\nr.AcquireGrant(d, \"k\", time.Second)":                "",
		`r.AcquireGrant(d, "k", brief) // short: the lease ends with its holder`:                     "",
		`go func() { next <- r.Acquire(c, "k", time.Minute) }()`:                                     "bare-send",
		`all.Go(func() { next <- r.AcquireGrant(d, "k", time.Minute) })`:                             "bare-send",
		`next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(c, "k", time.Minute) })`: "",
		`if took := time.Since(begin); took > time.Second { t.Errorf("%v", took) }`:                  "clock",
		`took := time.Now().Sub(begin); if ok && 2*took >= time.Second { t.Fatal("late") }`:          "clock",
		`if time.Second < time.Since(begin) { t.Error("late") }`:                                     "clock",
		"// clock: it waits for minutes\nif time.Since(begin) > time.Hour { t.Fatal() }":             "",
		`if took := time.Since(begin); took < time.Second { t.Errorf("it did not wait") }`:           "",
		`if took := time.Since(begin); took > time.Second { t.Logf("%v", took) }`:                    "",
		`in(t, func(t *testing.T) { r.Acquire(c, "k", brief); if time.Since(b) > 0 { t.Fatal() } })`: "",
		`synctest.Test(t, func(t *testing.T) { go func() { next <- r.Acquire(c, "k", brief) }() })`:  "",
	} {
		all, err := parseSources(map[string]string{"x_test.go": head + text + "\n}\n"})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var got []string
		for _, f := range all[0].check() {
			got = append(got, f.rule)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s\nfound %q, want %q", text, got, want)
		}
	}
}
