package driverkit_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/driverkit"
)

func TestTokenBlocksDoNotOverlap(t *testing.T) {
	t.Parallel()
	const base = 1000
	for token, in := range map[int64]bool{base - 1: false, base: true, base + driverkit.Block - 1: true, base + driverkit.Block: false} {
		if driverkit.InBlock(base, token) != in {
			t.Errorf("Has(%d, %d) = %v", base, token, !in)
		}
	}
}
