package holdfast_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

// TestDriverTypesHaveAliases walks all exported types: their methods, fields, arguments and
// results. Each type of package driver that it meets needs an alias in this package.
func TestDriverTypesHaveAliases(t *testing.T) {
	t.Parallel()
	seen := make(map[reflect.Type]bool)
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		if seen[typ] || typ.PkgPath() != "" && !strings.HasPrefix(typ.PkgPath(), "github.com/holdfast-go/holdfast") {
			return
		}
		seen[typ] = true
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Chan:
			walk(typ.Elem())
		case reflect.Struct:
			for field := range typ.Fields() {
				if field.IsExported() {
					walk(field.Type)
				}
			}
		case reflect.Func:
			for in := range typ.Ins() {
				walk(in)
			}
			for out := range typ.Outs() {
				walk(out)
			}
		}
		if typ == reflect.TypeFor[driver.Driver]() {
			return // the client calls its methods, users do not
		}
		for _, typ := range []reflect.Type{typ, reflect.PointerTo(typ)} {
			for method := range typ.Methods() {
				walk(method.Type)
			}
		}
	}
	for _, start := range []any{
		holdfast.New, (*holdfast.Client)(nil), (*holdfast.Lease)(nil), &holdfast.Options{}, &holdfast.AcquireOptions{},
		&holdfast.HeldError{}, &holdfast.UnavailableError{}, &holdfast.Error{},
	} {
		walk(reflect.TypeOf(start))
	}
	names := driverAliases(t)
	for typ := range seen {
		if name := typ.Name(); typ.PkgPath() == reflect.TypeFor[driver.Driver]().PkgPath() && !names[name] {
			t.Errorf("driver.%s is part of the public API and has no alias in package holdfast", name)
		}
	}
	if len(names) < 10 || len(seen) < 30 {
		t.Errorf("found %d names and %d types: the parser misses some", len(names), len(seen))
	}
}

// driverAliases returns the types of package driver that have an alias of the same name in this package.
func driverAliases(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && spec.Assign.IsValid() {
				if of, ok := spec.Type.(*ast.SelectorExpr); ok && of.Sel.Name == spec.Name.Name {
					names[spec.Name.Name] = true
				}
			}
			return true
		})
	}
	return names
}

// New closes the driver when it fails, except if another client uses the driver.
func TestFailedNewClosesDriver(t *testing.T) {
	t.Parallel()
	refused := &holdfast.Options{Holder: holdfast.Holder{Note: "x"}}
	drv := memory.New(1)
	if _, err := holdfast.New(drv, refused); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("New() = %v, want ErrInvalid", err)
	}
	request := driver.Request{Key: "k", TTL: time.Minute, NoWait: true}
	if _, err := drv.Acquire(t.Context(), request); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Acquire() = %v after New has failed, want ErrClosed", err)
	}
	used := memory.New(1)
	c := openClient(t, used, nil)
	for _, opts := range []*holdfast.Options{nil, refused} {
		if _, err := holdfast.New(used, opts); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("New() over a driver in use = %v, want ErrInvalid", err)
		}
	}
	l, err := c.TryAcquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatalf("the client that uses the driver: %v", err)
	}
	release(t, l)
}
