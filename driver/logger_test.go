package driver_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestDefaultLoggerGetsWarningsOnly is not parallel: it replaces slog's default logger.
func TestDefaultLoggerGetsWarningsOnly(t *testing.T) {
	own := slog.New(slog.DiscardHandler)
	if driver.LoggerOrDefault(own) != own {
		t.Error("the configured logger was not used")
	}
	logger := driver.LoggerOrDefault(nil)
	var out bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	logger.Info("node is up")
	logger.With("key", "k").Info("node is up")
	logger.With("key", "k").Warn("lease lost")
	if got := out.String(); strings.Contains(got, "node is up") || !strings.Contains(got, `msg="lease lost" key=k`) {
		t.Errorf("logged %q, want only the warning", got)
	}
}
