package holdfast_test

import (
	"log/slog"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // clients without a Logger would warn of each lost lease
	os.Exit(leaktest.Run(m))
}
