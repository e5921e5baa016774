package rig

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// nightlyVariable names the parts of make nightly that run, separated by commas, or "all".
const nightlyVariable = "HOLDFAST_NIGHTLY"

// Nightly skips a test that only this part of make nightly runs: it takes minutes, or it measures
// time, or it needs a browser, a daemon or another language's libraries.
func Nightly(t testing.TB, part string) {
	t.Helper()
	chosen := strings.Split(os.Getenv(nightlyVariable), ",")
	if !slices.Contains(chosen, part) && !slices.Contains(chosen, "all") {
		t.Skipf("part of the nightly run: make nightly ONLY=%s", part)
	}
}

// NeedsServer skips a test under -short, which runs only what needs no server.
func NeedsServer(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short starts no servers")
	}
}
