// Package tempo gives tests on a slow machine more time. When a test program starts, the package measures how
// slow the machine is, and multiplies the time-outs of internal/pace by that factor. Virtual time is exact, so
// its factor is 1. While the program runs, the package records stalls of the machine, so that tools/rerun can
// distinguish a stall from a fault.
package tempo

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// Variable is the environment variable with the factor. If it is set, nothing is measured. Start sets it
	// for the processes that a test starts; they use it only if they call Adopt. Its name does not begin like
	// the command's settings, because the command warns of settings that it does not know.
	Variable = "TEST_PACE"

	// maxFactor is the highest factor. On a slower machine tests fail, in place of lasting for hours.
	maxFactor = 8

	tick = 50 * time.Millisecond
)

// stallTime returns the delay of a tick that counts as a stall of the machine: the shortest time after which
// the product blames a node.
func stallTime() time.Duration { return pace.OverdueTime() }

// Start sets the factor of this test program, and begins to report stalls on standard error. stop ends that.
func Start() (stop func()) {
	f, given := factorOfEnvironment()
	if !given {
		f = measureFactor()
	}
	setFactor(f)
	os.Setenv(Variable, strconv.FormatFloat(f, 'g', -1, 64))
	out, quit, ended := os.Stderr, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		watchStalls(out, quit)
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// Adopt takes the factor from the test program that has started this process. Without one it does nothing.
func Adopt() {
	if f, ok := factorOfEnvironment(); ok {
		setFactor(f)
	}
}

// Env returns the environment variable with the factor, for a process that does not inherit this one's
// environment.
func Env() string { return Variable + "=" + os.Getenv(Variable) }

// factorOfEnvironment returns the factor that the environment sets.
func factorOfEnvironment() (f float64, ok bool) {
	f, err := strconv.ParseFloat(os.Getenv(Variable), 64)
	return max(f, 1), err == nil
}

func setFactor(f float64) {
	pace.SetFactor(func() float64 {
		if isVirtual(time.Now()) {
			return 1
		}
		return f
	})
}

// isVirtual reports whether now belongs to a synctest bubble, whose time begins in the year 2000.
func isVirtual(now time.Time) bool { return now.Year() < 2020 }

// watchStalls writes a line to out for each stall of this process, until quit is closed.
func watchStalls(out io.Writer, quit <-chan struct{}) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for before := time.Now(); ; {
		select {
		case <-quit:
			return
		case <-t.C:
		}
		now := time.Now()
		if still := now.Sub(before) - tick; still > stallTime() {
			fmt.Fprintf(out, "SLOW: stood still %.1f s until %s, at pace %.2f\n", still.Seconds(), now.UTC().Format("15:04:05.000"), pace.Factor())
		}
		before = now
	}
}
