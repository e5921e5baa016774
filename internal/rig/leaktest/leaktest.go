// Package leaktest fails the tests of a package that leave goroutines or open
// sockets, pipes and files behind.
package leaktest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/tempo"
)

// settleTimeout allows for goroutines and connections that end a little after the last test, such as a child that is
// being reaped.
const settleTimeout = 10 * time.Second

// keptGoroutine names the goroutine that may remain: it starts child processes, which die with its thread.
const keptGoroutine = "/internal/rig/child.init.func"

// ownPackages are the import paths of code whose goroutines count. The runtime and the testing package start and end
// goroutines at any time.
var ownPackages = []string{"github.com/holdfast-go/holdfast", "github.com/redis/rueidis"}

// Run runs all tests of a package, with times scaled to this machine, and returns the exit code: not 0 if
// tests fail or leave something behind. Call it from TestMain:
//
//	os.Exit(leaktest.Run(m))
func Run(m interface{ Run() int }) int {
	stop := tempo.Start()
	before := openDescriptors()
	code := m.Run()
	stop()
	if code != 0 {
		return code // a failed test may leave anything
	}
	return reportLeaks(os.Stderr, before, pace.Scale(settleTimeout))
}

func reportLeaks(out io.Writer, before map[string]int, timeout time.Duration) int {
	var stacks, files []string
	for end := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		stacks, files = goroutineStacks(), newEntries(before, openDescriptors())
		if len(stacks)+len(files) == 0 {
			return 0
		}
		if time.Now().After(end) {
			break
		}
	}
	fmt.Fprintf(out, "the tests have left %d goroutines and %d descriptors behind\n", len(stacks), len(files))
	for _, text := range append(files, stacks...) {
		fmt.Fprintln(out, text)
	}
	return 1
}

// goroutineStacks returns the stacks of the goroutines that run this project's code, without the caller's.
func goroutineStacks() []string {
	text := make([]byte, 1<<24)
	text = text[:runtime.Stack(text, true)]
	var left []string
	for i, stack := range strings.Split(string(text), "\n\n") {
		mine := i == 0 // the first is this goroutine
		for _, path := range ownPackages {
			if !mine && strings.Contains(stack, path) && !strings.Contains(stack, keptGoroutine) {
				left = append(left, stack)
				break
			}
		}
	}
	return left
}

// openDescriptors counts the open sockets, pipes and files by their names. It returns an empty map on a system
// that does not list them. Descriptors of the runtime, such as its epoll, do not count.
func openDescriptors() map[string]int {
	const dir = "/proc/self/fd"
	names, _ := os.ReadDir(dir)
	all := make(map[string]int)
	for _, n := range names {
		what, err := os.Readlink(filepath.Join(dir, n.Name()))
		if err == nil && (strings.HasPrefix(what, "socket:") || strings.HasPrefix(what, "pipe:") ||
			strings.HasPrefix(what, "/") && !strings.HasPrefix(what, "/proc/") && !strings.HasPrefix(what, "/dev/")) {
			all[what]++
		}
	}
	return all
}

// newEntries returns the entries of after that are not in before.
func newEntries(before, after map[string]int) []string {
	var left []string
	for what, n := range after {
		if n > before[what] {
			left = append(left, fmt.Sprintf("%s is open %d times more than before", what, n-before[what]))
		}
	}
	return left
}
