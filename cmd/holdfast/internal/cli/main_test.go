package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
)

// TestMain takes the variables away by which the tests themselves are told something: the command would name them.
func TestMain(m *testing.M) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "HOLDFAST_") {
			os.Unsetenv(name)
		}
	}
	os.Exit(leaktest.Run(m))
}
