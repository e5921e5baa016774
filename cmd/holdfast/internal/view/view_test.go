package view

import "testing"

func TestPrintableEscapesControlCharacters(t *testing.T) {
	t.Parallel()
	if got := Printable("a\x1b[2Jb"); got != `a\x1b[2Jb` {
		t.Errorf("%q", got)
	}
	if got := Printable("größe/ü"); got != "größe/ü" {
		t.Errorf("%q", got)
	}
}

func TestOnlySafeNamesAreCompleted(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"orders/42": true, "größe": true, "a.b:c@d+e=g-h_i": true, "/x": true, ".x": true, "_x": true,
		"": false, "a,b": false, "=ls": false, "@home": false, "+x": false, ":x": false,
		"two words": false, "a;b": false, "a$b": false, "a\tb": false, "a\nb": false, "a\u202eb": false,
		"a*": false, "~a": false, "-n": false, "a#1": false, `a"b`: false,
	} {
		if got := Completable(name); got != want {
			t.Errorf("Completable(%q) = %v, want %v", name, got, want)
		}
	}
}
