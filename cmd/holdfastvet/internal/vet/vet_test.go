package vet_test

import (
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/holdfast-go/holdfast/cmd/holdfastvet/internal/vet"
)

// runAnalyzer compares the findings of a in the folders with the expected ones. It compiles their imports.
func runAnalyzer(t *testing.T, a *analysis.Analyzer, folders ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short compiles nothing more")
	}
	t.Parallel()
	analysistest.Run(t, analysistest.TestData(), a, folders...)
}

func TestReleaseAnalyzer(t *testing.T) {
	runAnalyzer(t, vet.Release, "./release", "./tests")
}

func TestContextAnalyzer(t *testing.T) {
	runAnalyzer(t, vet.Context, "./context")
}

func TestTokenAnalyzer(t *testing.T) {
	runAnalyzer(t, vet.Token, "./token")
}
