package holdfast_test

import (
	"log/slog"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // clients without a Logger warn of each lease that a test has them lose
	os.Exit(leaktest.Run(m))
}
