package resp

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// CatchPanic calls fn, which handles bytes of the other end of a connection, and returns a panic of fn as an
// error that names the place. Unexpected bytes then end one connection and never the program.
func CatchPanic(fn func() error) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("a fault in Holdfast, please report it: %v (%s)", fault, panicSite())
		}
	}()
	return fn()
}

// panicSite returns the file and line of the function that panicked, for a deferred function that has
// recovered.
func panicSite() string {
	var callers [32]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers[:])])
	panicked := false
	for {
		f, more := frames.Next()
		inRuntime := strings.HasPrefix(f.Function, "runtime.")
		if panicked && !inRuntime {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		panicked = panicked || f.Function == "runtime.gopanic"
		if !more {
			return "unknown place"
		}
	}
}
