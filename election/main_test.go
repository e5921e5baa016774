package election_test

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }
