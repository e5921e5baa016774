package cli

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
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
			t.Errorf("%q was parsed as %v", text, time.Duration(d))
		}
	}
}

// FuzzDuration: an accepted duration is not negative, and its text parses to the same value.
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
				t.Errorf("%q is formatted as %q, which parses as %v, %v", text, written, time.Duration(again), err)
			}
		}
	})
}

// FuzzCode: an accepted exit code is one that a process can have.
func FuzzCode(f *testing.F) {
	for _, text := range []string{"0", "75", "255", "256", "-1", "+5", "007", "0x10", " 1", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c, again code
		if c.Set(text) != nil {
			return
		}
		if err := again.Set(c.String()); c < 0 || c > 255 || err != nil || again != c {
			t.Errorf("%q = %d, formatted as %q, which parses as %d, %v", text, c, c.String(), again, err)
		}
	})
}

// FuzzTicket checks that a file of another program is rejected as wrong usage, or names a lease that the
// backend accepts in a request.
func FuzzTicket(f *testing.F) {
	for _, text := range []string{
		`{"name":"a","token":7,"owner":"c.1","ttl_ms":1000,"expires_at":"2030-01-02T03:04:05Z"}`,
		`{"name":"a","token":-7}`, `{"token":7}`, `{"name":"a","token":1e3}`, `{"name":"a","token":9223372036854775808}`, `[]`, `null`, ``, `{"NAME":"a","Token":1}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(t.TempDir(), "lease")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := (&ticketFlags{file: file}).readTicket(checkVerb, nil)
		switch {
		case err != nil && exitcode.Of(err) != exitcode.Usage:
			t.Errorf("%q: %v, want a usage error", text, err)
		case err == nil && (got.Name == "" || got.Token <= 0):
			t.Errorf("%q is %+v", text, got)
		}
	})
}
