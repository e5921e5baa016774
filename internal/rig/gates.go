package rig

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// nightlyVariable lists the parts of make nightly to run, separated by commas, or "all".
const nightlyVariable = "HOLDFAST_NIGHTLY"

// Nightly skips a test unless this part of make nightly runs. Such a test takes minutes, measures time, or
// needs a browser, a daemon or another language's libraries.
func Nightly(t testing.TB, part string) {
	t.Helper()
	chosen := strings.Split(os.Getenv(nightlyVariable), ",")
	if !slices.Contains(chosen, part) && !slices.Contains(chosen, "all") {
		t.Skipf("part of the nightly run: make nightly ONLY=%s", part)
	}
}

// NeedsServer skips a test under -short, which runs only tests without servers.
func NeedsServer(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short starts no servers")
	}
}
