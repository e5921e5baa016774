package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
)

// TestMain removes the variables that configure the tests: the command would warn about them.
func TestMain(m *testing.M) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "HOLDFAST_") {
			os.Unsetenv(name)
		}
	}
	os.Exit(leaktest.Run(m))
}
