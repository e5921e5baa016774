package quorum

import "testing"

func TestCounterIsLastTokenOfBlock(t *testing.T) {
	t.Parallel()
	const base = 1000
	top := LastOfBlock(base)
	if FirstOfBlock(top) != base || top-base+1 != Block {
		t.Errorf("the block from %d ends at %d and the next begins at %d", base, top, FirstOfBlock(top))
	}
}
