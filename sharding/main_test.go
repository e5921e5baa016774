package sharding_test

import (
	"flag"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
)

// TestMain lets more tests run at once than there are processors, because tests over servers mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8")
	os.Exit(leaktest.Run(m))
}
