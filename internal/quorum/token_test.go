package quorum

import "testing"

func TestABlockEndsWhereTheNextBegins(t *testing.T) {
	t.Parallel()
	const base = 1000
	top := Top(base)
	if Base(top) != base || top-base+1 != Block {
		t.Errorf("the block from %d ends at %d, which begins at %d", base, top, Base(top))
	}
	for token, in := range map[int64]bool{base - 1: false, base: true, top: true, top + 1: false} {
		if InBlock(token, base) != in {
			t.Errorf("InBlock(%d, %d) = %v", token, base, !in)
		}
	}
}
