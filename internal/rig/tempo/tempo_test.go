package tempo

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// The tests here are not parallel, because the factor and the environment belong to the process.

func TestVirtualTimeIsNotScaled(t *testing.T) {
	t.Setenv(Variable, "3")
	defer pace.SetFactor(func() float64 { return 1 })
	Adopt()
	if got := pace.CallTime(); got != 6*time.Second {
		t.Errorf("CallTime() = %v at pace 3", got)
	}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(10 * 365 * 24 * time.Hour)
		if got := pace.CallTime(); got != 2*time.Second {
			t.Errorf("CallTime() = %v in a bubble", got)
		}
	})
}

func TestChildProcessesInheritFactorOnRequest(t *testing.T) {
	t.Setenv(Variable, "")
	defer pace.SetFactor(func() float64 { return 1 })
	stop := Start()
	defer stop()
	measured := pace.Factor()
	if measured < 1 || measured > maxFactor {
		t.Errorf("factor = %v", measured)
	}
	pace.SetFactor(func() float64 { return 1 }) // as in a child process
	if got := pace.Factor(); got != 1 {
		t.Errorf("factor = %v with only the environment set", got)
	}
	Adopt()
	if got := pace.Factor(); got != measured {
		t.Errorf("factor = %v, and %v in the child process", measured, got)
	}
}

func TestVirtualTimeIgnoresStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		quit, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			watchStalls(&out, quit)
		}()
		time.Sleep(10 * time.Second)
		close(quit)
		<-ended
		if out.Len() > 0 {
			t.Errorf("noted %q", &out)
		}
	})
}
