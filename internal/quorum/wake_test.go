package quorum

import (
	"strings"
	"testing"
)

// FuzzWakeUps checks that a wake-up yields a token only in the form that a node writes.
func FuzzWakeUps(f *testing.F) {
	for _, text := range []string{
		"", "c.1", "c.1 1032 1000", "c.1 1032", "c.1 1032 1000 7", "c.1  1032", "c.1 0 1000", "c.1 1032 0",
		"c.1 -5 9", "c.1 99999999999999999999 1", "c.1 1032 99999999999",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		w := ParseWake(text)
		if owner, _, _ := strings.Cut(text, " "); w.Owner != owner {
			t.Errorf("%q wakes %q", text, w.Owner)
		}
		if (w.Base > 0) != (w.Left > 0) || w.Base < 0 {
			t.Errorf("%q has token %d for %d ms", text, w.Base, w.Left)
		}
		if again := ParseWake(w.String()); again != w {
			t.Errorf("%q parses as %v, and that as %v", text, w, again)
		}
	})
}

func TestWakeUpIsParsedAsWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Wake{
		"c.1":                       {Owner: "c.1"},
		"c.1 1795279814298285 1000": {Owner: "c.1", Base: 1795279814298285, Left: 1000},
		"c.1 0 1000":                {Owner: "c.1"},
		"c.1 12":                    {Owner: "c.1"},
		"c.1 1795279814298285 1001": {Owner: "c.1"}, // longer than any hand-over
		"c.1 9007199254740992 1000": {Owner: "c.1"}, // no token
	} {
		if got := ParseWake(text); got != want {
			t.Errorf("%q parses as %v, want %v", text, got, want)
		}
	}
}
