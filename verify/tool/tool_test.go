package tool

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFillReplacesOnlyTheTable(t *testing.T) {
	t.Parallel()
	page := Page{Path: filepath.Join(t.TempDir(), "page.md"), Begin: "<begin>\n", End: "<end>\n"}
	for _, c := range []struct{ before, after, table string }{
		{"head\n<begin>\nold\n<end>\ntail\n", "head\n<begin>\nold\nnew\n<end>\ntail\n", "old\n"},
		{"head\n<begin>\nold\n", "head\n<begin>\nold\n", ""}, // a page without one of the lines stays, and is an error
		{"old\n<end>\ntail\n", "old\n<end>\ntail\n", ""},
	} {
		if err := os.WriteFile(page.Path, []byte(c.before), 0o600); err != nil {
			t.Fatal(err)
		}
		table, err1 := page.Table()
		err2 := page.Fill(func(old string) string { return old + "new\n" })
		text, err := os.ReadFile(page.Path)
		if err != nil || string(text) != c.after || table != c.table || (c.table == "") != (err1 != nil && err2 != nil) {
			t.Errorf("%q has the table %q, %v, and becomes %q, %v", c.before, table, err1, text, err2)
		}
	}
}
