package cli

import (
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1m30s": 90 * time.Second, "250ms": 250 * time.Millisecond,
		"90": 90 * time.Second, "0.5": 500 * time.Millisecond, "0": 0, "1e2": 100 * time.Second,
	} {
		var d duration
		if err := d.Set(text); err != nil || time.Duration(d) != want {
			t.Errorf("%q is %v, %v; want %v", text, time.Duration(d), err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "-1s", "NaN", "Inf", "1e300", "1 s", "1d"} {
		var d duration
		if d.Set(text) == nil {
			t.Errorf("%q is taken for %v", text, time.Duration(d))
		}
	}
}

// FuzzDuration holds that what is taken is not negative, and is read again as what
// it is written.
func FuzzDuration(f *testing.F) {
	for _, text := range []string{"90s", "1m30s", "0.5", "1e9", "-1e9", "1e10", "NaN", "-0", "9223372036s", "0x10", "1_000"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var d, again duration
		if d.Set(text) != nil {
			return
		}
		if d < 0 {
			t.Errorf("%q is %v", text, time.Duration(d))
		}
		if written := d.String(); written != "" {
			if err := again.Set(written); err != nil || again != d {
				t.Errorf("%q is written %q, which is %v, %v", text, written, time.Duration(again), err)
			}
		}
	})
}

func TestWaitZeroIsNoWait(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		wait          string
		noWait        bool
		given         string
		none, refused bool
	}{
		{"", false, "", false, false},
		{"0", false, "wait", true, false},
		{"5s", false, "wait", false, false},
		{"", true, "no-wait", true, false},
		{"5s", true, "no-wait wait", false, true},
		{"5s", true, "no-wait", true, false}, // the variable gives way to the flag
		{"5s", true, "wait", false, false},
	} {
		var p patience
		if row.wait != "" {
			if err := p.Set(row.wait); err != nil {
				t.Fatal(err)
			}
		}
		given := func(flag string) bool {
			switch row.given {
			case "no-wait wait":
				return true
			default:
				return flag == row.given
			}
		}
		none, err := p.none(row.noWait, given)
		if (err != nil) != row.refused || err == nil && none != row.none {
			t.Errorf("%+v: none %v, %v", row, none, err)
		}
	}
}
