package block_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/block"
)

func TestABlockEndsWhereTheNextBegins(t *testing.T) {
	t.Parallel()
	const base = 1000
	for token, in := range map[int64]bool{base - 1: false, base: true, base + block.Size - 1: true, base + block.Size: false} {
		if block.Has(base, token) != in {
			t.Errorf("Has(%d, %d) = %v", base, token, !in)
		}
	}
}
