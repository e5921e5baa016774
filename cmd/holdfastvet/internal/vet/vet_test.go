package vet_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/holdfast-go/holdfast/cmd/holdfastvet/internal/vet"
)

func TestALeaseIsReleasedOnEveryPath(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, analysistest.TestData(), vet.Release, "./release", "./tests")
}

func TestWorkUnderALeaseEndsWithIt(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, analysistest.TestData(), vet.Context, "./context")
}

func TestWritesUnderALeaseHaveItsToken(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, analysistest.TestData(), vet.Token, "./token")
}
