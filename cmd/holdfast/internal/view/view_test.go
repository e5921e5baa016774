package view

import "testing"

func TestPrintableDisarmsTheTerminal(t *testing.T) {
	t.Parallel()
	if got := Printable("a\x1b[2Jb"); got != `a\x1b[2Jb` {
		t.Errorf("%q", got)
	}
	if got := Printable("größe/ü"); got != "größe/ü" {
		t.Errorf("%q", got)
	}
}
